"""Token ids to text, one token at a time.

The pieces add up to ``tokenizer.decode(ids, skip_special_tokens=True)``, and no piece shows the replacement
character for a UTF-8 sequence that later tokens complete. Each step decodes a short window of recent tokens, because
what a token looks like can depend on the one before it (a sentencepiece tokenizer strips the first space).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from polybatch.engine.protocols import TokenizerLike

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# A byte-fallback decoder turns a whole run of byte tokens into U+FFFD if any part of it is invalid, so a run is held
# until it ends. The bound keeps text flowing in a script that is spelled in bytes only.
_MAX_HELD_BYTES = 24

_BASE_MODULES = {"transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers"}


class TokenTexts:
    """A tokenizer as the detokenizers of all sequences use it; remembers what is asked of the same token again."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self.decode = plain_decode(tokenizer)
        self.special = special_ids(tokenizer)
        self._tokenizer = tokenizer
        self._byte: dict[int, bool] = {}
        self._length: dict[int, int] = {}

    def is_byte(self, token_id: int) -> bool:
        """Whether the token stands for one byte in a byte-fallback tokenizer."""
        known = self._byte.get(token_id)
        if known is None:
            token = self._tokenizer.convert_ids_to_tokens(token_id)
            known = self._byte[token_id] = token is not None and _BYTE_TOKEN.fullmatch(token) is not None
        return known

    def length(self, token_ids: list[int]) -> int:
        """Characters of the tokens' text."""
        if len(token_ids) != 1:
            return len(self.decode(token_ids))
        known = self._length.get(token_ids[0])
        if known is None:
            known = self._length[token_ids[0]] = len(self.decode(token_ids))
        return known


def special_ids(tokenizer: TokenizerLike) -> frozenset[int]:
    """The ids that ``skip_special_tokens`` leaves out: the named special tokens and the added ones marked so."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {index for index, token in added.items() if token.special}


def plain_decode(tokenizer: Any) -> Callable[[list[int]], str]:
    """``tokenizer.decode`` without special tokens and clean-up.

    A fast tokenizer that decodes as its base classes do only passes the ids on to its backend, after looking at each:
    asking the backend takes a third of the time, for every token of every request.
    """
    kind, backend = type(tokenizer), getattr(tokenizer, "backend_tokenizer", None)
    methods = [getattr(getattr(kind, name, None), "__module__", None) for name in ("decode", "_decode")]
    if backend is not None and _BASE_MODULES.issuperset(methods):
        return lambda ids: str(backend.decode(ids, skip_special_tokens=True))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class Detokenizer:
    """The text of one growing sequence."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._window: list[int] = []  # context tokens (already shown), then pending tokens
        self._context = 0
        self._shown_chars = 0  # of the window's text
        self._held_bytes = 0

    def add(self, token_id: int) -> str:
        """The text that is certain once ``token_id`` follows; "" while a character is incomplete."""
        if token_id in self._texts.special:
            return ""
        self._window.append(token_id)
        self._held_bytes = self._held_bytes + 1 if self._texts.is_byte(token_id) else 0
        if 0 < self._held_bytes <= _MAX_HELD_BYTES:
            return ""
        text = self._texts.decode(self._window)
        certain = text.rstrip(_REPLACEMENT)
        delta = certain[self._shown_chars :]
        self._shown_chars = max(self._shown_chars, len(certain))
        if len(certain) == len(text) and delta:
            self._slide()
        return delta

    def finish(self) -> str:
        """The rest of the text: a sequence that ends inside a character decodes as the tokenizer decodes it."""
        delta = self._texts.decode(self._window)[self._shown_chars :]
        self._window, self._context, self._shown_chars = [], 0, 0
        return delta

    def _slide(self) -> None:
        """Everything is shown and ends at a character: the pending tokens become the context."""
        self._held_bytes = 0
        self._window = self._window[self._context :]
        self._context = len(self._window)
        self._shown_chars = self._texts.length(self._window)
