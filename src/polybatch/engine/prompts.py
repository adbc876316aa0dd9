"""Prompts to token ids: strings, token-id lists and chat message lists."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, cast

from polybatch.engine.checks import check_text
from polybatch.engine.protocols import ProgramLike, TokenizerLike
from polybatch.errors import ProgramCorruptError, ProgramError

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages such as ``{"role": "user", "content": "Hello"}``."""


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts as a list; a single prompt of any kind becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if not hasattr(prompts, "__iter__") or isinstance(prompts, (Mapping, bytes)):
        raise TypeError(f"prompts is a {type(prompts).__name__}; give a string, token ids, chat messages or a list")
    prompts = list(cast("Sequence[Any]", prompts))
    if prompts and isinstance(prompts[0], (Mapping, Integral)):
        return [cast("Prompt", prompts)]
    return cast("list[Prompt]", prompts)


class PromptEncoder:
    """Turns prompts into token ids that the program can run, or says why it cannot. Safe from any thread."""

    def __init__(self, program: ProgramLike) -> None:
        self._max_prompt_len = min(program.max_prompt_len, program.ctx_len - 1)
        self._vocab_size = program.vocab_size
        self._lock = threading.Lock()
        self._no_tokenizer: ProgramError | None = None
        self.tokenizer: TokenizerLike | None = None
        try:
            self.tokenizer = program.tokenizer()
        except ProgramCorruptError:
            raise
        except ProgramError as error:  # token-id prompts still work
            self._no_tokenizer = error
        else:
            self._encode_text("a")  # settles the truncation state, which must not change while the engine decodes

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of one prompt, 1..max_prompt_len of them.

        Raises ValueError for an empty or too long prompt, an id outside the vocabulary or text that UTF-8 cannot
        encode, TypeError for anything that is no prompt, ProgramError for text or messages when the program has no
        tokenizer.
        """
        if isinstance(prompt, (Mapping, bytes)) or not hasattr(prompt, "__iter__"):
            raise TypeError(
                f"prompt {prompt!r} is a {type(prompt).__name__}; give a string, token ids or chat messages"
            )
        items = prompt if isinstance(prompt, str) else list(prompt)
        if not items:
            raise ValueError("the prompt is empty; give at least one token")
        if isinstance(items, str):
            token_ids = self._encode_text(items)
        elif isinstance(items[0], Mapping):
            token_ids = self._encode_chat(items)
        else:
            token_ids = self._check_ids(items)
        if not token_ids:
            raise ValueError(f"the prompt {prompt!r} has no tokens; give at least one token")
        if len(token_ids) > self._max_prompt_len:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens, but this program takes at most {self._max_prompt_len}; "
                "shorten it, or recompile with a larger ctx_len"
            )
        return tuple(token_ids)

    def require_tokenizer(self) -> TokenizerLike:
        """The tokenizer. Raises the program's own error when it has none."""
        if self.tokenizer is None:
            raise self._no_tokenizer or ProgramError("the program has no tokenizer; give token ids")
        return self.tokenizer

    def _encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        tokenizer = self.require_tokenizer()
        check_text("the prompt", text)
        with self._lock:
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _encode_chat(self, messages: list[Any]) -> list[int]:
        tokenizer = self.require_tokenizer()
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
                raise ValueError(f'chat message {message!r} is not allowed; give {{"role": ..., "content": ...}}')
        if not tokenizer.chat_template:
            raise ValueError("the program's tokenizer has no chat template; give a string or token ids")
        conversation = [dict(message) for message in messages]
        text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        return self._encode_text(text, add_special_tokens=False)  # the template writes its own special tokens

    def _check_ids(self, items: list[Any]) -> list[int]:
        token_ids = []
        for item in items:
            if isinstance(item, bool) or not isinstance(item, Integral):
                raise TypeError(f"token id {item!r} is a {type(item).__name__}; give ints")
            token_id = int(item)
            if token_id < 0 or (self._vocab_size is not None and token_id >= self._vocab_size):
                limit = "" if self._vocab_size is None else f"; this program has ids 0 to {self._vocab_size - 1}"
                raise ValueError(f"token id {token_id} is out of the vocabulary{limit}")
            token_ids.append(token_id)
        return token_ids
