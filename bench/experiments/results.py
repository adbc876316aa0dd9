"""What an experiment found: plain values that go to JSON, Markdown and plots."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.experiments.plan import Cell
from bench.paired import Delta, Percentiles, paired_delta, percentiles


@dataclass
class CellResult:
    """Step times of one cell: ``ms[variant][i]`` of all variants are one round.

    openings: how often the sessions were opened anew, each time for an equal part of the samples. identical: whether
    all variants gave the same bits as logits. foreign_share: of the machine's processors, what other processes used.
    """

    cell: Cell
    base: str
    ms: dict[str, list[float]]
    warm_ups: int
    openings: int
    identical: bool
    foreign_share: float

    @property
    def samples(self) -> int:
        return len(self.ms[self.base])

    def times(self, variant: str) -> Percentiles:
        return percentiles(self.ms[variant])

    def deltas(self) -> dict[str, Delta]:
        """By variant, without the base."""
        return {
            name: paired_delta(self.ms[self.base], ms, self.openings)
            for name, ms in self.ms.items()
            if name != self.base
        }

    def add(self, opening: CellResult) -> None:
        """Append the samples of another opening of the same sessions."""
        for name, ms in opening.ms.items():
            self.ms[name] += ms
        self.warm_ups += opening.warm_ups
        self.openings += opening.openings
        self.identical &= opening.identical
        self.foreign_share = max(self.foreign_share, opening.foreign_share)


@dataclass
class ExperimentResult:
    """One experiment; it has passed when no delta's median is beyond ``limit``."""

    name: str
    title: str
    limit: float
    cells: list[CellResult] = field(default_factory=list)

    def all_deltas(self) -> Iterator[tuple[Cell, str, Delta]]:
        for result in self.cells:
            for variant, delta in result.deltas().items():
                yield result.cell, variant, delta

    def medians_by(self, variant: str, key: Callable[[Cell], int]) -> dict[int, float]:
        """The median over cells of their deltas' medians, for each value of ``key``."""
        groups: dict[int, list[float]] = {}
        for cell, name, delta in self.all_deltas():
            if name == variant:
                groups.setdefault(key(cell), []).append(delta.median)
        return {value: statistics.median(medians) for value, medians in sorted(groups.items())}

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "limit": self.limit,
            "cells": [
                {
                    **asdict(result),
                    "ms": {name: [round(value, 4) for value in values] for name, values in result.ms.items()},
                    "samples": result.samples,
                    "percentiles": {name: asdict(result.times(name)) for name in result.ms},
                    "deltas": {name: asdict(delta) for name, delta in result.deltas().items()},
                }
                for result in self.cells
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ExperimentResult:
        kept = ("base", "ms", "warm_ups", "openings", "identical", "foreign_share")
        cells = [CellResult(Cell(**row["cell"]), **{name: row[name] for name in kept}) for row in data["cells"]]
        return cls(data["name"], data["title"], data["limit"], cells)
