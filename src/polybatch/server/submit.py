"""Temporary: until Engine.submit exists."""

from __future__ import annotations

from typing import Any


def submit(engine: Any, requests: Any, *, timeout_s: float | None) -> list[int]:
    if hasattr(engine, "submit"):
        return engine.submit(requests, timeout_s=timeout_s)
    sinks = iter([sink for _, _, sink in requests])
    ids = []

    class Handle:
        def __init__(self, request_id: int, prompt_token_ids: tuple[int, ...], abort: Any) -> None:
            self.request_id, self.prompt_token_ids, self.sink = request_id, prompt_token_ids, next(sinks)
            ids.append(request_id)

    engine._start(Handle, [engine._check(prompt, params) for prompt, params, _ in requests], timeout_s)
    return ids
