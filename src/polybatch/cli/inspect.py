"""``polybatch inspect``: what a program is, also on a machine that cannot run it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from polybatch.cli.options import Json, ProgramDir
from polybatch.cli.stages import Stages
from polybatch.errors import ProgramCorruptError

if TYPE_CHECKING:
    from polybatch.cli.report import ProgramReport


def inspect_command(
    directory: ProgramDir,
    as_json: Json = False,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file and compare with the manifest.")] = False,
) -> None:
    """Show the table, the inputs and outputs, the files and the needs of a program; runs nothing."""
    from polybatch.cli.report import report_program

    with Stages(bars=not as_json) as stages:
        report = report_program(directory, verify, stages)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _show(report, verify)
    if report.damaged:
        listed = ", ".join(f"{file.name} ({file.problem})" for file in report.damaged)
        raise ProgramCorruptError(f"{report.path} is damaged: {listed}; recompile the program or copy it again")


def _show(report: ProgramReport, verify: bool) -> None:
    from polybatch.cli.tables import format_bytes, print_fact, print_files, print_io, print_specializations

    for label, value in _facts(report):
        print_fact(label, value)
    print_specializations(report)
    print_io(report.manifest.inputs, report.manifest.outputs)
    print_files(report)
    typer.echo()
    state = "sizes and sha256 checked" if verify else "sizes checked; --verify compares sha256 too"
    print_fact("files", f"{format_bytes(report.total_bytes)} in all, {state}")


def _facts(report: ProgramReport) -> list[tuple[str, str]]:
    from polybatch.cli.tables import format_bytes

    manifest, config = report.manifest, report.table.config
    model, by, check = manifest.model, manifest.created_by, manifest.verification
    compiler = f", {by.compiler}" if by.compiler else ""
    kind = "continuous batching" if config.continuous_batching else "static batching"
    drafts = config.num_speculative_tokens
    speculative = "" if drafts is None else f"; speculative decoding: K=[{','.join(map(str, drafts))}]"
    return [
        ("program", str(report.path)),
        ("model", f"{model.source}: {model.class_name}, {model.num_layers} layers, {model.dtype}"),
        ("weights", model.weights or model.dtype),
        (
            "compiled",
            f"{manifest.created} by polybatch {by.polybatch}, torch {by.torch}, "
            f"transformers {by.transformers}{compiler}",
        ),
        ("target", manifest.target + (f", isa {manifest.isa}" if manifest.isa else "")),
        ("CPU features", _features(report)),
        ("runs here", "yes" if report.obstacle is None else f"no: {report.obstacle}"),
        ("batching", f"{kind}, {config.full_batch_size} slots of {config.ctx_len} positions{speculative}"),
        (
            "KV cache",
            f"{format_bytes(manifest.kv_cache.bytes_per_slot)} per slot, {format_bytes(report.cache_bytes)} in all",
        ),
        ("longest prompt", f"{report.table.max_prompt_len} tokens, in chunks of {config.prefill_seq_len}"),
        ("batch invariant", "yes" if manifest.batch_invariant else "no"),
        (
            "verified",
            "no"
            if check is None
            else f"largest relative error of the logits {check.max_relative_error:.2g}, allowed {check.tolerance:g}",
        ),
    ]


def _features(report: ProgramReport) -> str:
    needed = report.manifest.cpu_features
    if not needed:
        return "none needed"
    present = [name for name in needed if name not in report.missing_features]
    if not report.missing_features:
        return f"{' '.join(present)} (all present)"
    return f"present: {' '.join(present) or 'none'}; missing: {' '.join(report.missing_features)}"
