"""What each experiment compares: plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.programs import ProgramSpec

POWERS_TO_128 = (1, 2, 4, 8, 16, 32, 64, 128)
DRAFTED = (0, 3, 7, 15, 31)
BASELINE, DYNAMIC = "baseline", "dynamic"


@dataclass(frozen=True, order=True)
class Cell:
    """One decode step: ``batch`` live sequences of ``drafted`` + 1 tokens."""

    batch: int
    drafted: int = 0


@dataclass(frozen=True)
class Comparison:
    """Variants of a program that are measured in turn on the same cells; deltas are against ``base``.

    fill_all: every slot holds a sequence, and not only those that the cells step.
    """

    base: str
    programs: dict[str, ProgramSpec]
    cells: tuple[Cell, ...]
    fill_all: bool = False


@dataclass(frozen=True)
class Experiment:
    """``limit``: the largest delta, as a fraction, at which the experiment counts as passed."""

    name: str
    title: str
    limit: float
    comparisons: tuple[Comparison, ...]

    @property
    def programs(self) -> Iterator[ProgramSpec]:
        for comparison in self.comparisons:
            yield from comparison.programs.values()


def plan(model: str, precision: str) -> dict[str, Experiment]:
    """The experiments by name."""
    experiments = (
        _dynamic("E1", "one program of eight batch sizes, 128 slots", model, precision, 128, POWERS_TO_128, None),
        _dynamic("E2", "one program of four batch sizes, 8 slots", model, precision, 8, (1, 2, 4, 8), None),
        _dynamic("E3", "one program of eight batch sizes x five K, 128 slots", model, precision, 128, POWERS_TO_128,
                 DRAFTED),
        _slots("E4", "one live sequence, more and more slots", model, precision, (1, 8, 32, 128)),
    )  # fmt: skip
    return {experiment.name: experiment for experiment in experiments}


def _dynamic(
    name: str,
    title: str,
    model: str,
    precision: str,
    slots: int,
    batches: tuple[int, ...],
    drafted: tuple[int, ...] | None,
) -> Experiment:
    """One program for every batch size against one program per batch size."""
    dynamic = ProgramSpec(model, precision, batches, slots, drafted)
    comparisons = tuple(
        Comparison(
            BASELINE,
            {BASELINE: ProgramSpec(model, precision, (batch,), slots, drafted), DYNAMIC: dynamic},
            tuple(Cell(batch, k) for k in drafted or (0,)),
        )
        for batch in batches
    )
    return Experiment(name, title, 0.01, comparisons)


def _slots(name: str, title: str, model: str, precision: str, slot_counts: tuple[int, ...]) -> Experiment:
    """One decode row over caches of more and more slots, all of them filled."""
    programs = {_slots_name(slots): ProgramSpec(model, precision, (1,), slots) for slots in slot_counts}
    comparison = Comparison(_slots_name(slot_counts[0]), programs, (Cell(1),), fill_all=True)
    return Experiment(name, title, 0.03, (comparison,))


def _slots_name(slots: int) -> str:
    return f"{slots} slots" if slots > 1 else "1 slot"
