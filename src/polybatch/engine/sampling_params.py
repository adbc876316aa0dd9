"""SamplingParams: how the tokens of one request are chosen and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polybatch.engine.checks import as_float, as_int, as_number, check_text
from polybatch.engine.structured.output import StructuredOutput

MAX_LOGPROBS = 20
"""Most alternatives of a token whose log-probabilities are returned, as in OpenAI's API."""


_LEAST_REPETITION_PENALTY = 0.01
"""Logits are divided by it: they must stay finite."""


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    max_tokens: most tokens to generate; None means up to the end of the context.
    temperature: 0.0 is greedy (ties go to the lowest token id); min_p, top_p and top_k then play no part.
    top_p: keep the smallest set of tokens whose probability reaches it; 1.0 keeps all.
    top_k: keep the k most probable tokens; 0 keeps all.
    min_p: keep tokens at least this times as probable as the most probable one; 0.0 keeps all.
    seed: the same seed gives the same tokens whatever else runs; None draws a fresh one.
    stop: a string or several; the text ends just before the first that is completed.
    presence_penalty, frequency_penalty: -2..2, subtracted from the logits of tokens that the answer has, once and
        times their count (OpenAI's formula).
    repetition_penalty: at least 0.01; logits of tokens of the prompt and the answer are divided by it where positive
        and multiplied where negative (Keskar et al. 2019, as transformers applies it).
    logit_bias: -100..100 by token id, added to the logits.
    min_tokens: EOS is not chosen before this many tokens; stop strings are not affected.
    ignore_eos: go on after EOS, as benchmarks want.
    logprobs: return each token's log-probability and those of this many most probable tokens, 0..20, before any of the
        above changes them; None returns none.
    structured: a grammar that the text keeps to.

    The order is that of vLLM: bias, repetition, frequency and presence penalty, grammar; then temperature, min_p,
    top_k, top_p. Numbers may be of any real type (numpy, Fraction); they are kept as int and float.
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
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    logprobs: int | None = None
    structured: StructuredOutput | None = None

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_numbers()
        if not isinstance(self.ignore_eos, bool):
            raise TypeError(f"ignore_eos={self.ignore_eos!r} is a {type(self.ignore_eos).__name__}; give a bool")
        if not isinstance(self.structured, StructuredOutput | None):
            raise TypeError(f"structured={self.structured!r} is not allowed; give StructuredOutput(kind, value)")
        self._set("stop", _stop_tuple(self.stop))
        self._set("logit_bias", _bias(self.logit_bias))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, always as a tuple."""
        return _stop_tuple(self.stop)

    @property
    def adjusts_logits(self) -> bool:
        """Whether anything but EOS (min_tokens) or a grammar changes the logits before a token is chosen."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return bool(penalties or self.logit_bias)

    def _check_counts(self) -> None:
        if self.max_tokens is not None:
            self._set("max_tokens", as_int("max_tokens", self.max_tokens, 1))
        if self.seed is not None:
            self._set("seed", as_int("seed", self.seed, 0))
        self._set("top_k", as_int("top_k", self.top_k, 0))
        self._set("min_tokens", as_int("min_tokens", self.min_tokens, 0))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}; lower it")
        if self.logprobs is not None:
            self._set("logprobs", as_int("logprobs", self.logprobs, 0, MAX_LOGPROBS))

    def _check_numbers(self) -> None:
        self._set("temperature", as_float("temperature", self.temperature))
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is not allowed; give a number >= 0 (0 is greedy)")
        self._set("top_p", as_float("top_p", self.top_p))
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is not allowed; give a number above 0 and at most 1")
        self._set("min_p", as_number("min_p", self.min_p, 0, 1))
        self._set("presence_penalty", as_number("presence_penalty", self.presence_penalty, -2, 2))
        self._set("frequency_penalty", as_number("frequency_penalty", self.frequency_penalty, -2, 2))
        self._set("repetition_penalty", as_float("repetition_penalty", self.repetition_penalty))
        if self.repetition_penalty < _LEAST_REPETITION_PENALTY:
            raise ValueError(
                f"repetition_penalty={self.repetition_penalty} is not allowed; give a number of at least "
                f"{_LEAST_REPETITION_PENALTY} (1 changes nothing)"
            )

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


def _bias(given: object) -> dict[int, float]:
    if not isinstance(given, Mapping):
        raise TypeError(f"logit_bias={given!r} is a {type(given).__name__}; give a mapping of token ids to numbers")
    return {
        as_int("logit_bias token id", token, 0): as_number(f"logit_bias of token {token!r}", bias, -100, 100)
        for token, bias in given.items()
    }
