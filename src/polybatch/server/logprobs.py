"""Log-probabilities in the shapes of both endpoints, and what single tokens look like."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from polybatch.engine import TokenLogprobs

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (the table of GPT-2)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in shown]
    return {chr(value): value for value in shown} | {chr(256 + i): value for i, value in enumerate(hidden)}


class TokenTexts:
    """Bytes and text of single tokens of one tokenizer; remembers them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {index: str(token) for index, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
        self._known: dict[int, tuple[str, bytes]] = {}

    def __call__(self, token_id: int) -> tuple[str, bytes]:
        """Text and UTF-8 bytes; the text of a part of a character has U+FFFD."""
        known = self._known.get(token_id)
        if known is None:
            data = self._bytes(token_id)
            known = self._known[token_id] = (data.decode("utf-8", "replace"), data)
        return known

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token_id) or ""
        if found := _BYTE_TOKEN.fullmatch(piece):
            return bytes.fromhex(found[1])
        alphabet = _byte_alphabet()
        if self._byte_level and all(char in alphabet for char in piece):
            return bytes(alphabet[char] for char in piece)
        return str(piece).replace(_WORD_START, " ").encode("utf-8", "replace")


def chat_logprobs(texts: TokenTexts, tokens: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    """The list ``logprobs.content`` of a chat choice."""
    return [
        _chat_entry(texts, token.token_id, token.logprob)
        | {"top_logprobs": [_chat_entry(texts, *candidate) for candidate in token.top]}
        for token in tokens
    ]


def _chat_entry(texts: TokenTexts, token_id: int, logprob: float) -> dict[str, Any]:
    text, data = texts(token_id)
    return {"token": text, "logprob": logprob, "bytes": list(data)}


class CompletionLogprobs:
    """The object ``logprobs`` of a completion choice, piece by piece. offset: characters before the first token."""

    def __init__(self, texts: TokenTexts, offset: int = 0) -> None:
        self._texts = texts
        self._offset = offset

    def take(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Of the tokens that follow those taken before."""
        names, offsets, top = [], [], []
        for token in tokens:
            names.append(self._name(token.token_id))
            offsets.append(self._advance(token.token_id))
            top.append({self._name(candidate): logprob for candidate, logprob in token.top})
        values = [token.logprob for token in tokens]
        return {"tokens": names, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}

    def _name(self, token_id: int) -> str:
        """The token's text, or ``bytes:\\xe2\\x82`` for a part of a character, as OpenAI writes it."""
        text, data = self._texts(token_id)
        return text if "\ufffd" not in text else "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _advance(self, token_id: int) -> int:
        """Where the token's first character begins."""
        data = self._texts(token_id)[1]
        inside = data[:1] != b"" and data[0] & 0xC0 == 0x80
        start = max(0, self._offset - inside)
        self._offset += sum(byte & 0xC0 != 0x80 for byte in data)
        return start
