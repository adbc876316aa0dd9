"""The nouns of a request: what the engine is given (Request) and what comes back (Delta, Completion)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.speculation.stats import SpeculationStats
from polybatch.engine.structured.constraint import Constraint

FinishReason = Literal["stop", "length", "abort", "timeout"]
"""Why a request ended.

``stop``: EOS, a stop string or the end of a grammar. ``length``: max_tokens or the end of the context. ``abort``: the
caller left. ``timeout``: its deadline came.
"""


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a generated token, and the most probable tokens in its place with theirs.

    Natural logarithms, of the softmax of the model's own logits: no sampling parameter plays a part.
    top: as many as were asked for, the most probable first (of equals the lowest id).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Delta:
    """What one step added to one request.

    text: new text, often "" while it may still turn out to begin a stop string or an unfinished character.
    token_ids: the new token ids, EOS included.
    finish_reason: None until the last delta.
    logprobs: of each of ``token_ids``; None when not asked for.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True)
class Completion:
    """A finished request.

    text: decoded without special tokens and cut before the stop string; "" when the program has no tokenizer.
    token_ids: every generated token, including the EOS (as transformers' ``generate`` returns it) and the tokens
        of a stop string. Without a stop string, text is ``tokenizer.decode(token_ids, skip_special_tokens=True)``.
    speculation: what was drafted and accepted; None in an engine without speculation.
    logprobs: of each of ``token_ids``; None when not asked for.
    reused_tokens: prompt tokens that did not have to be run, as a slot held them already.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...]
    speculation: SpeculationStats | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    reused_tokens: int = 0


Event = Delta | Completion | BaseException
"""What a request sends to its caller: deltas, then exactly one Completion or one exception."""


@dataclass(frozen=True)
class Request:
    """A validated request on its way to the engine thread. ``emit`` must neither block nor raise.

    deadline_s: on the engine's clock; the request ends with "timeout" when it comes.
    constraint: of ``params.structured``, at its start; the request owns it.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    emit: Callable[[Event], None]
    deadline_s: float | None = None
    constraint: Constraint | None = None
