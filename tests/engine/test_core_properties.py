"""Any mix of requests equals the solo runs; the engine depends on nothing above it."""

import ast
import sys
from pathlib import Path

from engine_harness import Harness
from engine_mock import mock_program
from hypothesis import given, settings
from hypothesis import strategies as st
from request_mixes import BATCHES, CTX_LEN, EOS, REQUEST, run_mix

import polybatch.engine
from polybatch.engine.request import Completion, Delta

REQUESTS = st.lists(REQUEST, max_size=8)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, BATCHES, st.integers(0, 2), st.booleans(), st.booleans())
def test_any_mix_of_requests_equals_the_solo_runs(requests, batches, spare_slots, continuous, prefix_cache):
    program = mock_program(
        batches if continuous else batches[-1],
        full_batch_size=batches[-1] + spare_slots,
        ctx_len=CTX_LEN,
        continuous_batching=continuous,
        eos_token_ids=EOS,
    )
    harness = Harness(program, prefix_cache=prefix_cache)
    run_mix(harness, requests)
    for events in harness.events:
        assert [type(event) for event in events[-2:]] == [Delta, Completion]
        tokens = [token for delta in events[:-1] for token in delta.token_ids]
        assert tuple(tokens) == events[-1].token_ids


def test_the_engine_imports_only_numpy_and_the_layers_below():
    """And llguidance, in one place."""
    allowed = {"numpy", "__future__"} | set(sys.stdlib_module_names)
    for path in Path(polybatch.engine.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                below = name.startswith("polybatch.engine") or name == "polybatch.errors"
                grammars = name == "llguidance" and path.name == "grammar.py"
                assert below or grammars or name.split(".")[0] in allowed, f"{path.name} imports {name}"
