"""compile: from a loaded model and a request to a program directory that has been checked."""

from __future__ import annotations

import re
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from polybatch.compiler.profiling import profile_steps
from polybatch.compiler.verification import Verification, verify_logits
from polybatch.errors import UnsupportedModelError
from polybatch.kv_layout import CacheSpec
from polybatch.models.guard import check_supported, position_limit
from polybatch.models.loading import LoadedModel
from polybatch.models.own_text import own_text
from polybatch.models.reference import widened
from polybatch.program import (
    Batching,
    CreatedBy,
    KvCache,
    KvLayer,
    Manifest,
    ModelInfo,
    Program,
    ProgramWriter,
    describe_io,
    describe_rows,
)
from polybatch.program import Verification as VerificationRecord
from polybatch.session import InferenceSession
from polybatch.specialization import Specialization, SpecializationTable
from polybatch.targets import check_qaic_options, check_weights, exports_float32, get_target
from polybatch.targets.base import BuildRequest, BuildResult, CrossTarget, Progress, Target
from polybatch.targets.qaic.options import QaicOptions

_PROFILE_SHARE = 0.03
"""Part of a compile's own time that measuring its steps may take, however large the table is."""


@dataclass(frozen=True)
class CompileOptions:
    """Where the program goes and what it is compiled for, besides its table."""

    output_dir: Path
    target: str
    weights: str | None
    isa: str
    profile: bool
    progress: Progress
    qaic: QaicOptions | None = None


def default_output_dir(source: str) -> Path:
    """``<name of the model>.poly`` in the current directory."""
    return Path(f"{re.sub(r'[^A-Za-z0-9._-]+', '-', source).strip('-.') or 'model'}.poly")


def compile_model(loaded: LoadedModel, table: SpecializationTable, options: CompileOptions) -> Program:
    """Build, verify and write the program; nothing appears at ``output_dir`` unless all of it succeeds.

    Raises ValueError (before any work), UnsupportedModelError, CompilerError, VerificationError and ProgramError.
    """
    for message in table.warnings:
        warnings.warn(message, stacklevel=3)
    target = get_target(options.target)
    check_weights(options.target, options.weights)
    check_qaic_options(options.target, options.qaic)
    with widened(loaded.model) if exports_float32(options.target, options.qaic) else nullcontext():
        notes = _compile(target, loaded, table, options)
    for message in notes:
        warnings.warn(message, stacklevel=3)
    return Program.load(options.output_dir)


def _compile(
    target: Target, loaded: LoadedModel, table: SpecializationTable, options: CompileOptions
) -> tuple[str, ...]:
    """Write the program; what its user has to know or do next."""
    options.progress("checking the architecture")
    started = time.perf_counter()
    config = table.config
    cache = CacheSpec(check_supported(loaded.model), loaded.dtype_name, config.ctx_len, config.full_batch_size)
    _check_context(loaded, table)
    with ProgramWriter(options.output_dir) as writer:
        text = _calibration_text(loaded, options)
        request = BuildRequest(
            loaded.model, cache, options.weights, text, options.isa, options.progress, table, options.qaic
        )
        result = target.build(request, writer.path)
        _write_tokenizer(loaded, writer.path)
        verification, step_ms = _check(target, writer.path, loaded, cache, table, options, result, text, started)
        if isinstance(target, CrossTarget):
            result = target.finish(request, writer.path, result)
        writer.commit(_manifest(loaded, table, options, cache, result, verification, step_ms))
    return result.notes


def _check_context(loaded: LoadedModel, table: SpecializationTable) -> None:
    """Refuse a ctx_len for which a position's embedding would not be a function of that position alone."""
    limit = position_limit(loaded.model)
    if limit is not None and table.config.ctx_len > limit.positions:
        raise UnsupportedModelError(
            f"{type(loaded.model).__name__} {limit.reason}, "
            f"ctx_len={table.config.ctx_len} needs more; pass ctx_len={limit.positions} or less"
        )


def _calibration_text(loaded: LoadedModel, options: CompileOptions) -> torch.Tensor | None:
    if options.weights is None:
        return None
    options.progress("writing calibration text")
    return own_text(loaded.model)


def _write_tokenizer(loaded: LoadedModel, folder: Path) -> None:
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(folder)
    loaded.generation_config.save_pretrained(folder)


def _check(
    target: Target,
    folder: Path,
    loaded: LoadedModel,
    cache: CacheSpec,
    table: SpecializationTable,
    options: CompileOptions,
    result: BuildResult,
    text: torch.Tensor | None,
    started: float,
) -> tuple[Verification, dict[Specialization, float]]:
    """Run the program that has just been built: its logits against the model's, then its step times."""
    options.progress("checking logits against the model")
    elsewhere = isinstance(target, CrossTarget)
    opener = target.open_for_check if isinstance(target, CrossTarget) else target.open
    runner = opener(folder, cache, torch.get_num_threads())
    with InferenceSession(table, runner, _vocab_size(loaded)) as session:
        verification = verify_logits(session, table, loaded.model, result.rounded, text)
        if not options.profile or elsewhere:
            return verification, {}
        options.progress("measuring step times")
        budget = _PROFILE_SHARE * (time.perf_counter() - started)
        return verification, profile_steps(session, table, budget)


def _vocab_size(loaded: LoadedModel) -> int:
    return int(loaded.model.get_input_embeddings().weight.shape[0])


def _manifest(
    loaded: LoadedModel,
    table: SpecializationTable,
    options: CompileOptions,
    cache: CacheSpec,
    result: BuildResult,
    verification: Verification,
    step_ms: dict[Specialization, float],
) -> Manifest:
    vocab_size = _vocab_size(loaded)
    inputs, outputs = describe_io(table, vocab_size)
    return Manifest(
        created=time.strftime("%Y-%m-%d"),
        created_by=CreatedBy(
            polybatch=version("polybatch"),
            torch=version("torch"),
            transformers=version("transformers"),
            compiler=result.compiler,
        ),
        target=options.target,  # type: ignore[arg-type]  # get_target has checked it
        isa=result.isa,
        cpu_features=result.cpu_features,
        model=ModelInfo(
            class_name=type(loaded.model).__name__,
            model_type=loaded.model.config.model_type,
            dtype=loaded.dtype_name,  # type: ignore[arg-type]  # load_model has checked it
            weights=options.weights,  # type: ignore[arg-type]  # compile_model has checked it
            vocab_size=vocab_size,
            num_layers=len(cache.layers),
            source=loaded.source,
        ),
        inputs=inputs,
        outputs=outputs,
        batching=Batching.from_config(table.config),
        specializations=describe_rows(table, step_ms),
        batch_invariant=result.batch_invariant,
        kv_cache=KvCache(
            layers=tuple(
                KvLayer(kv_heads=kv.kv_heads, key_dim=kv.key_dim, value_dim=kv.value_dim) for kv in cache.layers
            ),
            bytes_per_slot=result.bytes_per_slot,
        ),
        verification=VerificationRecord(max_relative_error=verification.max_error, tolerance=verification.tolerance),
    )
