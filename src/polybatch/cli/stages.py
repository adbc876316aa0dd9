"""What is going on, on stderr: a bar with its seconds on a terminal, one line per stage elsewhere."""

from __future__ import annotations

from types import TracebackType

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Stages:
    """Call it with the name of each stage as it starts; use it as a context manager around the work.

    With ``bars`` false, or when stderr is no terminal, it writes each name on a line of its own.
    """

    def __init__(self, bars: bool = True) -> None:
        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._progress = _progress(console) if bars and console.is_terminal else None
        self._task: TaskID | None = None

    def __call__(self, stage: str) -> None:
        """Start the next stage; the one before it is done."""
        if self._progress is None:
            typer.echo(stage, err=True)
            return
        self._finish_task()
        self._task = self._progress.add_task(stage, total=None, note="")

    def update(self, completed: int, total: int, note: str) -> None:
        """How far the running stage is; shown by a bar only."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=completed, total=total, note=note)

    def __enter__(self) -> Stages:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            if error is None:
                self._finish_task()
            self._progress.stop()

    def _finish_task(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=1, completed=1, note="")


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(finished_text="\u2713"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
