"""StructuredOutput: the grammar that an answer has to keep to, as a caller states it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from polybatch.engine.checks import check_text
from polybatch.errors import InvalidGrammarError

StructuredKind = Literal["json_object", "json_schema", "regex", "grammar", "choice"]
_KINDS = get_args(StructuredKind)


@dataclass(frozen=True)
class StructuredOutput:
    """What the text of an answer must match, from its first character to its last.

    kind: what ``value`` is.
        json_object: None; any JSON object.
        json_schema: a JSON schema, as a mapping or as JSON text (and kept as the latter).
        regex: a regular expression in the syntax of Rust's ``regex`` crate.
        grammar: a context-free grammar in llguidance's variant of Lark.
        choice: one or more texts, of which the answer is one (kept as a tuple).

    An answer that ``max_tokens`` or the context cuts off has finish_reason "length" and may be incomplete. Once nothing
    may follow, the answer ends with "stop", whatever ``ignore_eos`` and ``min_tokens`` say.

    Raises TypeError or ValueError naming the kind and what is allowed. Whether the grammar itself makes sense shows
    when a request is submitted: InvalidGrammarError.
    """

    kind: StructuredKind
    value: Any = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"structured kind {self.kind!r} is not allowed; give one of {', '.join(_KINDS)}")
        object.__setattr__(self, "value", _PLAIN[self.kind](self.value))


def _nothing(value: object) -> None:
    if value is not None:
        raise TypeError(f"a json_object takes no value, not {value!r}; use json_schema to say more")


def _schema(value: object) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidGrammarError(f"the JSON schema is not valid JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise TypeError(f"a JSON schema is an object, not {value!r}; give a mapping or its JSON text")
    try:
        return json.dumps(dict(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGrammarError(f"the JSON schema cannot be written as JSON: {error}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a regex or grammar is a {type(value).__name__} here; give a string")
    check_text("the regex or grammar", value)
    return value


def _choices(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise TypeError(f"choice={value!r} is not allowed; give a list of strings")
    if not value or "" in value:
        raise ValueError(f"choice={value!r} is not allowed; give at least one string, and none that is empty")
    for text in value:
        check_text("a choice", text)
    return tuple(value)


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "json_object": _nothing,
    "json_schema": _schema,
    "regex": _text,
    "grammar": _text,
    "choice": _choices,
}
