"""Options that several commands take, and lists of ints on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polybatch.engine import SamplingParams


def _require_text(value: str | list[str] | None) -> str | list[str] | None:
    """Bytes that are not UTF-8 come from the command line as lone surrogates, which no tokenizer takes."""
    for text in [value] if isinstance(value, str) else value or ():
        require_utf8(text)
    return value


def require_utf8(text: str) -> None:
    """BadParameter for text with lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{text!a} is not valid UTF-8 text") from None


ProgramDir = Annotated[Path, typer.Argument(metavar="DIR", help="A compiled program.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout, and nothing else there.")]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads; default: every core.", show_default=False)]
System = Annotated[
    str | None,
    typer.Option(
        "--system", metavar="TEXT", help="System message of the chat.", show_default=False, callback=_require_text
    ),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Most tokens to generate per answer.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", help="Sample from the most probable tokens that add up to this.")]
TopK = Annotated[int, typer.Option("--top-k", help="Sample from this many most probable tokens; 0 takes all.")]
Prompts = Annotated[
    list[str] | None,
    typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; repeatable.", callback=_require_text),
]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same tokens.", show_default=False)]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        help="End an answer before this text; repeatable.",
        show_default=False,
        callback=_require_text,
    ),
]


def sampling_params(
    max_tokens: int, temperature: float, top_p: float, top_k: int, seed: int | None, stop: list[str] | None
) -> SamplingParams:
    """The options as :class:`polybatch.SamplingParams`, which checks them."""
    from polybatch.engine import SamplingParams

    return SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=tuple(stop or ())
    )


def parse_ints(option: str, text: str) -> list[int]:
    """``"1,2,4"`` as ints; a usage error names the option."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an int or a list of ints such as 1,2,4", param_hint=option) from None


def parse_int_or_list(option: str, text: str) -> int | list[int]:
    """``"4"`` is the int 4 and ``"1,2,4"`` a list, as the arguments of ``compile`` tell them apart."""
    values = parse_ints(option, text)
    return values if "," in text else values[0]
