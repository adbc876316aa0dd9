"""The engine without its thread: requests in, one step at a time, events out."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Sequence
from typing import Literal

from polybatch.engine.admission import Admission
from polybatch.engine.batch import Batch, StepRow, best_tokens, decode_batches
from polybatch.engine.detokenizer import Detokenizer, TokenTexts
from polybatch.engine.prefixes import PrefixReuse
from polybatch.engine.protocols import Logits, ProgramLike, SessionLike, TokenizerLike
from polybatch.engine.request import Delta, FinishReason, Request
from polybatch.engine.scheduler import LiveRequest, PlannedRow, Scheduler, StepPlan
from polybatch.engine.sequence import Sequence as LiveSequence
from polybatch.engine.speculation.speculator import Speculator
from polybatch.engine.stats import SlotState, StatsCollector
from polybatch.errors import ProgramError

_Clock = Callable[[], float]
_SPARE_DEADLINES = 64


class EngineCore:
    """Scheduler, sequences and session of one engine; every call must come from the same thread.

    An exception in a step fails the requests of that step and nothing else. What may be wrong with the program itself
    is read here, so that it raises before there is any request.
    """

    def __init__(
        self,
        program: ProgramLike,
        session: SessionLike,
        tokenizer: TokenizerLike | None,
        stats: StatsCollector,
        clock: _Clock = time.perf_counter,
        speculator: Speculator | None = None,
        admission: Admission | None = None,
        prefix_cache: bool = False,
    ) -> None:
        self._program = program
        self._session = session
        self._eos_token_ids = eos_token_ids(program)
        self._texts = None if tokenizer is None else TokenTexts(tokenizer)
        self._stats = stats
        self._clock = clock
        self._speculator = speculator
        self._continuous = program.table.config.continuous_batching
        self.scheduler = Scheduler(
            program.full_batch_size,
            program.prefill_seq_len,
            continuous=self._continuous,
            prefixes=self._prefixes(program, session) if prefix_cache else None,
        )
        self._admission = admission
        self._sequences: dict[int, LiveSequence] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap; requests that have ended are left in it

    def _prefixes(self, program: ProgramLike, session: SessionLike) -> PrefixReuse:
        def tokens(request_id: int, start: int, count: int) -> tuple[int, ...]:
            return self._sequences[request_id].tokens(start, count)

        return PrefixReuse(program.full_batch_size, program.ctx_len, tokens, copies=session.copies_slots)

    def add(self, requests: Sequence[Request]) -> None:
        """Queue validated requests next to each other; an exception fails all of them and nothing else."""
        try:
            for request in requests:
                self._queue(request)
        except BaseException as error:  # nobody else knows these requests yet, so they must hear of it here
            for request in requests:
                with contextlib.suppress(Exception):  # one that cannot be freed must not keep the rest waiting
                    self._reject(request, error)
            if not isinstance(error, Exception):
                raise

    def _queue(self, request: Request) -> None:
        detokenizer = None if self._texts is None else Detokenizer(self._texts)
        self._sequences[request.request_id] = LiveSequence(
            request,
            ctx_len=self._program.ctx_len,
            eos_token_ids=self._eos_token_ids,
            detokenizer=detokenizer,
        )
        self.scheduler.add(request.request_id, len(request.prompt_token_ids))
        if request.deadline_s is not None:
            self._set_deadline(request.request_id, request.deadline_s)
        self._report_load()

    def abort(self, request_id: int) -> None:
        """End a request, queued or live, with finish_reason "abort"; one that has ended already is left alone."""
        self._end(request_id, "abort")

    def slots(self) -> tuple[SlotState, ...]:
        """What every slot does; may be called from any thread."""
        return tuple(self._slot(slot, live) for slot, live in enumerate(self.scheduler.occupants))

    def _slot(self, slot: int, live: LiveRequest | None) -> SlotState:
        sequence = None if live is None else self._sequences.get(live.request_id)
        if live is None or sequence is None:
            return SlotState(slot, None, self.scheduler.kept_tokens(slot))
        generated, now = len(sequence.token_ids), self._clock()
        elapsed_s = now - (now if sequence.first_token_s is None else sequence.first_token_s)
        speed = (generated - 1) / elapsed_s if generated > 1 and elapsed_s > 0 else None
        return SlotState(slot, live.request_id, live.cached_tokens, live.prompt_tokens, generated, speed)

    def fail_all(self, error: Exception) -> None:
        """End every request with ``error``, whatever state an error in the engine has left behind."""
        for request_id in list(self._sequences):
            with contextlib.suppress(Exception):  # the others must hear of the end too
                self._fail(request_id, error)

    def step(self) -> bool:
        """Run one prefill chunk or one decode step; False when there was nothing to do."""
        self._end_overdue()
        plan = self.scheduler.plan()
        self._report_load()
        if plan is None:
            return False
        rows = tuple(self._step_row(row) for row in plan.rows)
        try:
            for copy in plan.copies:
                self._session.copy_slot(copy.source, copy.target, copy.positions)
            if plan.phase == "decode" and self._speculator is not None:
                rows = self._speculator.propose(rows, self._sequences)
            batches = self._batches(plan, rows)
        except Exception as error:  # the rows cannot run; the others can
            self._fail_step(rows, error)
            return True
        for batch in batches:
            self._run(batch)
        return True

    def _step_row(self, row: PlannedRow) -> StepRow:
        tokens = self._sequences[row.request_id].tokens(row.start, row.count)
        return StepRow(row.request_id, row.slot, row.start, tokens)

    def _batches(self, plan: StepPlan, rows: tuple[StepRow, ...]) -> list[Batch]:
        if plan.phase == "prefill":
            specialization = self._program.table.choose_prefill(max(row.last_position for row in rows))
            return [Batch(specialization, rows, self._continuous)]
        return decode_batches(self._program, rows, skips_padding=self._session.skips_padding)

    def _run(self, batch: Batch) -> None:
        started = self._clock()
        try:
            logits = self._session.run_live(batch.inputs())
        except Exception as error:  # whatever a step raises belongs to its rows
            self._fail_step(batch.rows, error)
            return
        step_ms = (self._clock() - started) * 1e3
        self._stats.step(batch.specialization, len(batch.rows), batch.padding_rows, step_ms)
        if self._speculator is not None and batch.specialization.phase == "decode":
            self._speculator.ran(batch)
        best = best_tokens(logits)
        for row, own in zip(batch.rows, batch.logits_rows(logits), strict=True):
            try:
                self._advance(row, logits[own], best[own])
            except Exception as error:  # a sampler or tokenizer error is this row's alone
                self._fail(row.request_id, error)

    def _advance(self, row: StepRow, logits: Logits, best: Sequence[int | None]) -> None:
        """Record a row that ran; once its prompt is cached, choose tokens from float32 [1 + proposed, vocab].

        best: the most probable token of each, None where it is not finite.
        """
        sequence = self._sequences[row.request_id]
        if row.start < len(sequence.request.prompt_token_ids):
            self._count_prompt(sequence, row)
            if not self.scheduler.advance(row.request_id, len(row.token_ids)):
                return
            delta = sequence.extend(logits, best)
            sequence.first_token_s = self._clock()
        else:
            delta = sequence.extend(logits, best, row.proposal)
            self.scheduler.advance(row.request_id, len(delta.token_ids))  # what was not accepted is written over
            if self._speculator is not None:
                self._speculator.score(row, delta.token_ids)
        self._stats.tokens(generated=len(delta.token_ids))
        if delta.finish_reason is None:
            sequence.request.emit(delta)
        else:
            self._finish(delta, delta.finish_reason)

    def _count_prompt(self, sequence: LiveSequence, row: StepRow) -> None:
        if sequence.reused_tokens is None:  # its first chunk
            sequence.reused_tokens = row.start
            self._stats.reused(row.start)
        self._stats.tokens(prompt=len(row.token_ids))

    def _set_deadline(self, request_id: int, deadline_s: float) -> None:
        if len(self._deadlines) > 2 * len(self._sequences) + _SPARE_DEADLINES:  # most have ended long before
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._sequences]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline_s, request_id))

    def _end_overdue(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            self._end(heapq.heappop(self._deadlines)[1], "timeout")

    def _end(self, request_id: int, reason: Literal["abort", "timeout"]) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return
        try:
            delta = sequence.cut(reason)
        except Exception as error:  # the tokenizer could not decode the rest
            self._fail(request_id, error)
        else:
            self._finish(delta, reason)

    def _finish(self, delta: Delta, reason: FinishReason) -> None:
        sequence = self._sequences[delta.request_id]
        counts = None if self._speculator is None else self._speculator.stats(delta.request_id)
        completion = sequence.completion(reason, counts)
        self._release(delta.request_id, reason)
        sequence.request.emit(delta)
        sequence.request.emit(completion)

    def _fail_step(self, rows: Sequence[StepRow], error: Exception) -> None:
        self._stats.failed_step()
        for row in rows:
            self._fail(row.request_id, error)

    def _fail(self, request_id: int, error: BaseException) -> None:
        request = self._sequences[request_id].request
        try:
            self._release(request_id, "error")
        finally:
            request.emit(error)

    def _reject(self, request: Request, error: BaseException) -> None:
        """Fail a request of which any part, or none, may have been queued."""
        if request.request_id in self._sequences:
            self._fail(request.request_id, error)
        else:
            self._leave("error")
            request.emit(error)

    def _release(self, request_id: int, outcome: str) -> None:
        """Free everything the request holds, before its caller hears of the end."""
        self.scheduler.remove(request_id, failed=outcome == "error")
        del self._sequences[request_id]
        if self._speculator is not None:
            self._speculator.forget(request_id)
        self._leave(outcome)
        self._report_load()

    def _leave(self, outcome: str) -> None:
        self._stats.finished(outcome)
        if self._admission is not None:
            self._admission.leave()

    def _report_load(self) -> None:
        self._stats.load(self.scheduler.live_count, self.scheduler.waiting_count)


def eos_token_ids(program: ProgramLike) -> tuple[int, ...]:
    """The program's EOS ids that a step can choose. Raises the program's own error, or ProgramError for non-ints."""
    given = program.eos_token_ids
    if isinstance(given, str) or not all(isinstance(token, int) and not isinstance(token, bool) for token in given):
        raise ProgramError(f"the program has eos_token_ids {given!r}, not ints; recompile the program")
    size = program.vocab_size
    return tuple(token for token in given if token >= 0 and (size is None or token < size))
