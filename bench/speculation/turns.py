"""The same prompts in several engines by turns."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.speculation.measure import Chat, Sample
from bench.speculation.process import EngineProcess, Tokens
from polybatch import SamplingParams


class Turns:
    """Every group of prompts, all queued at once, in every engine; the engines take turns in random order."""

    def __init__(self, groups: Sequence[list[Chat]], params: SamplingParams) -> None:
        self._groups = groups
        self._params = params
        self._order = random.Random(0)
        self._answers: dict[int, Tokens] = {}
        self.samples: list[Sample] = []

    def run(self, engines: Sequence[EngineProcess]) -> None:
        """One round. RuntimeError when an engine answers otherwise than one before it."""
        for index, group in enumerate(self._groups):
            for engine in self._order.sample(list(engines), len(engines)):
                sample, tokens = engine.run(index, group, self._params)
                if tokens != self._answers.setdefault(index, tokens):
                    raise RuntimeError(f"{engine.name} answers group {index} differently")
                self.samples.append(sample)
