"""InferenceSession: what a step may hold, what it may change, and what it leaves alone after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import VOCAB
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from steps import Inputs, decode, decode_inputs, prefill, prefill_inputs

from polybatch import AutoModelForCausalLM, NoMatchingSpecializationError, Program, StepInputError
from polybatch.session import InferenceSession

SLOTS, CTX_LEN, CHUNK = 4, 64, 16
TOKENS = list(range(1, 21))


@pytest.fixture(scope="module", params=["eager", "cpu"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def program(target: str, llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return AutoModelForCausalLM.from_pretrained(llama_dir).compile(
        tmp_path_factory.mktemp("session") / "out.poly",
        batch_size=[1, 2, 4],
        continuous_batching=True,
        full_batch_size=SLOTS,
        ctx_len=CTX_LEN,
        prefill_seq_len=CHUNK,
        target=target,
    )


@pytest.fixture
def session(program: Program) -> Iterator[InferenceSession]:
    with program.session() as opened:
        yield opened


def _cells(session: InferenceSession) -> list[torch.Tensor]:
    """Every key and value of every slot."""
    slots = [session.read_slot(slot) for slot in range(SLOTS)]
    return [tensor for slot in slots for tensor in (*slot.keys, *slot.values)]


def _changed_positions(before: list[torch.Tensor], after: list[torch.Tensor]) -> dict[int, set[int]]:
    """Positions that differ, by slot."""
    per_slot = len(before) // SLOTS
    changed: dict[int, set[int]] = {}
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        positions = (old != new).any(dim=(0, 2)).nonzero().flatten().tolist()
        changed.setdefault(index // per_slot, set()).update(positions)
    return {slot: positions for slot, positions in changed.items() if positions}


def test_a_step_changes_only_the_new_positions_of_live_slots(session: InferenceSession, program: Program) -> None:
    for slot in range(SLOTS):
        prefill(session, program.table, TOKENS[: 5 + slot], slot)
    before = _cells(session)
    decode(session, program.table, {1: (7, 6), 2: (8, 7)}, batch_size=4)
    assert session.last_specialization is not None
    assert session.last_specialization.batch_size == 4
    assert _changed_positions(before, _cells(session)) == {1: {6}, 2: {7}}


def test_padding_columns_of_a_prefill_write_nothing(session: InferenceSession, program: Program) -> None:
    before = _cells(session)
    prefill(session, program.table, TOKENS[:3], slot=2)
    assert _changed_positions(before, _cells(session)) == {2: {0, 1, 2}}


def test_a_row_equals_itself_alone(session: InferenceSession, program: Program) -> None:
    for slot in range(SLOTS):
        prefill(session, program.table, TOKENS[slot:12], slot)
    rows = decode(session, program.table, {3: (5, 9), 0: (6, 12)})
    with program.session() as alone:
        prefill(alone, program.table, TOKENS[3:12], slot=1)
        expected = decode(alone, program.table, {1: (5, 9)})[1]
    np.testing.assert_allclose(rows[3], expected, atol=1e-5)


def test_logits_of_padding_rows_are_finite(session: InferenceSession, program: Program) -> None:
    prefill(session, program.table, TOKENS[:4], slot=0)
    logits = session.run(decode_inputs(program.table, {0: (3, 4)}, batch_size=4))["logits"]
    assert logits.shape == (4, 1, VOCAB)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()


def test_reset_forgets_every_sequence(session: InferenceSession, program: Program) -> None:
    prefill(session, program.table, TOKENS[:4], slot=0)
    session.reset()
    assert all((cells == 0).all() for cells in _cells(session))


def test_optional_inputs_may_be_left_out_or_given(session: InferenceSession, program: Program) -> None:
    inputs = prefill_inputs(program.table, TOKENS[:4], slot=0)
    with pytest.raises(StepInputError, match="unknown inputs comp_ctx_lengths"):
        session.run({**inputs, "comp_ctx_lengths": np.zeros(CTX_LEN, dtype=np.int64)})
    session.run(inputs)


Change = Callable[[Inputs], Any]


def _set(name: str, value: Any) -> Change:
    def change(inputs: Inputs) -> None:
        inputs[name] = value

    return change


def _cell(name: str, index: tuple[int, int], value: int) -> Change:
    def change(inputs: Inputs) -> None:
        inputs[name][index] = value

    return change


BAD_STEPS: dict[str, tuple[Change, str]] = {
    "another dtype": (_set("input_ids", np.zeros((2, 1), dtype=np.int32)), "must be int64"),
    "floats": (_set("position_ids", np.zeros((2, 1))), "must be int64"),
    "a list": (_set("input_ids", [[1], [2]]), "must be a numpy array"),
    "one row too many": (_set("input_ids", np.zeros((3, 1), dtype=np.int64)), "no specialization has the shapes"),
    "a flat array": (_set("input_ids", np.zeros(2, dtype=np.int64)), "no specialization has the shapes"),
    "an unknown input": (_set("attention_mask", np.ones((2, 1), dtype=np.int64)), "unknown inputs attention_mask"),
    "a missing input": (lambda inputs: inputs.pop("batch_index"), "missing inputs batch_index"),
    "a slot twice": (_set("batch_index", np.array([[1], [1]])), "names a slot twice"),
    "a slot too large": (_set("batch_index", np.array([[1], [SLOTS]])), "out of range"),
    "a negative slot": (_set("batch_index", np.array([[-1], [1]])), "out of range"),
    "a position past the end": (_cell("position_ids", (0, 0), CTX_LEN), f"position {CTX_LEN} is out of range"),
    "a position below -1": (_cell("position_ids", (0, 0), -2), "position -2 is out of range"),
    "a token past the vocabulary": (_cell("input_ids", (0, 0), VOCAB), f"token id {VOCAB} is out of range"),
    "a negative token": (_cell("input_ids", (1, 0), -5), "token id -5 is out of range"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_bad_step_is_one_clear_error_and_changes_nothing(
    session: InferenceSession, program: Program, case: str
) -> None:
    change, message = BAD_STEPS[case]
    prefill(session, program.table, TOKENS[:6], slot=0)
    before = _cells(session)
    inputs = decode_inputs(program.table, {0: (3, 6), 1: (4, 0)})
    change(inputs)
    with pytest.raises(StepInputError, match=message):
        session.run(inputs)
    assert _changed_positions(before, _cells(session)) == {}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_bad_step_is_refused_after_a_good_one_of_its_shapes(
    session: InferenceSession, program: Program, case: str
) -> None:
    change, message = BAD_STEPS[case]
    inputs = decode_inputs(program.table, {0: (3, 0), 1: (4, 0)})
    session.run(inputs)
    before = _cells(session)
    change(inputs)
    with pytest.raises(StepInputError, match=message):
        session.run(inputs)
    assert _changed_positions(before, _cells(session)) == {}


@pytest.mark.parametrize("positions", [[3, 3], [4, 3], [0, 2, 1]])
def test_positions_of_a_row_must_increase(session: InferenceSession, program: Program, positions: list[int]) -> None:
    inputs = prefill_inputs(program.table, TOKENS[: len(positions)], slot=0)
    inputs["position_ids"][0, : len(positions)] = positions
    with pytest.raises(StepInputError, match="do not increase"):
        session.run(inputs)


def test_shapes_that_were_not_compiled_are_listed(session: InferenceSession) -> None:
    shape = np.zeros((3, 1), dtype=np.int64)
    with pytest.raises(NoMatchingSpecializationError, match="decode b=4") as error:
        session.run({"input_ids": shape, "position_ids": shape, "batch_index": np.arange(3)[:, None]})
    assert "(3, 1)" in str(error.value)
    assert {shapes["input_ids"] for shapes in session.allowed_shapes} == {(1, CHUNK), (1, 1), (2, 1), (4, 1)}


def test_a_closed_session_says_so(program: Program) -> None:
    session = program.session()
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        session.run(prefill_inputs(program.table, TOKENS[:2], slot=0))


@pytest.mark.parametrize("threads", [0, -1, 100_000, 10**12])
def test_a_thread_count_fits_the_machine(program: Program, threads: int) -> None:
    with pytest.raises(ValueError, match="threads must be from 1 to"):
        program.session(threads=threads)


@pytest.mark.parametrize("threads", [1.5, "two", True])
def test_a_thread_count_is_an_int(program: Program, threads: Any) -> None:
    with pytest.raises(TypeError, match="threads must be an int"):
        program.session(threads=threads)


def test_a_session_in_a_forked_process_says_so(session: InferenceSession, program: Program) -> None:
    inputs = prefill_inputs(program.table, TOKENS[:2], slot=0)
    session._process += 1  # as it looks from the child, without a fork among running threads
    with pytest.raises(RuntimeError, match="belongs to process"):
        session.run(inputs)
    session._process -= 1


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_of_steps_equals_one_prefill(program: Program, data: st.DataObject) -> None:
    """Ragged sequences advanced by random chunks and random batches end with the logits of one plain run."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    tokens = {slot: rng.integers(0, VOCAB, data.draw(st.integers(1, 12))).tolist() for slot in range(SLOTS)}
    done = dict.fromkeys(tokens, 0)
    last: dict[int, Any] = {}
    with program.session() as session:
        while any(done[slot] < len(tokens[slot]) for slot in tokens):
            pending = [slot for slot in tokens if done[slot] < len(tokens[slot])]
            live = data.draw(st.lists(st.sampled_from(pending), min_size=1, unique=True))
            if len(live) == 1:
                (slot,) = live
                size = data.draw(st.integers(1, len(tokens[slot]) - done[slot]))
                chunk = tokens[slot][done[slot] : done[slot] + size]
                inputs = prefill_inputs(program.table, chunk, slot, done[slot])
                last[slot] = session.run(inputs)["logits"][0, 0]
                done[slot] += size
            else:
                last.update(decode(session, program.table, {s: (tokens[s][done[s]], done[s]) for s in live}))
                done.update({slot: done[slot] + 1 for slot in live})
        for slot, sequence in tokens.items():
            session.reset()
            np.testing.assert_allclose(last[slot], prefill(session, program.table, sequence, slot), atol=2e-5)


@pytest.mark.parametrize("copied", [1, 15, 16, 17, 19])
def test_a_copied_beginning_is_as_good_as_running_it(session: InferenceSession, program: Program, copied: int) -> None:
    """Bit by bit on every target: the rest runs in the same steps."""
    other = [9] * 30
    prefill(session, program.table, TOKENS, 0)
    prefill(session, program.table, other, 2)
    untouched = session.read_slot(3)
    session.copy_slot(0, 2, copied)
    rest = session.run(prefill_inputs(program.table, TOKENS[copied:][:CHUNK], 2, copied))["logits"][0, 0]
    expected = session.run(prefill_inputs(program.table, TOKENS[copied:][:CHUNK], 0, copied))["logits"][0, 0]
    np.testing.assert_array_equal(rest, expected)
    source, target = session.read_slot(0), session.read_slot(2)
    end = min(len(TOKENS), copied + CHUNK)
    for ours, theirs in zip((*target.keys, *target.values), (*source.keys, *source.values), strict=True):
        assert torch.equal(ours[:, :end], theirs[:, :end])
    after = session.read_slot(3)
    assert all(map(torch.equal, (*after.keys, *after.values), (*untouched.keys, *untouched.values)))


def test_copies_of_what_is_not_there_are_refused(session: InferenceSession) -> None:
    assert session.copies_slots
    for source, target in ((0, SLOTS), (-1, 0)):
        with pytest.raises(IndexError, match=f"the program has {SLOTS} slots"):
            session.copy_slot(source, target, 1)
    for positions in (-1, CTX_LEN + 1):
        with pytest.raises(ValueError, match="positions are out of range"):
            session.copy_slot(0, 1, positions)
