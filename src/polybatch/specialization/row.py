"""One row of the table."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Specialization:
    """The fixed shapes of one step.

    ``batch_size`` rows of ``seq_len`` tokens over slots of ``ctx_len`` positions. ``comp_ctx_length`` is how many
    positions attention reads (None: the program has no such input). ``num_logits_to_keep`` is how many rows of
    logits each sequence gets (None: the program is not speculative and gives one).
    """

    phase: Phase
    batch_size: int
    seq_len: int
    ctx_len: int
    comp_ctx_length: int | None = None
    num_logits_to_keep: int | None = None

    @property
    def name(self) -> str:
        """A short label for people: ``prefill b=1 s=128``, ``decode b=4 K=3``, ``decode b=4 CCL=1024``."""
        label = f"{self.phase} b={self.batch_size}"
        if self.phase == "prefill":
            label += f" s={self.seq_len}"
        elif self.num_logits_to_keep is not None:
            label += f" K={self.num_speculative_tokens}"
        return label if self.comp_ctx_length is None else f"{label} CCL={self.comp_ctx_length}"

    @property
    def num_speculative_tokens(self) -> int:
        """K, the drafted tokens that a decode row verifies; 0 for prefill."""
        return self.seq_len - 1 if self.phase == "decode" else 0

    @property
    def logits_rows(self) -> int:
        """n of the output ``logits`` [b, n, vocab]: K+1 for a speculative decode row, otherwise 1."""
        return 1 if self.num_logits_to_keep is None else self.num_logits_to_keep

    @property
    def readable_positions(self) -> int:
        """How many positions attention may read: every position of a step lies below it."""
        return self.ctx_len if self.comp_ctx_length is None else self.comp_ctx_length

    def input_shapes(self, continuous_batching: bool) -> dict[str, tuple[int, ...]]:
        """The shape of each input tensor of a step, by name.

        input_ids and position_ids [b, s]; batch_index [b, 1] (continuous batching); comp_ctx_lengths [L] (CCL);
        num_logits_to_keep [n, 1] (speculative).
        """
        step = (self.batch_size, self.seq_len)
        shapes: dict[str, tuple[int, ...]] = {"input_ids": step, "position_ids": step}
        if continuous_batching:
            shapes["batch_index"] = (self.batch_size, 1)
        if self.comp_ctx_length is not None:
            shapes["comp_ctx_lengths"] = (self.comp_ctx_length,)
        if self.num_logits_to_keep is not None:
            shapes["num_logits_to_keep"] = (self.num_logits_to_keep, 1)
        return shapes

    def to_json(self) -> dict[str, Any]:
        """The fields as a plain dict."""
        return asdict(self)
