"""POST /v1/completions: prompts continued."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from polybatch.engine import Completion, Delta, TokenLogprobs
from polybatch.server.errors import bad_request
from polybatch.server.json_text import JsonResponse
from polybatch.server.logprobs import CompletionLogprobs
from polybatch.server.model import ServedModel
from polybatch.server.params import for_choice, sampling_params
from polybatch.server.replies import FINISH, ChunkFrame, Identity, usage
from polybatch.server.respond import EventStream, completions
from polybatch.server.schemas.completions import CompletionBody
from polybatch.server.service import Service

DEFAULT_MAX_TOKENS = 16  # OpenAI's, of this endpoint
LONG_TEXT = 20_000  # characters; tokenizing more would hold up the streams of others


@dataclass(frozen=True)
class _Prompt:
    """A prompt as token ids; text is its text where the reply repeats it."""

    token_ids: list[int]
    text: str


async def create_completion(body: CompletionBody, request: Request, service: Service) -> Response:
    """Continue each prompt ``n`` times."""
    model = service.ready()
    model.check_name(body.model)
    if len(body.prompts) * body.choices > service.config.max_choices:
        raise bad_request(
            f"n: {len(body.prompts)} prompts with n={body.choices} make {len(body.prompts) * body.choices} answers, "
            f"and one request may ask for {service.config.max_choices}",
            "n",
        )
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling_params(body, model, max_tokens=max_tokens, logprobs=body.logprobs)
    prompts = [await _prompt(prompt, body, model) for prompt in body.prompts]
    asks = [(prompt.token_ids, for_choice(params, n)) for prompt in prompts for n in range(body.choices)]
    reply = _Reply(body, model, prompts)
    answer = await service.submit(asks, streams=bool(body.stream), user=body.user)
    timeout_s = service.config.request_timeout_s
    if body.stream:
        return EventStream(answer, reply, timeout_s)
    return reply.whole(await completions(request.receive, answer, len(asks), timeout_s))


async def _prompt(prompt: str | list[int], body: CompletionBody, model: ServedModel) -> _Prompt:
    text = ""
    if isinstance(prompt, str):
        token_ids, text = await encode_prompt(model, prompt, "prompt"), prompt
    else:
        token_ids = prompt
    model.check_prompt(token_ids, "prompt")
    if body.echo and not isinstance(prompt, str):
        text = model.decode(token_ids)
    return _Prompt(token_ids, text if body.echo else "")


async def encode_prompt(model: ServedModel, text: str, param: str, *, special: bool = True) -> list[int]:
    """Token ids of a prompt, 400 for one that no program of this size can take."""
    model.require_tokenizer(param)
    if len(text) >= LONG_TEXT:
        model.check_length(text, param)
    return await encode(model, text, param, special=special)


async def encode(model: ServedModel, text: str, param: str, *, special: bool = True) -> list[int]:
    """Token ids of a text; the loop waits neither for a long one nor for a thread that is at one."""
    if len(text) < LONG_TEXT and not model.is_encoding:
        return model.encode(text, param, special=special)
    return await asyncio.to_thread(model.encode, text, param, special=special)


class _Reply:
    """The reply in one piece, or as a writer of its chunks."""

    def __init__(self, body: CompletionBody, model: ServedModel, prompts: Sequence[_Prompt]) -> None:
        self._identity = Identity("cmpl", "text_completion", model.name)
        self._frame = ChunkFrame(self._identity, include_usage=body.include_usage)
        self._echo = [prompt.text for prompt in prompts for _ in range(body.choices)]
        self._prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._logprobs = None
        if body.logprobs is not None:
            self._logprobs = [CompletionLogprobs(model.token_texts) for _ in self._echo]
        self._held: dict[int, list[TokenLogprobs]] = {}
        self._ended: list[Completion] = []

    def whole(self, ended: Sequence[Completion]) -> Response:
        choices = [self._choice(index, completion) for index, completion in enumerate(ended)]
        return JsonResponse(self._identity.body(choices, usage(self._prompt_tokens, ended)))

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        return {
            "index": index,
            "text": self._echo[index] + completion.text,
            "logprobs": self._taken(index, completion.logprobs),
            "finish_reason": FINISH[completion.finish_reason],
        }

    def _taken(self, index: int, tokens: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        return None if self._logprobs is None else self._logprobs[index].take(tokens or ())

    def delta(self, choice: int, delta: Delta) -> bytes:
        text = delta.text
        if self._echo[choice]:
            text, self._echo[choice] = self._echo[choice] + text, ""
        if self._logprobs is None and delta.finish_reason is None:
            return self._frame.fast(self._frame.start(choice, b'"text":'), text, _OPEN_END) if text else b""
        held = self._held.setdefault(choice, [])
        held += delta.logprobs or ()
        if not text and delta.finish_reason is None:
            return b""  # its logprobs go with the text that they belong to
        chunk = {"index": choice, "text": text, "logprobs": self._taken(choice, held)}
        self._held[choice] = []
        return self._frame.chunk(chunk | {"finish_reason": FINISH.get(delta.finish_reason or "")})

    def end(self, choice: int, completion: Completion) -> bytes:
        self._ended.append(completion)
        return b""

    def close(self) -> bytes:
        return self._frame.usage(usage(self._prompt_tokens, self._ended))


_OPEN_END = b',"logprobs":null,"finish_reason":null}'
