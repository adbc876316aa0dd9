"""What proposes tokens: the protocol between the engine and prompt lookup, draft models and whatever comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from polybatch.engine.protocols import ProgramLike
from polybatch.engine.request import Request
from polybatch.engine.speculation.proposal import Proposal


class GrowingSequence(Protocol):
    """A request and the tokens generated for it so far; a proposer reads them and changes nothing."""

    @property
    def request(self) -> Request: ...
    @property
    def token_ids(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Ask:
    """At most ``limit`` >= 0 tokens are wanted to follow ``sequence``."""

    sequence: GrowingSequence
    limit: int

    @property
    def request_id(self) -> int:
        return self.sequence.request.request_id

    def tokens(self, start: int, stop: int) -> list[int]:
        """The tokens at positions ``start .. stop-1`` of the sequence, prompt first."""
        prompt = self.sequence.request.prompt_token_ids
        at = len(prompt)
        return [*prompt[start:stop], *self.sequence.token_ids[max(0, start - at) : max(0, stop - at)]]

    def __len__(self) -> int:
        """Tokens of the sequence, prompt included."""
        return len(self.sequence.request.prompt_token_ids) + len(self.sequence.token_ids)


class Proposer(Protocol):
    """Proposes tokens for the live sequences of one engine; used from the engine's thread alone."""

    def propose(self, asks: Sequence[Ask]) -> Sequence[Proposal]:
        """One proposal per ask, in order, of 0 to ``limit`` tokens. What it raises fails the requests asked for."""
        ...

    def draft_ms(self, rows: int) -> float | None:
        """Milliseconds that one more token for each of ``rows`` sequences costs; 0.0: it is free, None: unknown."""
        ...

    def forget(self, request_id: int) -> None:
        """The request has ended; one that was never asked for is no error."""
        ...

    def close(self) -> None:
        """Release what the proposer holds; no call follows."""
        ...


class Speculation(Protocol):
    """What a user passes to the engine; it makes a proposer of its own for every engine."""

    def open(self, program: ProgramLike, threads: int | None) -> Proposer:
        """A proposer for sequences of ``program``. Raises ValueError when it cannot serve this program."""
        ...
