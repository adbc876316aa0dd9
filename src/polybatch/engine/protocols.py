"""What the engine needs from the layers below it, as structural types.

The engine imports neither torch nor a target; any program and session of these shapes will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

StepArrays = dict[str, NDArray[Any]]
Logits = NDArray[np.float32]


class SpecializationLike(Protocol):
    """One row of the table: the shapes of one kind of step."""

    @property
    def name(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def seq_len(self) -> int: ...
    @property
    def comp_ctx_length(self) -> int | None: ...


class TableConfigLike(Protocol):
    """What the table was built from."""

    @property
    def continuous_batching(self) -> bool: ...
    @property
    def num_speculative_tokens(self) -> tuple[int, ...] | None: ...


class TableLike(Protocol):
    """The compiled shapes and the rule that chooses among them."""

    @property
    def config(self) -> TableConfigLike: ...

    def choose_decode(self, live_rows: int, proposal_len: int, max_position: int) -> SpecializationLike: ...
    def choose_prefill(self, last_position: int) -> SpecializationLike: ...
    def cover(
        self, live_rows: int, step_ms: Any, *, proposal_len: int = 0, max_position: int = 0
    ) -> Sequence[SpecializationLike]: ...


class SessionLike(Protocol):
    """Runs one step; after any error the cache is as before.

    ``run_live`` returns float32 [live, vocab]: in a step of speculative rows of every live token, otherwise of each
    live row's last one, row after row.
    """

    @property
    def skips_padding(self) -> bool: ...
    @property
    def copies_slots(self) -> bool: ...
    def run_live(self, inputs: StepArrays) -> Logits: ...
    def copy_slot(self, source: int, target: int, positions: int) -> None: ...
    def close(self) -> None: ...


class TokenizerLike(Protocol):
    """The part of a Hugging Face tokenizer that the engine calls."""

    @property
    def chat_template(self) -> Any: ...
    @property
    def all_special_ids(self) -> Sequence[int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str: ...
    def convert_ids_to_tokens(self, ids: int) -> str | None: ...
    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


class ProgramLike(Protocol):
    """A compiled program: the table, the limits of a sequence, and where sessions come from."""

    @property
    def table(self) -> TableLike: ...
    @property
    def ctx_len(self) -> int: ...
    @property
    def max_prompt_len(self) -> int: ...
    @property
    def full_batch_size(self) -> int: ...
    @property
    def prefill_seq_len(self) -> int: ...
    @property
    def vocab_size(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> Sequence[int]: ...
    @property
    def step_ms(self) -> Mapping[Any, float] | None: ...

    def session(self, threads: int | None = None) -> SessionLike: ...
    def tokenizer(self) -> Any: ...
