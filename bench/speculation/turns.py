"""The same prompts in several engines by turns."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.speculation.measure import Chat, Sample
from bench.speculation.process import EngineProcess, Tokens
from polybatch import SamplingParams


def run_by_turns(
    engines: Sequence[EngineProcess], groups: Sequence[list[Chat]], params: SamplingParams, rounds: int
) -> tuple[list[Sample], Tokens]:
    """Every group of prompts, all queued at once, in every engine; the engines take turns in random order.

    Returns the samples, and prompts and answers as token ids. RuntimeError when two engines answer differently.
    """
    order = random.Random(0)
    samples: list[Sample] = []
    answers: dict[int, Tokens] = {}
    for _ in range(rounds):
        for index, group in enumerate(groups):
            for engine in order.sample(list(engines), len(engines)):
                sample, tokens = engine.run(index, group, params)
                if tokens != answers.setdefault(index, tokens):
                    raise RuntimeError(f"{engine.name} answers group {index} differently")
                samples.append(sample)
    return samples, [pair for index in answers for pair in answers[index]]
