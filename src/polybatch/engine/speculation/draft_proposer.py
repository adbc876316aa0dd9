"""Drafting with a program: its own slots, its own cache, one small decode step per drafted token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polybatch.engine.batch import Batch, decode_batches
from polybatch.engine.protocols import ProgramLike
from polybatch.engine.sampler import Sampler
from polybatch.engine.slots import SlotAllocator
from polybatch.engine.speculation.costs import StepCosts
from polybatch.engine.speculation.drafting import CachedSequence, Draft
from polybatch.engine.speculation.proposal import NOTHING, Proposal
from polybatch.engine.speculation.proposer import Ask


class DraftProposer:
    """Keeps a draft program's cache in step with the sequences of an engine.

    A sequence gets a slot when it is first asked for; while all are taken, further ones get no drafts. A new sequence,
    or one that was not drafted for, is caught up with by at most one prefill chunk per engine step, so that the others
    never wait for longer; until then it gets no drafts. A request with a seed gets the most probable tokens rather than
    draws, so that what it samples stays what its seed gives, whichever K its neighbours lead to.
    """

    def __init__(self, program: ProgramLike, vocab_size: int | None, threads: int | None) -> None:
        """vocab_size: of the program that is drafted for."""
        lengths = program.table.config.num_speculative_tokens or (0,)
        self._program = program
        self._vocab_size = vocab_size
        self._continuous = program.table.config.continuous_batching
        self._width = lengths[-1] + 1
        self._few = max(2, self._width)  # after a full acceptance two tokens are missing
        self._slots = SlotAllocator(program.full_batch_size)
        self._sequences: dict[int, CachedSequence] = {}
        self._session = program.session(threads)
        skips_padding = self._session.skips_padding
        self._costs = StepCosts(program.table, program.step_ms, lengths, skips_padding=skips_padding)

    def draft_ms(self, rows: int) -> float | None:
        """The time of a decode step of the draft program over as many rows as it has slots for."""
        if not self._costs.measured:
            return None
        return min(self._costs.by_length(min(rows, self._slots.count)).values(), default=None)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Drafts for the sequences that the cache is in step with."""
        drafts = [draft for ask in asks if (draft := self._begin(ask)) is not None]
        self._catch_up(drafts)
        ready = active = [draft for draft in drafts if len(draft.pending) <= self._few]
        while active := [draft for draft in active if not draft.done]:
            self._step(active)
        for draft in ready:
            draft.cached.tokens, draft.cached.guesses = len(draft.ask), tuple(draft.token_ids[:-1])
        proposals = {draft.ask.request_id: draft.proposal(self._vocab_size) for draft in ready}
        return [proposals.get(ask.request_id, NOTHING) for ask in asks]

    def forget(self, request_id: int) -> None:
        """Free the request's slot."""
        cached = self._sequences.pop(request_id, None)
        if cached is not None:
            self._slots.free(cached.slot)

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _begin(self, ask: Ask) -> Draft | None:
        """What is to be run for a sequence; None when it gets no drafts."""
        # The last drafted token is not run, so it may lie one position behind the end of the draft program's slot.
        limit = min(ask.limit, self._program.ctx_len + 1 - len(ask))
        cached = self._cached(ask) if limit > 0 else None
        if cached is None:
            return None
        cached.settle(ask)
        pending = ask.tokens(cached.tokens, len(ask))
        size = self._program.vocab_size
        if size is not None and max(pending) >= size:  # padding of the larger model's vocabulary
            return None
        return Draft(replace(ask, limit=limit), cached, cached.tokens, pending)

    def _cached(self, ask: Ask) -> CachedSequence | None:
        cached = self._sequences.get(ask.request_id)
        if cached is None and self._slots.free_count:
            params = ask.sequence.request.params
            draws = params.temperature > 0 and params.seed is None
            cached = CachedSequence(self._slots.allocate(), Sampler(params) if draws else None)
            self._sequences[ask.request_id] = cached
        return cached

    def _catch_up(self, drafts: Sequence[Draft]) -> None:
        """Run one prefill chunk for the first sequence that lacks more than a few tokens."""
        for draft in drafts:
            count = min(len(draft.pending) - 1, self._program.prefill_seq_len)
            if len(draft.pending) > self._few and draft.start + count <= self._program.max_prompt_len:
                row = draft.row(count)
                specialization = self._program.table.choose_prefill(row.last_position)
                self._run(Batch(specialization, (row,), self._continuous), [draft])
                draft.cached.tokens = draft.start
                return

    def _step(self, active: Sequence[Draft]) -> None:
        """Run a few pending tokens of each sequence; those with none left get a drafted one."""
        width = min(self._width, max(len(draft.pending) for draft in active))
        rows = tuple(draft.row(width) for draft in active)
        by_id = {draft.ask.request_id: draft for draft in active}
        for batch in decode_batches(self._program, rows, skips_padding=self._session.skips_padding):
            self._run(batch, [by_id[row.request_id] for row in batch.rows])

    def _run(self, batch: Batch, drafts: Sequence[Draft]) -> None:
        logits = self._session.run_live(batch.inputs())
        for row, draft, own in zip(batch.rows, drafts, batch.logits_rows(logits), strict=True):
            draft.ran(len(row.token_ids), logits[own][-1, : self._vocab_size])
