"""Drives an engine core step by step, with a clock that the test owns; and small helpers of the engine tests."""

import threading
import time

from engine_mock import MockProgram

from polybatch.engine.core import EngineCore
from polybatch.engine.request import Request
from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.speculation.proposer import Speculation
from polybatch.engine.speculation.speculator import open_speculator
from polybatch.engine.stats import StatsCollector
from polybatch.engine.structured.grammar import GrammarCompiler


class Harness:
    """A core whose steps the test drives; ``events[i]`` is what request i was sent."""

    def __init__(
        self,
        program: MockProgram,
        speculation: Speculation | None = None,
        fixed_k: int | None = None,
        *,
        prefix_cache: bool = False,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.grammars = grammars
        self.session = program.session()
        speculator = open_speculator(program, speculation, fixed_k, None, skips_padding=False)
        self.stats = StatsCollector(None if speculator is None else speculator.total, program.full_batch_size)
        self.core = EngineCore(
            program,
            self.session,
            program.text_tokenizer,
            self.stats,
            clock=iter(range(10**9)).__next__,
            speculator=speculator,
            prefix_cache=prefix_cache,
        )
        self.events: list[list] = []

    def add(self, prompt, *, deadline_s=None, **params) -> int:
        events: list = []
        self.events.append(events)
        request_id = len(self.events) - 1
        sampling = SamplingParams(**params)
        constraint = None if sampling.structured is None else self.grammars.compile(sampling.structured)
        self.core.add([Request(request_id, tuple(prompt), sampling, events.append, deadline_s, constraint)])
        return request_id

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.core.step()

    def finish(self) -> list:
        while self.core.step():
            pass
        return [events[-1] for events in self.events]

    @property
    def decode_slots(self) -> list[tuple[int, ...]]:
        return [step.slots for step in self.session.steps if step.phase == "decode"]


def answers(completions):
    return [(completion.token_ids, completion.finish_reason) for completion in completions]


def engine_threads():
    return [thread for thread in threading.enumerate() if thread.name == "polybatch-engine"]


def wait_until(condition, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.001)


def greedy(max_tokens, **options):
    return SamplingParams(max_tokens=max_tokens, **options)
