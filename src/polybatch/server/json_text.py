"""JSON bytes of responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


def dumps(value: Any) -> bytes:
    """Compact UTF-8; a lone surrogate, which an error may quote from a request, stays the escape that it came as."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


class JsonResponse(Response):
    """A response of one JSON value."""

    media_type = "application/json"

    def __init__(self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(dumps(value), status_code, headers)
