"""A server of a mock program on a free port, in a thread of the test's process."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from functools import cached_property
from typing import Any

import openai
from server.scripted_program import TOKENIZER_SIZE, ScriptedProgram

from polybatch.engine import Engine, PromptLookup
from polybatch.server.config import ServerConfig
from polybatch.server.model import ServedModel
from polybatch.server.run import DrainingServer, listen, url_of
from polybatch.server.service import Service

NAME = "scripted"


class LiveServer:
    """Use it as a context manager. Attributes of ``config`` are those of ServerConfig."""

    def __init__(
        self,
        program: ScriptedProgram | None = None,
        *,
        load: Callable[[], ServedModel] | None = None,
        speculation: PromptLookup | None = None,
        **config: Any,
    ) -> None:
        self.program = program or ScriptedProgram()
        self._speculation = speculation
        self.config = ServerConfig(NAME, **config)
        self.service = Service(self.config, load or self.open_model)
        self._server = DrainingServer(self.service)
        self._listener = listen("127.0.0.1", 0)
        self.url = url_of(self._listener)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})

    def open_model(self) -> ServedModel:
        mock = self.program.mock
        engine = Engine(mock, self._speculation, max_queue=self.config.max_queue)
        self.session.delay_s = self.program.delay_s
        return ServedModel(
            NAME,
            engine,
            mock.tokenizer(),
            max_prompt_len=mock.ctx_len - 1,
            ctx_len=mock.ctx_len,
            vocab_size=TOKENIZER_SIZE,
            slots=mock.full_batch_size,
            about={"specializations": [row.name for row in mock.table.rows]},
        )

    @property
    def session(self) -> Any:
        """The mock session, whose ``fault`` and ``delay_s`` tests set."""
        return self.program.mock.last_session

    @property
    def stats(self) -> Any:
        assert self.service.model is not None
        return self.service.model.engine.stats

    @cached_property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        if self.service.state == "loading":
            wait_until(lambda: self._server.started)
        return self

    def ready(self) -> LiveServer:
        wait_until(lambda: self.service.state == "ready")
        return self

    def begin_shutdown(self) -> None:
        """What SIGTERM does."""
        self._server.handle_exit(15, None)

    def __exit__(self, *_: object) -> None:
        if "client" in vars(self):
            self.client.close()
        if self._thread.is_alive():
            self._server.stop()
            self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"

    def call(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, Any, Message]:
        """Status, body (JSON where it is, else text) and headers. A body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | (headers or {})
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, _parsed(response.read()), response.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _parsed(error.read()), error.headers


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()


def wait_until(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.002)


class Both:
    """One endpoint under the same calls as the other, so that a test can run on both."""

    def __init__(self, server: LiveServer, name: str) -> None:
        self.server = server
        self.path = f"/v1/{name}"
        self._chat = name == "chat/completions"

    def body(self, text: str, **fields: Any) -> dict[str, Any]:
        prompt = {"messages": [{"role": "user", "content": text}]} if self._chat else {"prompt": text}
        return {"model": NAME, "temperature": 0, "max_tokens": 16} | prompt | fields

    def prompt(self, text: str) -> str:
        """The text that the model reads."""
        from server.scripted_program import chat_prompt

        return chat_prompt(text) if self._chat else text

    def text_of(self, choice: dict[str, Any]) -> str:
        if "delta" in choice:
            return choice["delta"].get("content") or ""
        return choice["message"]["content"] if self._chat else choice["text"]

    def whole(self, text: str, **fields: Any) -> tuple[str, str]:
        """Text and finish reason of one answer."""
        status, reply, _ = self.server.call(self.path, self.body(text, **fields))
        assert status == 200, reply
        (choice,) = reply["choices"]
        return self.text_of(choice), choice["finish_reason"]

    def stream(self, text: str, **fields: Any) -> list[dict[str, Any]]:
        """The choices of a stream's chunks."""
        status, raw, _ = self.server.call(self.path, self.body(text, stream=True, **fields))
        assert status == 200, raw
        lines = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]

    def streamed(self, text: str, **fields: Any) -> tuple[list[str], str]:
        """The pieces of text, without empty ones, and the finish reason."""
        chunks = self.stream(text, **fields)
        return [piece for chunk in chunks if (piece := self.text_of(chunk))], chunks[-1]["finish_reason"]
