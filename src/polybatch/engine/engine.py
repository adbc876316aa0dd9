"""Engine: continuous batching of many requests on one compiled program."""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from polybatch.engine.admission import Admission
from polybatch.engine.checks import as_number
from polybatch.engine.core import EngineCore, eos_token_ids
from polybatch.engine.handle import AsyncRequestHandle, RequestHandle
from polybatch.engine.intake import CheckedRequest, Intake
from polybatch.engine.process import OwnerProcess
from polybatch.engine.prompts import Prompt
from polybatch.engine.protocols import ProgramLike
from polybatch.engine.request import Completion, Event, Request
from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.speculation.proposer import Speculation
from polybatch.engine.speculation.speculator import open_speculator
from polybatch.engine.stats import EngineStats, SlotState, StatsCollector
from polybatch.engine.worker import Worker

_Handle = TypeVar("_Handle", RequestHandle, AsyncRequestHandle)


class Engine:
    """Runs requests on a program, as many at once as it has slots, on a thread of its own.

    Every method may be called from any thread of the process that made it (not from a fork, which has no such thread:
    there every method but ``close`` raises EngineClosedError). Close it, or use it as a context manager.

    program: what to run. threads: passed to ``program.session``.
    speculation: PromptLookup() or DraftModel(program); None decodes one token at a time. It changes no greedy answer
        and no distribution that tokens are sampled from. fixed_k: draft up to this many tokens in every step, instead
        of the K that promises most. ValueError when the program has no rows for it.
    max_queue: most requests that may wait for a slot; None lets any number wait.
    prefix_cache: let a request start from what a slot holds of its prompt (continuous batching only); slots keep what
        they hold until they are needed.

    All methods that take prompts raise, before anything is queued: ValueError for an empty or too long prompt, a token
    id (in the prompt or in logit_bias) outside the vocabulary, text that UTF-8 cannot encode, or stop strings without a
    tokenizer; InvalidGrammarError (a ValueError) for a structured output that makes no sense, MissingExtraError for one
    without llguidance; TypeError for what is no prompt or no SamplingParams; ProgramError for text or a structured
    output without a tokenizer; EngineClosedError after ``close``, EngineDrainingError after ``drain``, and
    QueueFullError when there is no room in the queue for all of the prompts.
    """

    def __init__(
        self,
        program: ProgramLike,
        speculation: Speculation | None = None,
        *,
        fixed_k: int | None = None,
        threads: int | None = None,
        max_queue: int | None = None,
        prefix_cache: bool = True,
    ) -> None:
        self._owner = OwnerProcess()
        self._intake = Intake(program, eos_token_ids(program))
        self._ids = itertools.count()
        self._admission = Admission(program.full_batch_size, max_queue)
        opened = contextlib.ExitStack()
        try:
            session = program.session(threads)
            opened.callback(session.close)
            speculator = open_speculator(program, speculation, fixed_k, threads, skips_padding=session.skips_padding)
            if speculator is not None:
                opened.callback(speculator.close)
            self._stats = StatsCollector(None if speculator is None else speculator.total, program.full_batch_size)
            self._core = EngineCore(
                program,
                session,
                self._intake.tokenizer,
                self._stats,
                speculator=speculator,
                admission=self._admission,
                prefix_cache=prefix_cache,
            )
            self._worker = Worker(self._core, opened.close, self._admission)
        except BaseException:
            opened.close()
            raise
        # The worker does not know this object, so an engine that is dropped, or alive at exit, closes too.
        self._finalizer = weakref.finalize(self, self._worker.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Run the prompts and return their completions in the order given; blocks.

        prompts: one prompt of any kind, or a list. params: one for all, or one per prompt.
        RequestFailedError (a step of one raised) or an interrupt aborts the rest and is raised; ``add_request`` gives
        each request's outcome by itself.
        """
        handles: list[RequestHandle] = []
        try:
            handles += self._start(RequestHandle, self._check_all(prompts, params))
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.abort()
            raise

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout_s: float | None = None
    ) -> RequestHandle:
        """Start one request and iterate over its deltas; closing or dropping the iterator aborts the request."""
        return self.add_request(prompt, params, timeout_s=timeout_s)

    def add_request(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout_s: float | None = None
    ) -> RequestHandle:
        """Queue one request and return at once; the handle iterates, waits for the result, or aborts.

        timeout_s: after so many seconds, queued or running, the request ends with finish_reason "timeout" and what it
            has so far; None is no limit.
        """
        return self._start(RequestHandle, [self._check(prompt, params)], timeout_s)[0]

    def submit(
        self,
        requests: Sequence[tuple[Prompt, SamplingParams | None, Callable[[Event], None]]],
        *,
        timeout_s: float | None = None,
    ) -> list[int]:
        """Queue requests next to each other, all or none, and return their ids; for servers, which need no handles.

        Each request's sink is called from the engine's thread with every Delta, then with its Completion or with what
        it failed with. It must neither block nor raise. Nobody aborts a request but ``abort`` and ``timeout_s``.
        """
        checked = [self._check(prompt, params) for prompt, params, _ in requests]
        ids = [next(self._ids) for _ in requests]
        self._queue(ids, checked, [sink for _, _, sink in requests], timeout_s)
        return ids

    async def agenerate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """``generate`` for asyncio; cancelling it aborts the requests."""
        handles: list[AsyncRequestHandle] = []
        try:
            handles += self._start(AsyncRequestHandle, self._check_all(prompts, params))
            return [await handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.abort()
            raise

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, timeout_s: float | None = None
    ) -> AsyncRequestHandle:
        """``stream`` for asyncio; call it inside a running event loop. Cancelling the reader aborts the request."""
        return self._start(AsyncRequestHandle, [self._check(prompt, params)], timeout_s)[0]

    def abort(self, request_id: int) -> None:
        """End a request before its next step, with finish_reason "abort"; one that has ended is left alone."""
        self._owner.check()
        self._worker.abort(request_id)

    @property
    def stats(self) -> EngineStats:
        """A snapshot of what the engine has done and holds."""
        self._owner.check()
        return self._stats.snapshot()

    def slots(self) -> tuple[SlotState, ...]:
        """What every slot does now: whose it is, how far that request is, and how fast."""
        self._owner.check()
        return self._core.slots()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take no more requests and wait for those that are there; False if some are left after ``timeout_s``.

        From then on requests get EngineDrainingError. Call ``close`` afterwards; it fails what is left.
        """
        self._owner.check()
        return self._admission.drain(timeout_s)

    def close(self) -> None:
        """Stop after the current step; pending requests get EngineClosedError. May be called again."""
        self._worker.close()

    def _start(
        self, kind: type[_Handle], checked: Sequence[CheckedRequest], timeout_s: float | None = None
    ) -> list[_Handle]:
        ids = [next(self._ids) for _ in checked]
        handles = [
            kind(request_id, request.prompt_token_ids, self.abort)
            for request_id, request in zip(ids, checked, strict=True)
        ]
        self._queue(ids, checked, [handle.sink for handle in handles], timeout_s)
        return handles

    def _queue(
        self,
        ids: Sequence[int],
        checked: Sequence[CheckedRequest],
        sinks: Sequence[Callable[[Event], None]],
        timeout_s: float | None,
    ) -> None:
        deadline_s = None if timeout_s is None else time.perf_counter() + as_number("timeout_s", timeout_s, 0)
        self._worker.submit(
            [
                Request(request_id, one.prompt_token_ids, one.params, sink, deadline_s, one.constraint)
                for request_id, one, sink in zip(ids, checked, sinks, strict=True)
            ]
        )

    def _check(self, prompt: Prompt, params: SamplingParams | None) -> CheckedRequest:
        self._owner.check()
        return self._intake.check(prompt, params)

    def _check_all(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[CheckedRequest]:
        self._owner.check()
        return self._intake.check_all(prompts, params)
