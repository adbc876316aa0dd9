"""The options of ``generate`` for penalties and structured outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polybatch.cli.options import require_utf8

if TYPE_CHECKING:
    from polybatch.engine import StructuredOutput

MinP = Annotated[
    float, typer.Option("--min-p", help="Sample from tokens at least this times as probable as the first; 0 takes all.")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", help="-2 to 2: taken from the logits of tokens that the answer has.")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", help="-2 to 2: the same, for each time that the answer has the token.")
]
RepetitionPenalty = Annotated[
    float,
    typer.Option("--repetition-penalty", help="Above 1: less of what prompt and answer have; 1 changes nothing."),
]
JsonSchema = Annotated[
    Path | None,
    typer.Option(
        "--json-schema", metavar="FILE", help="Answers are JSON that this JSON schema allows.", show_default=False
    ),
]
Regex = Annotated[
    str | None,
    typer.Option("--regex", metavar="REGEX", help="Answers match this regular expression.", show_default=False),
]


def structured_output(json_schema: Path | None, regex: str | None) -> StructuredOutput | None:
    """What ``--json-schema`` or ``--regex`` asks for. BadParameter for both, ValueError for a file that is no JSON."""
    if json_schema is None and regex is None:
        return None
    from polybatch.engine import StructuredOutput

    if json_schema is None:
        require_utf8(regex or "")
        return StructuredOutput("regex", regex)
    if regex is not None:
        raise typer.BadParameter("an answer keeps to one grammar; leave out --regex", param_hint="--json-schema")
    try:
        return StructuredOutput("json_schema", json_schema.read_text("utf-8"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{json_schema}: {error}") from None
