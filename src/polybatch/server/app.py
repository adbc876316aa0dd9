"""The routes of the server, as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from polybatch.server import errors
from polybatch.server.chat import create_chat_completion
from polybatch.server.completions import create_completion, encode
from polybatch.server.json_text import JsonResponse
from polybatch.server.metrics.collector import CONTENT_TYPE, exposition
from polybatch.server.page import page_file
from polybatch.server.schemas.chat import ChatBody
from polybatch.server.schemas.completions import CompletionBody
from polybatch.server.schemas.tokens import DetokenizeBody, TokenizeBody
from polybatch.server.security import ApiKeys, BodyLimit
from polybatch.server.service import Service
from polybatch.server.state import slots, snapshot

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is wrong; `error.param` names the field."},
    401: {"description": "No API key, or a wrong one."},
    404: {"description": "There is no such model."},
    413: {"description": "The body is too large."},
    429: {"description": "The queue is full; try again after `Retry-After` seconds."},
    500: {"description": "The request failed inside the engine."},
    503: {"description": "The program is being loaded, or the server shuts down."},
    504: {"description": "The request took longer than this server allows."},
}


def create_app(service: Service) -> FastAPI:
    """The application around a service, which it starts and which its owner drains."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.drain()

    # The framework's own pages at /docs would load their scripts from elsewhere.
    app = FastAPI(title="polybatch", version=version("polybatch"), lifespan=lifespan, docs_url=None, redoc_url=None)
    errors.install(app)
    app.add_middleware(BodyLimit, max_bytes=service.config.max_body_bytes)
    app.add_middleware(ApiKeys, keys=service.config.api_keys)
    _add_openai(app, service)
    _add_tokens(app, service)
    _add_state(app, service)
    _add_page(app, service)
    return app


def _add_openai(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions", tags=["OpenAI"], response_model=None, responses=_ERRORS)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continue prompts."""
        return await create_completion(body, request, service)

    @app.post("/v1/chat/completions", tags=["OpenAI"], response_model=None, responses=_ERRORS)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer a conversation."""
        return await create_chat_completion(body, request, service)

    @app.get("/v1/models", tags=["OpenAI"], response_model=None)
    async def models() -> Response:
        """The one model of this server."""
        return JsonResponse({"object": "list", "data": [_model_card(service)]})

    @app.get("/v1/models/{name:path}", tags=["OpenAI"], response_model=None, responses={404: _ERRORS[404]})
    async def model(name: str) -> Response:
        """The model of this name."""
        service.ready().check_name(name)
        return JsonResponse(_model_card(service))


def _model_card(service: Service) -> dict[str, Any]:
    model = service.ready()
    card = {"id": model.name, "object": "model", "created": model.created, "owned_by": "polybatch"}
    return card | {"max_model_len": model.ctx_len, "max_prompt_len": model.max_prompt_len}


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", tags=["tokens"], response_model=None, responses=_ERRORS)
    async def tokenize(body: TokenizeBody) -> Response:
        """Token ids of a text."""
        model = service.ready()
        model.check_name(body.model)
        ids = await encode(model, body.prompt, "prompt", special=body.add_special_tokens)
        strings = [model.token_texts(token_id)[0] for token_id in ids] if body.return_token_strs else None
        return JsonResponse({"count": len(ids), "max_model_len": model.ctx_len, "tokens": ids, "token_strs": strings})

    @app.post("/detokenize", tags=["tokens"], response_model=None, responses=_ERRORS)
    async def detokenize(body: DetokenizeBody) -> Response:
        """The text of token ids."""
        model = service.ready()
        model.check_name(body.model)
        model.check_ids(body.tokens, "tokens")
        return JsonResponse({"prompt": model.decode(body.tokens)})


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health", tags=["state"], response_model=None, responses={503: _ERRORS[503]})
    async def health() -> Response:
        """200 once requests are answered; 503 while the program is loaded and while the server shuts down."""
        return JsonResponse({"status": service.state}, 200 if service.state == "ready" else 503)

    @app.get("/version", tags=["state"], response_model=None)
    async def versions() -> Response:
        """Versions, and what the program is."""
        about = dict(service.model.about) if service.model is not None else {}
        return JsonResponse({"version": version("polybatch"), "program": about})

    @app.get("/metrics", tags=["state"], response_model=None)
    async def metrics() -> Response:
        """Counts and latencies in Prometheus' text format."""
        return Response(exposition(service), media_type=CONTENT_TYPE)

    @app.get("/slots", tags=["state"], response_model=None, responses={503: _ERRORS[503]})
    async def slot_states() -> Response:
        """Every slot of the cache: who holds it, how far it is, how fast."""
        return JsonResponse(slots(service))


def _add_page(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return page_file("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return page_file("docs.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def page_part(name: str) -> Response:
        return page_file(name)

    @app.get("/state", include_in_schema=False)
    async def page_state() -> Response:
        return JsonResponse(snapshot(service))
