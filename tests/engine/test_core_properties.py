"""Any mix of requests equals the solo runs; the engine depends on nothing above it."""

import ast
import sys
from pathlib import Path

from engine_harness import Harness
from engine_mock import VOCAB, mock_program
from hypothesis import given, settings
from hypothesis import strategies as st

import polybatch.engine
from polybatch.engine.request import Completion, Delta

REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=31),
        st.integers(1, 40),
        st.integers(0, 6),  # steps before the next request comes
        st.none() | st.integers(0, 8),  # abort after so many steps
        st.sampled_from([{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.5, "top_k": 5, "seed": 9}]),
    ),
    max_size=8,
)
BATCHES = st.sets(st.integers(1, 4), min_size=1).map(sorted)


def solo(prompt, params):
    harness = Harness(mock_program([1], full_batch_size=1, ctx_len=32, eos_token_ids=tuple(range(0, VOCAB, 12))))
    harness.add(prompt, **params)
    return harness.finish()[0]


@settings(max_examples=60, deadline=None)
@given(REQUESTS, BATCHES, st.integers(0, 2), st.booleans())
def test_any_mix_of_requests_equals_the_solo_runs(requests, batches, spare_slots, continuous):
    batch_size = batches if continuous else batches[-1]
    program = mock_program(
        batch_size,
        full_batch_size=batches[-1] + spare_slots,
        ctx_len=32,
        continuous_batching=continuous,
        eos_token_ids=tuple(range(0, VOCAB, 12)),
    )
    harness = Harness(program)
    aborts: dict[int, int] = {}
    for prompt, max_tokens, pause, abort_after, params in requests:
        request_id = harness.add(prompt, max_tokens=max_tokens, **params)
        if abort_after is not None:
            aborts[request_id] = abort_after
        for _ in range(pause):
            harness.step()
            aborts = {i: left - 1 for i, left in aborts.items()}
            for i in [i for i, left in aborts.items() if left < 0]:
                harness.core.abort(i)
                del aborts[i]
    outcomes = harness.finish()
    assert harness.core.scheduler.held_slots == frozenset()
    for (prompt, max_tokens, _, _, params), outcome in zip(requests, outcomes, strict=True):
        expected = solo(prompt, {"max_tokens": max_tokens, **params})
        if outcome.finish_reason == "abort":
            assert outcome.token_ids == expected.token_ids[: len(outcome.token_ids)]
        else:
            assert (outcome.token_ids, outcome.finish_reason) == (expected.token_ids, expected.finish_reason)
    for events in harness.events:
        assert [type(event) for event in events[-2:]] == [Delta, Completion]
        tokens = [token for delta in events[:-1] for token in delta.token_ids]
        assert tuple(tokens) == events[-1].token_ids


def test_the_engine_imports_only_numpy_and_the_layers_below():
    allowed = {"numpy", "__future__"} | set(sys.stdlib_module_names)
    for path in Path(polybatch.engine.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                below = name.startswith("polybatch.engine") or name == "polybatch.errors"
                assert below or name.split(".")[0] in allowed, f"{path.name} imports {name}"
