"""Scripts for the mock program, whose next token anyone can work out."""

from __future__ import annotations

from collections.abc import Sequence

from engine_mock import VOCAB, next_token
from scripted import Script


def continuation(tokens: Sequence[int], count: int) -> list[int]:
    """The next ``count`` tokens of the mock program's greedy answer."""
    known = list(tokens)
    for _ in range(count):
        known.append(next_token(known))
    return known[len(tokens) :]


def wrong_at(position: int, length: int | None = None) -> Script:
    """Right drafts up to ``position``, where a wrong one stands; ``length`` tokens, or as many as are wanted."""

    def script(step: int, tokens: list[int], limit: int) -> list[int]:
        drafted = continuation(tokens, limit if length is None else min(length, limit))
        return [(token + 1) % VOCAB if i == position else token for i, token in enumerate(drafted)]

    return script


def always_right(step: int, tokens: list[int], limit: int) -> list[int]:
    return continuation(tokens, limit)


def always_wrong(step: int, tokens: list[int], limit: int) -> list[int]:
    return [(token + 1) % VOCAB for token in continuation(tokens, limit)]


def nothing(step: int, tokens: list[int], limit: int) -> list[int]:
    return []
