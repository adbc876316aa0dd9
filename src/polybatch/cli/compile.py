"""``polybatch compile``: from a model to a program."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from polybatch.cli.device import (
    DepthFirst,
    ExtraFlags,
    FlatSpecializations,
    Hardware,
    Mos,
    Mxfp6Matmul,
    Mxint8KvCache,
    NumCores,
    NumDevices,
    PlainOnnx,
    device_options,
)
from polybatch.cli.group import warn
from polybatch.cli.options import Json, parse_int_or_list, parse_ints, require_utf8
from polybatch.cli.stages import Stages
from polybatch.specialization import SpecializationTable, build_table


def compile_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hugging Face model directory or hub id.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where to write; default: MODEL.poly.", show_default=False),
    ] = None,
    batch_size: Annotated[
        str, typer.Option(metavar="B[,B...]", help="Decode batch sizes: one int, or a list such as 1,2,4.")
    ] = "1",
    full_batch_size: Annotated[
        int | None,
        typer.Option(help="Slots of the KV cache; default: the largest batch size.", show_default=False),
    ] = None,
    ctx_len: Annotated[int, typer.Option(help="Positions per slot.")] = 2048,
    prefill_seq_len: Annotated[int, typer.Option(help="Tokens in one prefill chunk.")] = 128,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32 or bfloat16; default: bfloat16 if the checkpoint is, else float32.", show_default=False
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="int8 or int8-weight-only (activations keep 16 bits or more); default: as dtype.", show_default=False
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="cpu, eager (slow, needs no C++ compiler), or qaic (Cloud AI 100).")
    ] = "cpu",
    isa: Annotated[str, typer.Option(help="Of target cpu: native, avx512_bf16, avx512, avx2 or portable.")] = "native",
    gguf_file: Annotated[
        str | None, typer.Option(metavar="NAME", help="A GGUF file inside MODEL.", show_default=False)
    ] = None,
    num_speculative_tokens: Annotated[
        str | None,
        typer.Option(metavar="K[,K...]", help="Drafted tokens that a step verifies, such as 0,3.", show_default=False),
    ] = None,
    comp_ctx_lengths_prefill: Annotated[
        str | None,
        typer.Option(metavar="L[,L...]", help="Positions that prefill steps may read.", show_default=False),
    ] = None,
    comp_ctx_lengths_decode: Annotated[
        str | None,
        typer.Option(metavar="L[,L...]", help="Positions that decode steps may read.", show_default=False),
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", help="No continuous batching: one batch size, all prompts start together.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Measure the step times that the engine chooses by.")
    ] = True,
    num_cores: NumCores = None,
    num_devices: NumDevices = None,
    mxfp6_matmul: Mxfp6Matmul = False,
    mxint8_kv_cache: Mxint8KvCache = False,
    mos: Mos = None,
    aic_enable_depth_first: DepthFirst = False,
    flat_specializations: FlatSpecializations = False,
    plain_onnx: PlainOnnx = False,
    hardware: Hardware = None,
    extra_flags: ExtraFlags = None,
    as_json: Json = False,
) -> None:
    """Compile MODEL into one program for several batch sizes over one KV cache.

    Batching is continuous (requests join and leave between steps) unless --static is given.
    """
    request: dict[str, Any] = {
        **_batching(batch_size, full_batch_size, static),
        "ctx_len": ctx_len,
        "prefill_seq_len": prefill_seq_len,
        "num_speculative_tokens": _given(parse_int_or_list, "--num-speculative-tokens", num_speculative_tokens),
        "comp_ctx_lengths_prefill": _given(parse_ints, "--comp-ctx-lengths-prefill", comp_ctx_lengths_prefill),
        "comp_ctx_lengths_decode": _given(parse_ints, "--comp-ctx-lengths-decode", comp_ctx_lengths_decode),
    }
    table = build_table(**request)
    require_utf8(model)  # the manifest, which is UTF-8, has its name
    _check_destination(target, weights, isa, output)
    device = device_options(
        target,
        num_cores=num_cores,
        num_devices=num_devices,
        mxfp6_matmul=mxfp6_matmul,
        mxint8_kv_cache=mxint8_kv_cache,
        mos=mos,
        aic_enable_depth_first=aic_enable_depth_first,
        flat_specializations=flat_specializations,
        plain_onnx=plain_onnx,
        hardware=hardware,
        extra_flags=extra_flags,
    )
    for message in table.warnings:
        warn(message)
    started = time.perf_counter()
    with Stages(bars=not as_json) as stages:
        stages("loading the model")
        from polybatch.compiler.auto import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, gguf_file=gguf_file)
        program = loaded.compile(
            output, **request, weights=weights, target=target, isa=isa, qaic=device, profile=profile, progress=stages
        )
    _show(program.path, table, time.perf_counter() - started, as_json)


def _given(parse: Callable[[str, str], object], option: str, text: str | None) -> object:
    return None if text is None else parse(option, text)


def _batching(batch_size: str, full_batch_size: int | None, static: bool) -> dict[str, Any]:
    sizes = parse_int_or_list("--batch-size", batch_size)
    if static and isinstance(sizes, list):
        raise typer.BadParameter(
            f"{batch_size} is a list, and --static compiles one batch size; leave out --static or give one int",
            param_hint="--batch-size",
        )
    if full_batch_size is None and not static:
        full_batch_size = max(sizes) if isinstance(sizes, list) else sizes
    return {"batch_size": sizes, "continuous_batching": not static, "full_batch_size": full_batch_size}


def _check_destination(target: str, weights: str | None, isa: str, output: Path | None) -> None:
    """Refuse what cannot end well before any model is loaded: ValueError or ProgramError."""
    from polybatch.program import ProgramWriter
    from polybatch.targets import check_weights, target_names
    from polybatch.targets.cpu.isa import resolve_isa

    if target not in target_names():
        raise ValueError(f"unknown target {target!r}; pass one of {', '.join(target_names())}")
    check_weights(target, weights)
    if target == "cpu":
        resolve_isa(isa)
    if output is not None:
        ProgramWriter(output)


def _show(path: Path, table: SpecializationTable, seconds: float, as_json: bool) -> None:
    from polybatch.cli.report import report_program
    from polybatch.cli.tables import format_bytes, print_fact, print_specializations

    report = report_program(path)
    if as_json:
        summary = {**report.to_json(), "compile_seconds": round(seconds, 3), "warnings": list(table.warnings)}
        typer.echo(json.dumps(summary, indent=2))
        return
    print_specializations(report)
    typer.echo()
    print_fact("longest prompt", f"{table.max_prompt_len} tokens")
    print_fact(
        "KV cache",
        f"{table.config.full_batch_size} slots of {table.config.ctx_len} positions, "
        f"{format_bytes(report.cache_bytes)} in memory when full",
    )
    print_fact("size on disk", format_bytes(report.total_bytes))
    print_fact("compiled in", f"{seconds:.1f} s")
    print_fact("program", str(path))
