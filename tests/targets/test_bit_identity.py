"""The promise: a row does not know its neighbours. Logits of one sequence, bit for bit, however it is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from architectures import VOCAB
from numpy.typing import NDArray
from steps import decode, prefill

from polybatch import AutoModelForCausalLM, Program
from polybatch.session import InferenceSession
from polybatch.targets.cpu.isa import available_isas

SLOTS = 128
PROMPT, DECODED = 150, 3
CROWD_TOKENS = 20
Logits = list[NDArray[np.float32]]


Build = tuple[str, str, str | None]
"""(isa, dtype, weights)"""


def _builds() -> list[Build]:
    """float on every instruction set here; int8 on the best and the plainest, which spares compiles."""
    isas = [isa.name for isa in available_isas()]
    floats = [(isa, dtype, None) for dtype in ("float32", "bfloat16") for isa in isas]
    ends = dict.fromkeys([isas[0], "portable"])
    formats = [("float32", "int8"), ("bfloat16", "int8-weight-only")]
    return [*floats, *((isa, *format) for format in formats for isa in ends)]


@pytest.fixture(scope="module")
def builds() -> dict[Build, Program]:
    """The programs made so far, whatever order the tests run in."""
    return {}


@pytest.fixture(scope="module", params=_builds(), ids=lambda build: f"{build[0]}-{build[2] or build[1]}")
def program(
    request: pytest.FixtureRequest,
    builds: dict[Build, Program],
    llama_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Program:
    key = isa, dtype, weights = request.param
    if key not in builds:
        builds[key] = AutoModelForCausalLM.from_pretrained(llama_dir, dtype=dtype).compile(
            tmp_path_factory.mktemp("identity") / "out.poly",
            batch_size=[*range(1, 9), SLOTS],
            continuous_batching=True,
            full_batch_size=SLOTS,
            ctx_len=256,
            prefill_seq_len=128,
            weights=weights,
            isa=isa,
            profile=False,
        )
    return builds[key]


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return np.random.default_rng(3).integers(0, VOCAB, PROMPT + DECODED).tolist()


@pytest.fixture(scope="module")
def solo(program: Program, tokens: list[int]) -> Logits:
    """The sequence alone, in slot 0, at batch 1, on one thread, in chunks of 128."""
    with program.session(threads=1) as session:
        return _replay(session, program, tokens, slot=0, batch_size=1)


@pytest.fixture(scope="module", params=[1, 2])
def session(program: Program, request: pytest.FixtureRequest) -> Iterator[InferenceSession]:
    """A session whose slots all hold random sequences."""
    with program.session(threads=request.param) as crowded:
        rng = np.random.default_rng(4)
        for position in range(CROWD_TOKENS):
            decode(crowded, program.table, {slot: (int(rng.integers(VOCAB)), position) for slot in range(SLOTS)})
        yield crowded


def _replay(
    session: InferenceSession,
    program: Program,
    tokens: list[int],
    slot: int,
    batch_size: int,
    neighbours: int = 0,
    chunk: int | None = None,
) -> Logits:
    """Prefill and decode one sequence; decode steps also move ``neighbours`` other sequences on."""
    rng = np.random.default_rng([slot, batch_size])
    logits = [prefill(session, program.table, tokens[:PROMPT], slot, chunk)]
    others = [int(other) for other in rng.permutation(SLOTS) if other != slot][:neighbours]
    for position in range(PROMPT, PROMPT + DECODED):
        live = {other: (int(rng.integers(VOCAB)), int(rng.integers(CROWD_TOKENS))) for other in others}
        live[slot] = (tokens[position], position)
        order = dict(sorted(live.items(), key=lambda _: rng.random()))
        logits.append(decode(session, program.table, order, batch_size)[slot])
    return logits


def _assert_same_bits(produced: Logits, expected: Logits) -> None:
    assert all(np.array_equal(a, b) for a, b in zip(produced, expected, strict=True))


@pytest.mark.parametrize("batch_size", [*range(1, 9), SLOTS])
def test_every_batch_size_full_of_neighbours(
    session: InferenceSession, program: Program, tokens: list[int], solo: Logits, batch_size: int
) -> None:
    _assert_same_bits(_replay(session, program, tokens, 5, batch_size, neighbours=batch_size - 1), solo)


def test_every_slot(program: Program, tokens: list[int]) -> None:
    """The sequence in all slots at once, token by token, against a prefill in one slot of another session."""
    with program.session(threads=1) as alone, program.session(threads=2) as everywhere:
        for position, token in enumerate(tokens[:CROWD_TOKENS]):
            rows = decode(everywhere, program.table, dict.fromkeys(range(SLOTS), (token, position)))
        expected = prefill(alone, program.table, tokens[:CROWD_TOKENS], slot=3)
    assert all(np.array_equal(logits, expected) for logits in rows.values())


@pytest.mark.parametrize("chunk", [1, 7, 128])
def test_every_prefill_chunking(
    session: InferenceSession, program: Program, tokens: list[int], solo: Logits, chunk: int
) -> None:
    _assert_same_bits(_replay(session, program, tokens, 9, 4, neighbours=2, chunk=chunk), solo)


def test_padding_rows(session: InferenceSession, program: Program, tokens: list[int], solo: Logits) -> None:
    _assert_same_bits(_replay(session, program, tokens, 77, SLOTS), solo)
