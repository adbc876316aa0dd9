"""What came of one workload, and its speeds beside decoding one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.paired import Delta, paired_delta
from bench.speculation.measure import Sample, token_acceptance, total

BASE = "K=0"


@dataclass(frozen=True)
class Workload:
    """Prompts run at ``batch`` sequences at a time. ``acceptance``: of the oracle that drafts; None for real drafts."""

    name: str
    batch: int
    acceptance: float | None
    least: float | None
    """The speed-up over K=0 that the default is to reach."""
    samples: tuple[Sample, ...]

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys([BASE, *(sample.variant for sample in self.samples)]))

    def of(self, variant: str) -> list[Sample]:
        """In the order of groups, so that the samples of two variants are pairs."""
        return sorted((s for s in self.samples if s.variant == variant), key=lambda sample: sample.group)

    def tokens_per_second(self, variant: str) -> float:
        samples = self.of(variant)
        return sum(s.tokens for s in samples) / sum(s.seconds for s in samples)

    def speed_up(self, variant: str, *, decode_only: bool = False) -> float:
        """Tokens per second over those of K=0 in the same run; the tokens are the same, so it is a ratio of times."""
        return _seconds(self.of(BASE), decode_only) / _seconds(self.of(variant), decode_only)

    def interval(self, variant: str) -> Delta:
        """Of the time that a variant takes more, group by group."""
        return paired_delta([s.seconds for s in self.of(BASE)], [s.seconds for s in self.of(variant)])

    def token_acceptance(self, variant: str) -> float | None:
        return group_acceptance(self.of(variant))

    def tokens_per_draft(self, variant: str) -> tuple[int, int]:
        """Drafted and accepted tokens."""
        samples = self.of(variant)
        return sum(sum(s.drafted_at) for s in samples), sum(sum(s.accepted_at) for s in samples)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Workload:
        samples = [
            Sample(**{**row, "drafted_at": tuple(row["drafted_at"]), "accepted_at": tuple(row["accepted_at"])})
            for row in data["samples"]
        ]
        return cls(**{**data, "samples": tuple(samples)})


def group_acceptance(samples: Sequence[Sample]) -> float | None:
    """Of several samples together."""
    return token_acceptance(total([s.drafted_at for s in samples]), total([s.accepted_at for s in samples]))


def _seconds(samples: Sequence[Sample], decode_only: bool) -> float:
    return sum(s.decode_s if decode_only else s.seconds for s in samples)
