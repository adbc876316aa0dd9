"""Small tokenizers built on the spot: byte-level BPE, and BPE in the sentencepiece style with byte fallback."""

from __future__ import annotations

import functools

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}:{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def _byte_alphabet() -> list[str]:
    """The character that stands for each byte value, in order of value (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    table = {value: chr(value) for value in printable} | {value: chr(256 + i) for i, value in enumerate(others)}
    return [table[value] for value in range(256)]


@functools.cache
def byte_level(*extra: str) -> PreTrainedTokenizerFast:
    """Ids 0..255 are bytes; then the ``extra`` strings, one token each; then <s>, </s> and a special added token."""
    alphabet = _byte_alphabet()
    pieces = alphabet + ["".join(alphabet[byte] for byte in text.encode()) for text in extra]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrap(tokenizer)


@functools.cache
def sentencepiece(*pieces: str) -> PreTrainedTokenizerFast:
    """Ids 0..255 are <0x00>..<0xFF>; then the ``pieces`` (with U+2581 for a space); then the special tokens."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {piece: 256 + i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(tokenizer)


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    names = ("<s>", "</s>", "<|reserved|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped
