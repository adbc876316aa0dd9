"""What an operator decides about a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerConfig:
    """Limits and access.

    model_name: what /v1/models calls the program. api_keys: any of them lets a request in; none lets all in.
    max_queue: requests that may wait for a slot. request_timeout_s: from arrival to the last token; None is no limit.
    max_body_bytes: of a request's body. max_choices: answers that one request may ask for, over all its prompts.
    drain_s: how long requests may go on after SIGTERM.
    """

    model_name: str
    api_keys: tuple[str, ...] = ()
    max_queue: int = 256
    request_timeout_s: float | None = 600.0
    max_body_bytes: int = 4 << 20
    max_choices: int = 128
    drain_s: float = 30.0
