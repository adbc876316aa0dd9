"""A mock program with a byte-level tokenizer that answers some prompts by a script, and the rest by its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from engine.engine_mock import MockProgram, mock_program, next_token
from engine.tiny_tokenizers import byte_level

PIECES = ("al", "ph", "a b", "et")
TOKENIZER_SIZE = 256 + len(PIECES) + 3
EOS = 256 + len(PIECES) + 1
CHAT_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool['function']['name'] }};{% endfor %}{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
    "<s>{{ message['role'] }}:{{ message['content'] }}{% for call in message.tool_calls or [] %}"
    "[{{ call['function']['name'] }} {{ call['function']['arguments']['city'] }}]{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def tokenizer() -> Any:
    made = byte_level(*PIECES)
    made.chat_template = CHAT_TEMPLATE
    return made


def chat_prompt(text: str, tools: str = "") -> str:
    """What the template makes of one user message."""
    return f"{tools}<s>user:{text}<s>assistant:"


class ScriptedProgram:
    """``script(prompt, pieces)``: after this prompt come these texts, one token each or one per byte, then EOS."""

    def __init__(self, *, slots: int = 4, ctx_len: int = 64, delay_s: float = 0.0, **options: Any) -> None:
        self._scripts: dict[tuple[int, ...], list[int]] = {}
        sizes = [size for size in (1, 2, 4, 8, 16) if size <= slots]
        self.mock: MockProgram = mock_program(
            sizes,
            full_batch_size=slots,
            ctx_len=ctx_len,
            text_tokenizer=tokenizer(),
            eos_token_ids=(EOS,),
            vocab_size=TOKENIZER_SIZE,
            logits_after=self._logits,
            **options,
        )
        self.delay_s = delay_s

    def script(self, prompt: str, answer: str | Sequence[str]) -> None:
        pieces = [answer] if isinstance(answer, str) else list(answer)
        ids = [token for piece in pieces for token in self._ids(piece)]
        self._scripts[tuple(self._ids(prompt))] = ids

    @staticmethod
    def _ids(piece: str) -> list[int]:
        if piece in PIECES:
            return [256 + PIECES.index(piece)]
        return list(tokenizer().encode(piece, add_special_tokens=False))

    def _logits(self, tokens: list[int]) -> np.ndarray:
        for prompt, answer in sorted(self._scripts.items(), key=lambda item: -len(item[0])):
            if tuple(tokens[: len(prompt)]) == prompt:
                at = len(tokens) - len(prompt)
                return self._peak(answer[at] if at < len(answer) else EOS)
        return self._peak(next_token(tokens))

    @staticmethod
    def _peak(token: int) -> np.ndarray:
        distance = (np.arange(TOKENIZER_SIZE) - token) % TOKENIZER_SIZE
        return -0.25 * distance.astype(np.float32)
