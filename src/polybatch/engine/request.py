"""The nouns of a request: what is asked (SamplingParams, Request) and what comes back (Delta, Completion)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from polybatch.engine.checks import as_float, as_int, check_text
from polybatch.engine.speculation.stats import SpeculationStats

FinishReason = Literal["stop", "length", "abort"]
"""``stop``: EOS or a stop string. ``length``: max_tokens or the end of the context. ``abort``: the caller left."""


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    max_tokens: most tokens to generate; None means up to the end of the context.
    temperature: 0.0 is greedy (ties go to the lowest token id); the filters below then play no part.
    top_p: keep the smallest set of tokens whose probability reaches it; 1.0 keeps all.
    top_k: keep the k most probable tokens; 0 keeps all.
    seed: the same seed gives the same tokens whatever else runs; None draws a fresh one.
    stop: a string or several; the text ends just before the first that is completed.
    ignore_eos: go on after EOS, as benchmarks want.
    min_tokens: EOS is not chosen before this many tokens; stop strings are not affected.

    Numbers may be of any real type (numpy, Fraction); they are kept as int and float.
    Raises TypeError or ValueError naming the parameter, its value and what is allowed.
    """

    max_tokens: int | None = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: str | tuple[str, ...] | list[str] = ()
    ignore_eos: bool = False
    min_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            self._set("max_tokens", as_int("max_tokens", self.max_tokens, 1))
        if self.seed is not None:
            self._set("seed", as_int("seed", self.seed, 0))
        self._set("top_k", as_int("top_k", self.top_k, 0))
        self._set("min_tokens", as_int("min_tokens", self.min_tokens, 0))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}; lower it")
        self._set("temperature", as_float("temperature", self.temperature))
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is not allowed; give a number >= 0 (0 is greedy)")
        self._set("top_p", as_float("top_p", self.top_p))
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is not allowed; give a number above 0 and at most 1")
        if not isinstance(self.ignore_eos, bool):
            raise TypeError(f"ignore_eos={self.ignore_eos!r} is a {type(self.ignore_eos).__name__}; give a bool")
        self._set("stop", _stop_tuple(self.stop))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, always as a tuple."""
        return _stop_tuple(self.stop)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # frozen, but not before its values are plain


def _stop_tuple(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):
        stop = (stop,)
    if not isinstance(stop, (tuple, list)) or not all(isinstance(text, str) for text in stop):
        raise TypeError(f"stop={stop!r} is not allowed; give a string or a list of strings")
    if "" in stop:
        raise ValueError(f"stop={stop!r} holds an empty string, which would end every answer at once; remove it")
    for text in stop:
        check_text("a stop string", text)
    return tuple(stop)


@dataclass(frozen=True)
class Delta:
    """What one step added to one request.

    text: new text, often "" while it may still turn out to begin a stop string or an unfinished character.
    token_ids: the new token ids, EOS included.
    finish_reason: None until the last delta.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Completion:
    """A finished request.

    text: decoded without special tokens and cut before the stop string; "" when the program has no tokenizer.
    token_ids: every generated token, including the EOS (as transformers' ``generate`` returns it) and the tokens
        of a stop string. Without a stop string, text is ``tokenizer.decode(token_ids, skip_special_tokens=True)``.
    speculation: what was drafted and accepted; None in an engine without speculation.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...]
    speculation: SpeculationStats | None = None


Event = Delta | Completion | BaseException
"""What a request sends to its caller: deltas, then exactly one Completion or one exception."""


@dataclass(frozen=True)
class Request:
    """A validated request on its way to the engine thread. ``emit`` must neither block nor raise."""

    request_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    emit: Callable[[Event], None]
