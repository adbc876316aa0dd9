"""What both endpoints' replies share: identity, usage, and the fixed parts of streamed chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any

from polybatch.engine import Completion
from polybatch.server.json_text import dumps

_DATA, _END = b"data: ", b"\n\n"
FINISH = {"stop": "stop", "length": "length", "abort": "stop", "timeout": "length"}


@dataclass(frozen=True)
class Identity:
    """What every piece of one reply repeats."""

    prefix: str
    kind: str
    model: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.id or f"{self.prefix}-{secrets.token_hex(12)}")

    def head(self) -> dict[str, Any]:
        return {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}

    def body(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """A whole reply."""
        return self.head() | {"choices": choices, "usage": usage}


def usage(prompt_tokens: int, completions: Iterable[Completion]) -> dict[str, Any]:
    """Token counts; a prompt counts once, however many choices it has. cached_tokens: those that were not run again."""
    generated = cached = 0
    for completion in completions:
        generated += len(completion.token_ids)
        cached += completion.reused_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": min(cached, prompt_tokens)},
    }


def json_string(text: str) -> bytes:
    """A JSON string; the fast path of streaming."""
    encoded: str = encode_basestring(text)
    return encoded.encode("utf-8", "backslashreplace")


class ChunkFrame:
    """The bytes of ``data:`` lines. include_usage: every chunk then says ``"usage":null`` but for the last."""

    def __init__(self, identity: Identity, *, include_usage: bool) -> None:
        self._head = _DATA + dumps(identity.head())[:-1] + b',"choices":['
        self._tail = (b'],"usage":null}' if include_usage else b"]}") + _END
        self._include_usage = include_usage
        self._starts: dict[int, bytes] = {}

    def start(self, choice: int, opening: bytes) -> bytes:
        """Everything before the text of a choice: ``opening`` begins after its index."""
        known = self._starts.get(choice)
        if known is None:
            known = self._starts[choice] = self._head + b'{"index":%d,' % choice + opening
        return known

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """One chunk with one choice."""
        return self._head + dumps(choice) + self._tail

    def fast(self, start: bytes, text: str, closing: bytes) -> bytes:
        """A chunk put together from its fixed parts and a text."""
        return start + json_string(text) + closing + self._tail

    def usage(self, counts: dict[str, Any]) -> bytes:
        """The last chunk, where usage was asked for."""
        if not self._include_usage:
            return b""
        return self._head + b'],"usage":' + dumps(counts) + b"}" + _END
