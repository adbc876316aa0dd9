"""The engine's side of speculation: asks the proposer, lets K be chosen, and keeps count of what came of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from polybatch.engine.batch import Batch, StepRow
from polybatch.engine.checks import as_int
from polybatch.engine.protocols import ProgramLike
from polybatch.engine.sequence import Sequence as LiveSequence
from polybatch.engine.speculation.choice import AdaptiveLength, FixedLength, LengthChoice
from polybatch.engine.speculation.costs import StepCosts
from polybatch.engine.speculation.proposal import Proposal
from polybatch.engine.speculation.proposer import Ask, Proposer, Speculation
from polybatch.engine.speculation.stats import SpeculationStats, SpeculationTally


def open_speculator(
    program: ProgramLike,
    speculation: Speculation | None,
    fixed_k: int | None,
    threads: int | None,
    *,
    skips_padding: bool,
) -> Speculator | None:
    """The speculator of one engine. Raises ValueError when the program has no rows for what is asked.

    threads: for what the proposer runs. skips_padding: whether padding is free in the steps that verify.
    """
    if speculation is None:
        if fixed_k is not None:
            raise ValueError(f"fixed_k={fixed_k!r} needs speculation; pass for example PromptLookup()")
        return None
    if not hasattr(speculation, "open"):
        raise TypeError(
            f"speculation={speculation!r} is no way to speculate; give PromptLookup() or DraftModel(program)"
        )
    lengths = program.table.config.num_speculative_tokens or (0,)
    if lengths[-1] == 0:
        raise ValueError(
            f"speculation={speculation!r} needs decode rows for drafted tokens, and this program has none; "
            "recompile it with num_speculative_tokens, for example [0, 3, 7]"
        )
    if fixed_k is not None and as_int("fixed_k", fixed_k, 0) not in lengths:
        raise ValueError(f"fixed_k={fixed_k!r} was not compiled; this program has K={list(lengths)}")
    costs = StepCosts(program.table, program.step_ms, lengths, skips_padding=skips_padding)
    choice = AdaptiveLength(costs, lengths) if fixed_k is None else FixedLength(fixed_k)
    return Speculator(speculation.open(program, threads), choice)


class Speculator:
    """Turns the rows of a decode step into rows with proposed tokens.

    ``propose`` comes before the step, ``ran`` and ``score`` after it; ``forget`` when a request ends.
    """

    def __init__(self, proposer: Proposer, choice: LengthChoice) -> None:
        self._proposer = proposer
        self._choice = choice
        self._offers: dict[int, Proposal] = {}  # what was proposed for this step, before it was trimmed to K
        self._requests: defaultdict[int, SpeculationTally] = defaultdict(SpeculationTally)
        self.total = SpeculationTally()

    def propose(self, rows: Sequence[StepRow], sequences: Mapping[int, LiveSequence]) -> tuple[StepRow, ...]:
        """The decode rows with their proposals. Raises what the proposer raises."""
        draft_ms = self._proposer.draft_ms(len(rows))
        if draft_ms == 0.0 and self._choice.rests():
            self._offers.clear()
            return tuple(rows)
        # A step gives one token more than it accepts, so the last token that a sequence may get is never drafted.
        open_ended = [Ask(sequence, sequence.remaining_tokens - 1) for sequence in _in_order(rows, sequences)]
        most = self._choice.to_draft(open_ended, draft_ms)
        asks = [Ask(ask.sequence, min(ask.limit, most)) for ask in open_ended]  # of 0 too: some keep a cache up to date
        drafted = self._proposer.propose(asks)
        proposals = [sequences[ask.request_id].allowed(proposal) for ask, proposal in zip(asks, drafted, strict=True)]
        self._offers = {ask.request_id: proposal for ask, proposal in zip(asks, proposals, strict=True)}
        kept = self._choice.to_verify(asks, proposals)
        return tuple(
            row.proposing(proposal.trimmed(min(verified, ask.limit)))
            for row, ask, proposal, verified in zip(rows, asks, proposals, kept, strict=True)
        )

    def ran(self, batch: Batch) -> None:
        """A decode step has run."""
        shape = (batch.specialization.batch_size, batch.specialization.seq_len - 1)
        for tally in (self.total, *(self._requests[row.request_id] for row in batch.rows)):
            tally.step(*shape)

    def score(self, row: StepRow, new_tokens: Sequence[int]) -> None:
        """``new_tokens`` came of a decode row."""
        offered = self._offers.get(row.request_id)
        if offered is None:  # nothing was asked for, so there is nothing to learn
            return
        verified = len(row.proposal)
        if verified:
            accepted = row.proposal.accepted(new_tokens)
            for tally in (self.total, self._requests[row.request_id]):
                tally.proposal(verified, accepted)
        self._choice.score(row.request_id, offered, verified, new_tokens)

    def stats(self, request_id: int) -> SpeculationStats:
        """What has been counted for a live request."""
        return self._requests[request_id].snapshot()

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)
        self._offers.pop(request_id, None)
        self._choice.forget(request_id)
        self._proposer.forget(request_id)

    def close(self) -> None:
        """Release the proposer."""
        self._proposer.close()


def _in_order(rows: Sequence[StepRow], sequences: Mapping[int, LiveSequence]) -> list[LiveSequence]:
    return [sequences[row.request_id] for row in rows]
