"""``polybatch generate``: answers to prompts, many at once."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polybatch.cli.options import (
    Json,
    MaxTokens,
    ProgramDir,
    Prompts,
    Seed,
    Stop,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    sampling_params,
)
from polybatch.cli.sampling import (
    FrequencyPenalty,
    JsonSchema,
    MinP,
    PresencePenalty,
    Regex,
    RepetitionPenalty,
    structured_output,
)
from polybatch.cli.speculate import FixedK, Speculate, load_speculation, speculation_json, speculation_line
from polybatch.cli.stages import Stages

if TYPE_CHECKING:
    from polybatch.engine import Completion, Engine, EngineStats, Prompt, SamplingParams


_REFRESH_SECONDS = 0.1


@dataclass(frozen=True)
class _EngineOptions:
    """What the command line says about the engine."""

    speculate: str | None
    fixed_k: int | None
    threads: int | None


@dataclass(frozen=True)
class _Run:
    """What came of a run: completions in the order of ``texts``, and the seconds from first request to last token."""

    program: Path
    texts: tuple[str, ...]
    params: SamplingParams
    completions: tuple[Completion, ...]
    stats: EngineStats
    seconds: float


def generate(
    directory: ProgramDir,
    prompt: Prompts = None,
    prompts_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Prompts, one per line; empty lines are skipped; - is stdin."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Make each prompt a user message of the chat template.")] = False,
    system: System = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = None,
    stop: Stop = None,
    threads: Threads = None,
    speculate: Speculate = None,
    fixed_k: FixedK = None,
    min_p: MinP = 0.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    as_json: Json = False,
) -> None:
    """Answer prompts, as many at once as the program has slots.

    Answers go to stdout in the order of the prompts; what ran, by specialization, goes to stderr afterwards.
    """
    texts = _read_prompts(prompt, prompts_file)
    if system is not None and not chat:
        raise typer.BadParameter("needs --chat, which makes messages of the prompts", param_hint="--system")
    params = replace(
        sampling_params(max_tokens, temperature, top_p, top_k, seed, stop),
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        structured=structured_output(json_schema, regex),
    )
    prompts = [_messages(text, system) if chat else text for text in texts]
    with Stages(bars=not as_json) as stages:
        run = _generate(directory, texts, prompts, params, _EngineOptions(speculate, fixed_k, threads), stages)
    if as_json:
        typer.echo(json.dumps(_to_json(run)))
    else:
        _show(run)


def _read_prompts(given: Sequence[str] | None, file: str | None) -> tuple[str, ...]:
    if bool(given) == (file is not None):
        raise typer.BadParameter("give prompts either with --prompt or with --prompts-file", param_hint="--prompt")
    if file is None:
        return tuple(given or ())
    source = "stdin" if file == "-" else file
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    # A form feed or U+2028, at which splitlines splits too, belongs to the prompt.
    lines = tuple(line for line in re.split(r"\r?\n", text) if line.strip())
    if not lines:
        raise ValueError(f"{source} holds no prompts; write one per line")
    return lines


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def _generate(
    directory: Path,
    texts: tuple[str, ...],
    prompts: Sequence[Prompt],
    params: SamplingParams,
    options: _EngineOptions,
    stages: Stages,
) -> _Run:
    from polybatch.engine import Engine
    from polybatch.program import Program

    program = Program.load(directory)
    stages("loading the program")
    speculation = load_speculation(options.speculate, options.fixed_k)
    with Engine(program, speculation, fixed_k=options.fixed_k, threads=options.threads) as engine:
        stages("generating")
        started = time.perf_counter()
        completions = _complete(engine, prompts, params, stages)
        return _Run(program.path, texts, params, completions, engine.stats, time.perf_counter() - started)


def _complete(
    engine: Engine, prompts: Sequence[Prompt], params: SamplingParams, stages: Stages
) -> tuple[Completion, ...]:
    """All prompts at once; the deltas of the request that is waited for are the clock of the bar."""
    handles = [engine.add_request(prompt, params) for prompt in prompts]
    shown = time.perf_counter()
    for handle in handles:
        for _ in handle:
            if time.perf_counter() - shown < _REFRESH_SECONDS:  # a snapshot per token would slow the steps
                continue
            shown, stats = time.perf_counter(), engine.stats
            note = f"{stats.requests_finished} of {len(handles)} answers, {stats.generated_tokens} tokens"
            stages.update(stats.requests_finished, len(handles), note)
    return tuple(handle.result() for handle in handles)


def _show(run: _Run) -> None:
    from polybatch.cli.tables import print_stats

    for text, completion in zip(run.texts, run.completions, strict=True):
        if len(run.texts) > 1:
            typer.echo(f"> {text}")
        typer.echo(completion.text)
        if len(run.texts) > 1:
            typer.echo()
    print_stats(run.stats, run.seconds)
    if run.stats.speculation is not None:
        typer.echo(speculation_line(run.stats.speculation), err=True)


def _to_json(run: _Run) -> dict[str, Any]:
    stats = run.stats
    return {
        "program": str(run.program),
        "params": asdict(run.params),
        "completions": [
            {
                "prompt": text,
                "prompt_token_ids": list(completion.prompt_token_ids),
                "text": completion.text,
                "token_ids": list(completion.token_ids),
                "finish_reason": completion.finish_reason,
                **speculation_json(completion.speculation),
            }
            for text, completion in zip(run.texts, run.completions, strict=True)
        ],
        "stats": {
            "seconds": run.seconds,
            "prompt_tokens": stats.prompt_tokens,
            "reused_tokens": stats.reused_tokens,
            "generated_tokens": stats.generated_tokens,
            "specializations": [
                {
                    "name": row.name,
                    "steps": row.steps,
                    "live_rows": row.live_rows,
                    "padding_rows": row.padding_rows,
                    "total_ms": row.total_ms,
                    "p50_ms": row.p50_ms,
                }
                for row in stats.specializations.values()
            ],
            **speculation_json(stats.speculation),
        },
    }
