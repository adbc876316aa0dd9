"""Tables and lines for people; plain text when stdout is no terminal."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from polybatch.cli.report import ProgramReport
from polybatch.engine.stats import EngineStats
from polybatch.program import TensorSpec

_WIDTH = 120  # of tables that go to a file
_LABEL_WIDTH = 16


def format_bytes(count: float) -> str:
    """``1536`` as ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def print_fact(label: str, value: str) -> None:
    """One line of the form ``label   value``, however long."""
    typer.echo(f"{label:<{_LABEL_WIDTH}}{value}")


def print_specializations(report: ProgramReport) -> None:
    """The table of specializations, with the columns that this program has a use for."""
    rows, times = report.table.rows, report.manifest.step_times()
    columns = {
        "specialization": [row.name for row in rows],
        "batch_size": [str(row.batch_size) for row in rows],
        "seq_len": [str(row.seq_len) for row in rows],
        "ctx_len": [str(row.ctx_len) for row in rows],
    }
    if report.table.config.uses_comp_ctx_lengths:
        columns["comp_ctx_length"] = [str(row.comp_ctx_length) for row in rows]
    if report.table.config.speculative:
        columns["num_logits_to_keep"] = [str(row.num_logits_to_keep) for row in rows]
    if times:
        columns["step ms"] = [f"{times[row]:.2f}" if row in times else "" for row in rows]
    _print_table(columns)


def print_io(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """The inputs and outputs of a step."""
    tensors = [*inputs, *outputs]
    _print_table(
        {
            "tensor": [tensor.name for tensor in tensors],
            "role": ["input"] * len(inputs) + ["output"] * len(outputs),
            "dtype": [tensor.dtype for tensor in tensors],
            "shape": [f"[{', '.join(str(size) for size in tensor.shape)}]" for tensor in tensors],
        },
        numbers=(),
    )


def print_files(report: ProgramReport) -> None:
    """The files with their sizes, and what is wrong with them."""
    columns = {
        "file": [file.name for file in report.files],
        "size": [format_bytes(file.size) for file in report.files],
    }
    if report.damaged:
        columns["problem"] = [file.problem or "" for file in report.files]
    _print_table(columns, numbers=("size",))


def print_stats(stats: EngineStats, seconds: float) -> None:
    """On stderr: what ran, by specialization, and the tokens generated."""
    rows = list(stats.specializations.values())
    columns = {
        "specialization": [row.name for row in rows],
        "steps": [str(row.steps) for row in rows],
        "rows": [str(row.live_rows) for row in rows],
        "padding rows": [str(row.padding_rows) for row in rows],
        "p50 ms": [f"{row.p50_ms:.2f}" if row.p50_ms is not None else "" for row in rows],
    }
    _print_table(columns, stderr=True)
    typer.echo(
        f"\n{stats.prompt_tokens} prompt tokens and {stats.generated_tokens} new tokens in {seconds:.2f} s: "
        f"{stats.generated_tokens / seconds:.1f} new tokens/s",
        err=True,
    )


def _print_table(columns: dict[str, list[str]], *, numbers: Sequence[str] | None = None, stderr: bool = False) -> None:
    """Columns of equal length; all but the first hold numbers unless ``numbers`` names those that do."""
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    numeric = list(columns)[1:] if numbers is None else numbers
    for name in columns:
        table.add_column(name, justify="right" if name in numeric else "left", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print()
    console.print(table)
