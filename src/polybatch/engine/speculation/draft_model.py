"""A smaller model as the proposer: another program with the same tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polybatch.engine.protocols import ProgramLike
from polybatch.engine.speculation.draft_proposer import DraftProposer
from polybatch.errors import ProgramCorruptError, ProgramError


@dataclass(frozen=True, eq=False)
class DraftModel:
    """Speculation by a draft model.

    program: a compiled program with the tokenizer of the program that it drafts for. As many requests as it has slots
        get drafts; compiled with num_speculative_tokens=[0, 1] it makes up for the token that it lacks after a full
        acceptance in one step instead of two.
    """

    program: ProgramLike

    def open(self, program: ProgramLike, threads: int | None) -> DraftProposer:
        """A proposer with a session and a cache of its own. ValueError when the tokenizers differ."""
        require_same_tokenizer(program, self.program)
        return DraftProposer(self.program, program.vocab_size, threads)


def require_same_tokenizer(program: ProgramLike, draft: ProgramLike) -> None:
    """ValueError unless a token id means the same in both programs."""
    ours, theirs = _vocabulary(program), _vocabulary(draft)
    if (ours is None) != (theirs is None):
        raise ValueError(
            f"the draft program cannot be compared: {'it' if theirs is None else 'the program that it drafts for'} has "
            "no tokenizer; compile both from models that carry theirs"
        )
    if ours is None or theirs is None:
        if program.vocab_size != draft.vocab_size:
            raise ValueError(
                f"the draft program has {draft.vocab_size} token ids and the program that it drafts for "
                f"{program.vocab_size}; take a draft model with the same vocabulary"
            )
    elif ours != theirs:
        raise ValueError(
            f"the draft program has another tokenizer: {_difference(ours, theirs)}; take one with the same"
        )


def _vocabulary(program: ProgramLike) -> dict[str, int] | None:
    try:
        tokenizer: Any = program.tokenizer()
    except ProgramCorruptError:
        raise
    except ProgramError:  # it has none
        return None
    return dict(tokenizer.get_vocab())


def _difference(ours: dict[str, int], theirs: dict[str, int]) -> str:
    if len(ours) != len(theirs):
        return f"{len(theirs)} tokens, not {len(ours)}"
    token = min(token for token, index in ours.items() if theirs.get(token) != index)
    return f"token {token!r} has the id {theirs.get(token, 'of no token')} there and {ours[token]} here"
