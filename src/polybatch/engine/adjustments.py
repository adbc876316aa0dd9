"""What changes the logits of one sequence before a token is chosen: EOS too early, biases, penalties, a grammar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polybatch.engine.protocols import Logits
from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.structured.constraint import Constraint


class Adjustments:
    """Follows a sequence token by token; nothing of the batch or of tokens that were only proposed plays a part.

    The formulas are those of OpenAI (bias, presence and frequency penalty) and of Keskar et al. 2019, section 4.1
    (repetition penalty), and the order is that of vLLM.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: Sequence[int] = (),
        prompt_token_ids: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self._params = params
        self._eos_token_ids = list(eos_token_ids)
        self._early = params.min_tokens if self._eos_token_ids else 0  # tokens that EOS may not be among
        self._constraint = constraint
        self._changes = params.adjusts_logits
        self._bias = _Bias(params)
        self._counts = TokenCounts(prompt_token_ids) if self._changes else None

    @property
    def active(self) -> bool:
        """Whether the next logits are changed."""
        return self._changes or self._early > 0 or self._constraint is not None

    @property
    def complete(self) -> bool:
        """Whether the grammar allows nothing more."""
        return self._constraint is not None and self._constraint.complete

    def apply(self, logits: Logits) -> Logits:
        """The logits, float32 [vocab], to choose the next token from: the given ones, or a changed copy."""
        if not self.active:
            return logits
        logits = logits.copy()
        if self._counts is not None:
            self._bias.add(logits)
            self._penalize(logits, self._counts)
        if self._constraint is not None:
            self._constraint.mask(logits)
        if self._early > 0:
            self._put_off_eos(logits)
        return logits

    def accept(self, token_id: int) -> None:
        """The sequence goes on with ``token_id``."""
        self._early -= 1
        if self._counts is not None:
            self._counts.add(token_id)
        if self._constraint is not None:
            self._constraint.accept(token_id)

    def valid_prefix(self, token_ids: Sequence[int]) -> int:
        """How many of the proposed tokens the grammar lets come."""
        return len(token_ids) if self._constraint is None else self._constraint.valid_prefix(token_ids)

    def _penalize(self, logits: Logits, counts: TokenCounts) -> None:
        params = self._params
        if params.repetition_penalty != 1:
            ids = counts.seen
            found = logits[ids]
            penalty = np.float32(params.repetition_penalty)
            logits[ids] = np.where(found > 0, found / penalty, found * penalty)
        if params.frequency_penalty or params.presence_penalty:
            ids, times = counts.generated
            logits[ids] -= np.float32(params.frequency_penalty) * times + np.float32(params.presence_penalty)

    def _put_off_eos(self, logits: Logits) -> None:
        before = logits[self._eos_token_ids]
        logits[self._eos_token_ids] = -np.inf
        if self._constraint is not None and not (logits > -np.inf).any():  # the grammar wants EOS and nothing else
            logits[self._eos_token_ids] = before


class TokenCounts:
    """The distinct tokens of a prompt and its answer, and how often each is in the answer; adding one is O(1)."""

    def __init__(self, prompt_token_ids: Sequence[int] = ()) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self._at = {token: index for index, token in enumerate(distinct)}
        self._ids = np.array([*distinct], np.int64)
        self._times = np.zeros(len(distinct), np.float32)

    @property
    def seen(self) -> NDArray[np.int64]:
        """Every token once."""
        return self._ids[: len(self._at)]

    @property
    def generated(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The tokens of the answer, and how often each came."""
        times = self._times[: len(self._at)]
        came = np.flatnonzero(times)
        return self._ids[came], times[came]

    def add(self, token_id: int) -> None:
        """One more token of the answer."""
        index = self._at.setdefault(token_id, len(self._at))
        if index == self._ids.size:
            self._ids = np.resize(self._ids, 2 * index + 16)
            self._times = np.concatenate([self._times, np.zeros(self._ids.size - index, np.float32)])
        self._ids[index] = token_id
        self._times[index] += 1


class _Bias:
    def __init__(self, params: SamplingParams) -> None:
        self._ids = np.array([*params.logit_bias], np.int64)
        self._values = np.array([*params.logit_bias.values()], np.float32)

    def add(self, logits: Logits) -> None:
        logits[self._ids] += self._values
