"""POST /v1/chat/completions: the next message of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from polybatch.engine import Completion, Delta, TokenLogprobs
from polybatch.server.completions import encode_prompt
from polybatch.server.errors import bad_request
from polybatch.server.json_text import JsonResponse
from polybatch.server.logprobs import TokenTexts, chat_logprobs
from polybatch.server.model import ServedModel
from polybatch.server.params import for_choice, sampling_params
from polybatch.server.replies import FINISH, ChunkFrame, Identity, usage
from polybatch.server.respond import EventStream, completions
from polybatch.server.schemas.chat import ChatBody
from polybatch.server.service import Service
from polybatch.server.template import render
from polybatch.server.tools.forced import forced_call
from polybatch.server.tools.reader import ToolReader, read_all
from polybatch.server.tools.syntax import Call


async def create_chat_completion(body: ChatBody, request: Request, service: Service) -> Response:
    """Answer a conversation ``n`` times."""
    model = service.ready()
    model.check_name(body.model)
    if body.choices > service.config.max_choices:
        raise bad_request(f"n: at most {service.config.max_choices} answers per request", "n")
    text = render(model, body)
    token_ids = await encode_prompt(
        model, text, "messages", special=False
    )  # the template writes its own special tokens
    model.check_prompt(token_ids, "messages")
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = sampling_params(body, model, max_tokens=wanted, logprobs=logprobs, structured=forced_call(body))
    asks = [(token_ids, for_choice(params, n)) for n in range(body.choices)]
    reply = _Reply(body, model, len(token_ids))
    answer = await service.submit(asks, streams=bool(body.stream), user=body.user)
    timeout_s = service.config.request_timeout_s
    if body.stream:
        return EventStream(answer, reply, timeout_s)
    return reply.whole(await completions(request.receive, answer, len(asks), timeout_s))


class _Reply:
    """The reply in one piece, or as a writer of its chunks."""

    def __init__(self, body: ChatBody, model: ServedModel, prompt_tokens: int) -> None:
        self._identity = Identity("chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion", model.name)
        self._frame = ChunkFrame(self._identity, include_usage=body.include_usage)
        self._prompt_tokens = prompt_tokens
        self._texts: TokenTexts | None = model.token_texts if body.logprobs else None
        self._body = body
        self._readers: dict[int, ToolReader] = {}
        self._begun: set[int] = set()
        self._ended: list[Completion] = []

    def whole(self, ended: Sequence[Completion]) -> Response:
        choices = [self._choice(index, completion) for index, completion in enumerate(ended)]
        return JsonResponse(self._identity.body(choices, usage(self._prompt_tokens, ended)))

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        content, calls = completion.text, list[Call]()
        if self._reads_calls:
            content, calls = read_all(self._body, completion.text)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        reason = FINISH[completion.finish_reason]
        if calls:
            message |= {"content": content or None, "tool_calls": [call.to_json() for call in calls]}
            reason = "tool_calls" if reason == "stop" else reason
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": reason,
        }

    @property
    def _reads_calls(self) -> bool:
        return bool(self._body.tools) and self._body.tool_choice != "none"

    def _logprobs(self, tokens: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        if self._texts is None:
            return None
        return {"content": chat_logprobs(self._texts, tokens or ()), "refusal": None}

    def delta(self, choice: int, delta: Delta) -> bytes:
        opening = b""
        if choice not in self._begun:
            self._begun.add(choice)
            opening = self._chunk(choice, {"role": "assistant", "content": ""})
        if self._reads_calls or self._texts is not None:
            return opening + self._slow(choice, delta)
        text, end = b"", b""
        if delta.text:
            text = self._frame.fast(self._frame.start(choice, b'"delta":{"content":'), delta.text, _OPEN_END)
        if delta.finish_reason is not None:
            end = self._chunk(choice, {}, reason=FINISH[delta.finish_reason])
        return opening + text + end

    def _slow(self, choice: int, delta: Delta) -> bytes:
        """With tool calls to look for, or log-probabilities."""
        logprobs, chunks = self._logprobs(delta.logprobs), []
        if not self._reads_calls:
            if delta.text or delta.token_ids:
                chunks.append(self._chunk(choice, {"content": delta.text}, logprobs))
            return b"".join([*chunks, self._finish(choice, delta, False)])
        reader = self._readers.setdefault(choice, ToolReader(self._body))
        text, calls = reader.feed(delta.text, last=delta.finish_reason is not None)
        if text or (logprobs and logprobs["content"]):
            chunks.append(self._chunk(choice, {"content": text}, logprobs))
        chunks += [self._chunk(choice, {"tool_calls": [call.to_json() | {"index": at}]}) for at, call in calls]
        return b"".join([*chunks, self._finish(choice, delta, reader.found)])

    def _finish(self, choice: int, delta: Delta, called: bool) -> bytes:
        if delta.finish_reason is None:
            return b""
        reason = FINISH[delta.finish_reason]
        return self._chunk(choice, {}, reason="tool_calls" if called and reason == "stop" else reason)

    def _chunk(self, choice: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None) -> bytes:
        return self._frame.chunk({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason})

    def end(self, choice: int, completion: Completion) -> bytes:
        self._ended.append(completion)
        return b""

    def close(self) -> bytes:
        return self._frame.usage(usage(self._prompt_tokens, self._ended))


_OPEN_END = b'},"logprobs":null,"finish_reason":null}'
