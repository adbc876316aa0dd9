"""AutoModelForCausalLM: load a Hugging Face model, then compile it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polybatch.specialization import build_table
from polybatch.targets.base import Progress

if TYPE_CHECKING:
    import torch

    from polybatch.models.loading import LoadedModel
    from polybatch.program import Program
    from polybatch.targets.qaic.options import QaicOptions


def _silent(stage: str) -> None:
    """The default progress callback."""


class AutoModelForCausalLM:
    """A causal LM that can be compiled; made by :meth:`from_pretrained`."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, dtype: str | torch.dtype | None = None, gguf_file: str | None = None
    ) -> AutoModelForCausalLM:
        """Load a Hugging Face directory or hub id, or the GGUF file of that name inside a directory.

        ``dtype`` is float32 or bfloat16; None keeps a bfloat16 checkpoint and makes anything else float32. Raises
        :class:`ModelLoadError`, :class:`UnsupportedModelError` and ValueError.
        """
        from polybatch.models.loading import load_model

        return cls(load_model(path, dtype, gguf_file))

    def compile(
        self,
        output_dir: str | Path | None = None,
        *,
        batch_size: int | Sequence[int] = 1,
        continuous_batching: bool = False,
        full_batch_size: int | None = None,
        ctx_len: int = 2048,
        prefill_seq_len: int = 128,
        num_speculative_tokens: int | Sequence[int] | None = None,
        comp_ctx_lengths_prefill: Sequence[int] | None = None,
        comp_ctx_lengths_decode: Sequence[int] | None = None,
        weights: str | None = None,
        target: str = "cpu",
        isa: str = "native",
        qaic: QaicOptions | None = None,
        profile: bool = True,
        progress: Progress = _silent,
    ) -> Program:
        """Compile into one program over one KV cache of ``full_batch_size`` slots of ``ctx_len`` positions.

        ``batch_size`` lists the decode batch sizes, ``num_speculative_tokens`` the drafted tokens per step and
        ``comp_ctx_lengths_*`` the attention lengths (:func:`polybatch.specialization.build_table` has the rules).
        ``output_dir`` defaults to ``<model>.poly`` in the current directory; a program that is there is replaced.
        ``weights`` is None (the model's dtype), ``int8`` (weights and what they are multiplied with) or
        ``int8-weight-only``; both work with either dtype.
        ``isa`` is ``native``, ``avx512_bf16``, ``avx512``, ``avx2`` or ``portable`` (target cpu). ``profile`` measures
        the step times that the engine chooses by. ``qaic`` holds the options of target qaic (default: one device of 16
        cores). ``progress`` is called with each stage's name.

        Raises SpecializationError, ValueError or TypeError (before any work), UnsupportedModelError, CompilerError,
        VerificationError and ProgramError; an older program is then as it was.
        """
        table = build_table(
            batch_size=batch_size,
            continuous_batching=continuous_batching,
            full_batch_size=full_batch_size,
            ctx_len=ctx_len,
            prefill_seq_len=prefill_seq_len,
            num_speculative_tokens=num_speculative_tokens,
            comp_ctx_lengths_prefill=comp_ctx_lengths_prefill,
            comp_ctx_lengths_decode=comp_ctx_lengths_decode,
        )
        from polybatch.compiler.compile import CompileOptions, compile_model, default_output_dir

        path = default_output_dir(self._loaded.source) if output_dir is None else Path(output_dir)
        return compile_model(self._loaded, table, CompileOptions(path, target, weights, isa, profile, progress, qaic))
