"""Errors in OpenAI's shape. No body says anything of files, code or traces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from polybatch.server.json_text import JsonResponse
from polybatch.server.schemas.chat import ChatBody
from polybatch.server.schemas.completions import CompletionBody

_FIRST_WORD = re.compile(r"^[a-z_]+\b")
_FIELDS = frozenset(CompletionBody.model_fields) | frozenset(ChatBody.model_fields)
_VALIDATOR = "Value error, "


class ApiError(HTTPException):
    """An answer that is an error. kind: OpenAI's ``type``. param: the field at fault. code: for programs to act on.

    An HTTPException, because the framework makes a 400 of any other exception while it reads a body.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.body = error_body(message, kind, param, code)

    def response(self) -> Response:
        return JsonResponse(self.body, self.status_code, self.headers)


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def refused_value(error: ValueError | TypeError) -> ApiError:
    """400 from an error of the engine's own checks, whose messages begin with the parameter's name."""
    return bad_request(str(error), _first_field(str(error)))


def unavailable(message: str, code: str, retry_after_s: int = 1) -> ApiError:
    """503: not yet, or not any more."""
    headers = {"Retry-After": str(retry_after_s)}
    return ApiError(503, message, kind="service_unavailable_error", code=code, headers=headers)


def queue_full(message: str, retry_after_s: int) -> ApiError:
    headers = {"Retry-After": str(retry_after_s)}
    return ApiError(429, message, kind="rate_limit_error", code="queue_full", headers=headers)


def timed_out(seconds: float) -> ApiError:
    """504; a client that tried again at once would only wait as long again."""
    message = f"the request did not finish within {seconds:g} s, the limit of this server; ask for fewer tokens"
    return ApiError(504, message, kind="timeout_error", code="request_timeout", headers={"x-should-retry": "false"})


def failed() -> ApiError:
    """500 of a step that raised; what it raised is in the server's log."""
    return ApiError(500, "the request failed inside the engine; the server's log says why", kind="server_error")


def install(app: FastAPI) -> None:
    """Give every error of ``app`` this shape."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: f"there is no {request.url.path} here; see /docs", 405: f"{request.method} is not allowed here"}
    message = messages.get(error.status_code, str(error.detail))
    code = "not_found" if error.status_code == 404 else None
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()


def _unexpected(request: Request, error: Exception) -> Response:
    # The web framework raises it again after this, and uvicorn then logs it.
    return ApiError(500, "internal error; the server's log has it", kind="server_error").response()


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return bad_request(
            f"the body is not JSON: {found[0].get('ctx', {}).get('error', 'it cannot be read')}"
        ).response()
    if not isinstance(error.body, dict):
        return bad_request("the body must be a JSON object, with Content-Type: application/json").response()
    # Of a union's branches, the one that got furthest is the one that was meant.
    param = max((_param(one, error.body) for one in found), key=lambda path: (path or "").count("."))
    reasons = dict.fromkeys(_reason(one) for one in found if _param(one, error.body) == param)
    if param is None:  # a rule about several fields: its text begins with the name of the first
        text = "; ".join(reasons)
        return bad_request(text, _first_field(text)).response()
    return bad_request(f"{param}: {' or: '.join(reasons)}", param).response()


def _first_field(message: str) -> str | None:
    word = _FIRST_WORD.match(message)
    return word[0] if word and word[0] in _FIELDS else None


def _reason(error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return "this server has no such field"
    text = str(error["msg"])
    if text.startswith(_VALIDATOR):
        return text[len(_VALIDATOR) :]
    return text[:1].lower() + text[1:]


def _param(error: Mapping[str, Any], body: Any) -> str | None:
    """``messages.0.content`` of a location, leaving out pydantic's names for the branches of a union."""
    path: list[str] = []
    at = body
    for part in error["loc"][1:]:
        inside = (isinstance(at, dict) and part in at) or (isinstance(at, list) and part in range(len(at)))
        if inside:
            at = at[part]
        elif not (error["type"] == "missing" and part == error["loc"][-1]):
            continue
        path.append(str(part))
    return ".".join(path)[:200] or None
