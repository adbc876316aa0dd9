"""Answers that keep to a grammar: JSON, a JSON schema, a regular expression, a choice or a grammar of one's own.

Before a token is chosen, all that the grammar does not allow next are masked. llguidance works out which those are; it
comes with the extra ``structured`` (and ``server``) and is imported when it is first needed.
"""

from polybatch.engine.structured.output import StructuredKind, StructuredOutput

__all__ = ["StructuredKind", "StructuredOutput"]
