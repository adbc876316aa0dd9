"""Who gets in, and with how large a body."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polybatch.server.errors import ApiError
from polybatch.server.respond import Message, Receive, Send

OPEN_PATHS = frozenset({"/", "/docs", "/health"})
OPEN_FOLDERS = ("/static/",)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, keys: Sequence[str], *, allow_unauthenticated: bool) -> None:
    """ValueError for a server that others could reach and that would let everybody in."""
    if not is_loopback(host) and not keys and not allow_unauthenticated:
        raise ValueError(
            f"--host {host} lets other machines in, and there is no API key; give --api-key-file, or "
            "--allow-unauthenticated if something else keeps strangers out"
        )


def read_keys(path: Path) -> tuple[str, ...]:
    """One key per line; empty lines and those that begin with # are skipped. ValueError when there is none."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError(f"{path} holds no API key; write one per line")
    return keys


class ApiKeys:
    """Middleware: ``Authorization: Bearer KEY`` everywhere but on the pages themselves and /health."""

    def __init__(self, app: Any, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and not _is_open(scope["path"]) and not self._lets_in(scope):
            error = ApiError(
                401,
                "give an API key of this server: Authorization: Bearer KEY",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _lets_in(self, scope: Any) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        # Every key is compared, each in a time that does not depend on where it differs.
        matches = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


_DISCARDED_BYTES = 1 << 20


class BodyLimit:
    """Middleware: 413 for a body beyond ``max_bytes``, declared or not, before it is all kept."""

    def __init__(self, app: Any, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await _discard(receive)
            await self._refusal().response()(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                if message.get("more_body"):
                    await _discard(receive)
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than the {self._max_bytes} bytes that this server takes",
            code="body_too_large",
            headers={"Connection": "close"},
        )


async def _discard(receive: Receive) -> None:
    """Take in what is left of a body, up to a bound: a client that is cut off while it sends may not see the answer."""
    left = _DISCARDED_BYTES
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body"):
            return
