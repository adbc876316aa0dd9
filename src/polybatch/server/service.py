"""The life of a server's engine, loading to draining, and the way of a request into it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from polybatch.engine import SamplingParams
from polybatch.errors import (
    EngineClosedError,
    EngineDrainingError,
    InvalidGrammarError,
    MissingExtraError,
    QueueFullError,
)
from polybatch.server import errors
from polybatch.server.answer import Answer, Mailbox
from polybatch.server.config import ServerConfig
from polybatch.server.metrics.latency import Latencies
from polybatch.server.model import ServedModel

_LOG = logging.getLogger("polybatch.server")
State = Literal["loading", "ready", "draining", "failed"]
Ask = tuple[Sequence[int], SamplingParams]
"""One choice: the token ids of its prompt, and how to sample."""


class Service:
    """Belongs to one event loop. load: makes the model, on another thread, so that /health can answer meanwhile."""

    def __init__(self, config: ServerConfig, load: Callable[[], ServedModel]) -> None:
        self.config = config
        self.latencies = Latencies()
        self.users: dict[int, str] = {}
        self.responses: Counter[int] = Counter()
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.model: ServedModel | None = None
        self._load = load
        self._state: State = "loading"
        self._mailbox: Mailbox | None = None
        self._loading: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        return self._state

    def start(self) -> None:
        """Begin to load the model; call it inside the running loop."""
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._loading = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            self.model = await asyncio.to_thread(self._load)
        except Exception as error:  # the operator hears of it; requests get 503
            self.failure = error
            self._state = "failed"
            self.on_failure()
        else:
            if self._state == "loading":
                self._state = "ready"

    def ready(self) -> ServedModel:
        """The model. Raises the 503 that says why there is none."""
        if self._state == "draining":
            raise errors.unavailable("this server is shutting down", "shutting_down", 5)
        if self._state == "failed":
            raise errors.unavailable("the program could not be loaded", "failed", 60)
        if self.model is None or self._state == "loading":
            raise errors.unavailable("the program is still being loaded", "loading")
        return self.model

    async def submit(self, asks: Sequence[Ask], *, streams: bool, user: str | None = None) -> Answer:
        """Queue all choices of a request, or none of them. Raises ApiError."""
        model = self.ready()
        room = model.slots + self.config.max_queue
        if len(asks) > room:
            raise errors.bad_request(f"n: {len(asks)} answers at once, and this server holds {room} in all", "n")
        assert self._mailbox is not None
        answer = Answer(self._mailbox, self.latencies, len(asks), streams=streams)
        requests = [(ids, params, answer.sink(choice)) for choice, (ids, params) in enumerate(asks)]
        try:
            if any(params.structured is not None for _, params in asks):  # a large grammar takes its time
                ids = await asyncio.to_thread(model.engine.submit, requests, timeout_s=self.config.request_timeout_s)
            else:
                ids = model.engine.submit(requests, timeout_s=self.config.request_timeout_s)
        except Exception as error:
            raise self._refusal(error) from error
        answer.started(lambda: self._abort(ids))
        if user is not None:
            self.users.update(dict.fromkeys(ids, user))
            answer.on_end(lambda: [self.users.pop(request_id, None) for request_id in ids])
        return answer

    def _abort(self, request_ids: Sequence[int]) -> None:
        assert self.model is not None
        for request_id in request_ids:
            self.model.engine.abort(request_id)

    def _refusal(self, error: Exception) -> Exception:
        if isinstance(error, QueueFullError):
            return errors.queue_full(f"the server is busy: {error}", self.retry_after_s())
        if isinstance(error, EngineDrainingError):
            return errors.unavailable("this server is shutting down", "shutting_down", 5)
        if isinstance(error, EngineClosedError):
            return errors.unavailable("the engine has stopped", "failed", 60)
        if isinstance(error, InvalidGrammarError):
            return errors.bad_request(str(error), "structured_outputs", "invalid_grammar")
        if isinstance(error, MissingExtraError):
            return errors.ApiError(501, str(error), kind="server_error", code="missing_extra")
        if isinstance(error, (ValueError, TypeError)):
            return errors.refused_value(error)
        return error

    def retry_after_s(self) -> int:
        """Seconds until a queue of this length has probably moved, 1 to 60."""
        done = sum(self.latencies.whole_request.counts)
        if not done or self.model is None:
            return 1
        mean_s = self.latencies.whole_request.sum / done
        return max(1, min(60, math.ceil(mean_s / self.model.slots)))

    async def drain(self) -> None:
        """Refuse new requests, let the others finish or run out of time, and close the engine."""
        self._state = "draining"
        if self._loading is not None:
            await asyncio.wait([self._loading])
        if self.model is None:
            return
        if not await asyncio.to_thread(self.model.engine.drain, self.config.drain_s):
            _LOG.warning("requests that were not done within %g s have been ended", self.config.drain_s)
        await asyncio.to_thread(self.model.engine.close)
