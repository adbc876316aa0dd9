"""Prompt lookup: what followed the last tokens when they stood in the text before may follow again.

Saxena 2023, "Prompt lookup decoding". The longest n-gram that occurs earlier wins, and of its occurrences the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polybatch.engine.checks import as_int
from polybatch.engine.protocols import ProgramLike
from polybatch.engine.speculation.proposal import NOTHING, Proposal
from polybatch.engine.speculation.proposer import Ask

_EVIDENCE = (1, 2, 3, 4, 8)
"""Lengths of a match that tell different probabilities of acceptance."""


@dataclass(frozen=True)
class PromptLookup:
    """Speculation without a second model: proposes what the prompt or the answer so far has said before.

    max_ngram: the longest n-gram looked up; then shorter ones down to a single token.
    """

    max_ngram: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_ngram", as_int("max_ngram", self.max_ngram, 1))

    def open(self, program: ProgramLike, threads: int | None) -> LookupProposer:
        """A proposer with no sequences yet."""
        return LookupProposer(self.max_ngram)


class LookupProposer:
    """An index per sequence, which grows with it; a step costs what its new tokens cost."""

    def __init__(self, max_ngram: int) -> None:
        self._max_ngram = max_ngram
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """What followed the latest occurrence of each sequence's last tokens."""
        return [self._propose(ask) for ask in asks]

    def draft_ms(self, rows: int) -> float:
        """Looking up is free."""
        return 0.0

    def forget(self, request_id: int) -> None:
        """Drop the index."""
        self._indexes.pop(request_id, None)

    def close(self) -> None:
        """Drop every index."""
        self._indexes.clear()

    def _propose(self, ask: Ask) -> Proposal:
        index = self._indexes.get(ask.request_id)
        if index is None:
            index = self._indexes[ask.request_id] = NgramIndex(self._max_ngram)
        index.extend(ask.tokens(len(index), len(ask)))
        return index.continuation(ask.limit) if ask.limit else NOTHING


class NgramIndex:
    """The tokens of one sequence, and where each n-gram of 1 to ``max_ngram`` of them was last followed by a token."""

    def __init__(self, max_ngram: int) -> None:
        self._tokens: list[int] = []
        self._followed: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in range(max_ngram))

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; the n-grams that end just before each of them are now followed by something."""
        known = self._tokens
        for token in tokens:
            end = len(known)
            for size, followed in enumerate(self._followed[:end], 1):
                followed[tuple(known[end - size :])] = end
            known.append(token)

    def continuation(self, limit: int) -> Proposal:
        """Up to ``limit`` tokens; where the match is so late that its continuation ends, the repetition goes on.

        The evidence is the length of the match, counted on to the left of the n-gram: 1, 2, 3, 4 or more, 8 or more.
        """
        tokens = self._tokens
        for size in range(min(len(self._followed), len(tokens)), 0, -1):
            start = self._followed[size - 1].get(tuple(tokens[-size:]))
            if start is not None:
                period = len(tokens) - start
                drafted = tuple(tokens[start + i % period] for i in range(limit))
                return Proposal(drafted, evidence=self._evidence(start, size))
        return NOTHING

    def _evidence(self, start: int, size: int) -> int:
        tokens, end = self._tokens, len(self._tokens)
        while size < min(start, _EVIDENCE[-1]) and tokens[start - size - 1] == tokens[end - size - 1]:
            size += 1
        return max(length for length in _EVIDENCE if length <= size)
