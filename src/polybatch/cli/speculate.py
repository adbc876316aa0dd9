"""The options of speculative decoding, and what came of it for people and for ``--json``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polybatch.engine import DraftModel, PromptLookup, SpeculationStats

LOOKUP = "lookup"

Speculate = Annotated[
    str | None,
    typer.Option(
        "--speculate",
        metavar="lookup|DIR",
        help="Draft tokens and verify several per step: from the text so far (lookup), or by the draft model in DIR, "
        "a program with the same tokenizer. The program needs --num-speculative-tokens.",
        show_default=False,
    ),
]
FixedK = Annotated[
    int | None,
    typer.Option(
        "--fixed-k",
        metavar="K",
        help="With --speculate: draft up to K tokens in every step; default: the K that promises most.",
        show_default=False,
    ),
]


def load_speculation(speculate: str | None, fixed_k: int | None) -> PromptLookup | DraftModel | None:
    """What ``--speculate`` names, loaded. BadParameter for ``--fixed-k`` alone, ProgramError for a DIR that is none."""
    if speculate is None:
        if fixed_k is not None:
            raise typer.BadParameter("needs --speculate, which says where drafts come from", param_hint="--fixed-k")
        return None
    from polybatch.engine import DraftModel, PromptLookup
    from polybatch.program import Program

    return PromptLookup() if speculate == LOOKUP else DraftModel(Program.load(Path(speculate)))


def speculation_line(stats: SpeculationStats) -> str:
    """``drafted 120 tokens, accepted 90 (75%); by position 90% 75% 60%``."""
    if stats.acceptance is None:
        return "drafted no tokens"
    by_position = " ".join(f"{rate:.0%}" for rate in stats.acceptance_at)
    accepted = f"accepted {stats.accepted} ({stats.acceptance:.0%})"
    return f"drafted {stats.drafted} tokens, {accepted}; by position {by_position}"


def speculation_json(stats: SpeculationStats | None) -> dict[str, Any]:
    """The key ``speculation`` with its counts; nothing without speculation."""
    if stats is None:
        return {}
    steps = [{"batch_size": b, "K": k, "steps": steps} for (b, k), steps in sorted(stats.steps.items())]
    counts = {
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "drafted_at": list(stats.drafted_at),
        "accepted_at": list(stats.accepted_at),
        "steps": steps,
    }
    return {"speculation": counts}
