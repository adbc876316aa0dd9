"""From a StructuredOutput to the constraint of one answer, by llguidance."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polybatch.engine.structured.constraint import Constraint, brief
from polybatch.engine.structured.output import StructuredOutput
from polybatch.errors import InvalidGrammarError, MissingExtraError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_KEPT_GRAMMARS = 64
_WHITESPACE = r"[ \n\r\t]{1,40}"
"""Between the parts of JSON. Without a bound, a model that has nothing to say writes spaces up to ``max_tokens``."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer; the last ones are kept. Safe from any thread.

    vocab_size: of the logits; None: of the tokenizer.
    eos_token_ids: the tokens that may come where the grammar may end.
    """

    def __init__(self, tokenizer: Any, vocab_size: int | None, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._lock = threading.Lock()
        self._trie: LLTokenizer | None = None
        self._grammars: OrderedDict[StructuredOutput, LLMatcher] = OrderedDict()

    def compile(self, wanted: StructuredOutput) -> Constraint:
        """A constraint at the start of its grammar. InvalidGrammarError; MissingExtraError without llguidance."""
        with self._lock:
            matcher = self._grammars.get(wanted)
        if matcher is None:
            matcher = self._matcher(wanted)  # which can take a second; others need not wait
        with self._lock:
            self._grammars[wanted] = matcher
            self._grammars.move_to_end(wanted)
            if len(self._grammars) > _KEPT_GRAMMARS:
                self._grammars.popitem(last=False)
            return Constraint(matcher.deep_copy(), self._vocab_size)

    def _matcher(self, wanted: StructuredOutput) -> LLMatcher:
        library = _llguidance()
        with self._lock:
            if self._trie is None:
                self._trie = self._read_tokenizer(library)
        matcher: LLMatcher = library.LLMatcher(self._trie, _grammar(library, wanted), log_level=0)
        if matcher.is_error():
            raise InvalidGrammarError(f"the {wanted.kind} is not valid: {brief(matcher.get_error())}")
        try:
            Constraint(matcher.deep_copy(), self._vocab_size).mask(np.zeros(self._vocab_size, np.float32))
        except InvalidGrammarError as error:
            raise InvalidGrammarError(f"the {wanted.kind} is not valid: no text matches it ({error})") from error
        return matcher

    def _read_tokenizer(self, library: Any) -> LLTokenizer:
        """Takes about a second for a large vocabulary."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InvalidGrammarError("structured outputs need a fast tokenizer (tokenizer.json), and this one is slow")
        text = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
        trie: LLTokenizer = library.LLTokenizer(
            json.dumps(text), n_vocab=self._vocab_size, eos_token=self._eos_token_ids or None
        )
        return trie


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError(
            'structured outputs need llguidance; install it with pip install "polybatch[structured]"'
        ) from error
    return llguidance


def _grammar(library: Any, wanted: StructuredOutput) -> str:
    matcher = library.LLMatcher
    if wanted.kind == "regex":
        return str(matcher.grammar_from_regex(wanted.value))
    if wanted.kind == "grammar":
        return str(matcher.grammar_from_lark(wanted.value))
    if wanted.kind == "choice":
        return str(matcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in wanted.value)))
    schema = wanted.value if wanted.kind == "json_schema" else '{"type": "object"}'
    try:
        return str(matcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _WHITESPACE}))
    except ValueError as error:
        raise InvalidGrammarError(f"the {wanted.kind} is not valid: {error}") from error
