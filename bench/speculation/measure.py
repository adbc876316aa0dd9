"""What a group of prompts in an engine took, and what of its drafts was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Chat = list[dict[str, str]]


@dataclass(frozen=True)
class Sample:
    """One group of prompts in one engine. Seconds of wall clock; ``prefill_s`` is the part spent in prefill steps."""

    group: int
    variant: str
    seconds: float
    prefill_s: float
    tokens: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]

    @property
    def decode_s(self) -> float:
        return self.seconds - self.prefill_s


def messages(prompts: Sequence[str]) -> list[Chat]:
    """Each prompt as a chat of one user message."""
    return [[{"role": "user", "content": prompt}] for prompt in prompts]


def groups_of(prompts: Sequence[str], batch: int) -> list[list[Chat]]:
    """What is queued at once for ``batch`` live sequences: one prompt, or all of them twice."""
    chats = messages(prompts)
    return [[chat] for chat in chats] if batch == 1 else [chats * 2]


def total(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Sums by position of counts of different lengths."""
    length = max(map(len, counts), default=0)
    return tuple(sum(row[at] for row in counts if at < len(row)) for at in range(length))


def token_acceptance(drafted_at: Sequence[int], accepted_at: Sequence[int]) -> float | None:
    """How often a drafted token was right once those before it were; None when nothing was drafted.

    A token is up for acceptance when all before it were accepted, so the first rejected one of a proposal counts and
    those after it do not. (Exact where all proposals have one length; otherwise at most too low.)
    """
    accepted, tried, before = 0, 0, None
    for drafted, right in zip(drafted_at, accepted_at, strict=True):
        tried += drafted if before is None else min(drafted, before)
        accepted += right
        before = right
    return accepted / tried if tried else None
