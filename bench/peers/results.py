"""What was measured: plain values that go to JSON, Markdown and plots."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass
class Measurement:
    """One kind of work on one peer. Without ``values``, ``reason`` says why.

    work: a cell's name ("b=8", "b=8 K=7"), "prefill 512" or "end to end". unit: "ms" or "tokens/s".
    values: one per sample. turns: the median of each turn, which shows how far the machine drifted.
    disturbed_turns: those during which other processes used the machine.
    group: the peers that were measured together; figures compare within a group only.
    first_answer: the tokens of the first request, end to end.
    """

    model: str
    precision: str
    work: str
    peer: str
    unit: str
    values: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    reason: str = ""
    note: str = ""
    group: str = ""
    disturbed_turns: int = 0
    first_answer: list[int] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """(highest - lowest turn) / median."""
        if not self.median or len(self.turns) < 2:
            return None
        return (max(self.turns) - min(self.turns)) / self.median


@dataclass
class Results:
    """One run of the driver."""

    machine: dict[str, str]
    settings: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    about: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(m), "median": m.median, "spread": m.spread} for m in self.measurements]
        return {**asdict(self), "measurements": rows}

    def of(self, model: str, precision: str, work: str, peer: str) -> list[Measurement]:
        """The measurements of one cell on one peer; several where ours ran in more than one group."""
        wanted = (model, precision, work, peer)
        return [m for m in self.measurements if (m.model, m.precision, m.work, m.peer) == wanted]

    def ratio(self, measurement: Measurement, base: str) -> float | None:
        """How many times faster ``base`` was than this, in the same group and with the same note's best."""
        same = self.of(measurement.model, measurement.precision, measurement.work, base)
        ours = [m.median for m in same if m.median and (m.group == measurement.group or m.note)]
        if not ours or not measurement.median:
            return None
        return measurement.median / min(ours) if measurement.unit == "ms" else max(ours) / measurement.median

    def with_earlier(self, earlier: Results | None) -> Results:
        """These, and what ``earlier`` has of work that these do not have."""
        if earlier is None:
            return self

        def work(row: Measurement) -> tuple[str, ...]:
            return (row.model, row.precision, row.work, row.peer if row.work == "open" else "")

        here = {work(row) for row in self.measurements}
        kept = [row for row in earlier.measurements if work(row) not in here]
        rows = sorted([*kept, *self.measurements], key=lambda row: (row.model, row.precision))
        return replace(self, measurements=rows, about={**earlier.about, **self.about})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Results:
        derived = ("median", "spread")
        rows = [Measurement(**{k: v for k, v in row.items() if k not in derived}) for row in data["measurements"]]
        return cls(**{**data, "measurements": rows})
