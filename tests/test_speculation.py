"""Speculation on compiled programs: what a step over drafted tokens gives and writes, and the engine's answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import VOCAB
from scripted import Script, Scripted
from steps import decode, empty_step, prefill

from polybatch import AutoModelForCausalLM, DraftModel, Engine, Program, PromptLookup, SamplingParams
from polybatch.session import InferenceSession

SLOTS, CTX_LEN, MAX_K = 4, 64, 7
PROMPTS = [np.random.default_rng(seed).integers(0, VOCAB, 3 + seed).tolist() for seed in range(6)]


@pytest.fixture(scope="module", params=["eager", "cpu"])
def program(request: pytest.FixtureRequest, llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return AutoModelForCausalLM.from_pretrained(llama_dir).compile(
        tmp_path_factory.mktemp("speculation") / "out.poly",
        batch_size=[1, 2, 4],
        continuous_batching=True,
        full_batch_size=SLOTS,
        num_speculative_tokens=[0, 3, MAX_K],
        ctx_len=CTX_LEN,
        prefill_seq_len=16,
        target=request.param,
    )


def verify(
    session: InferenceSession, program: Program, live: dict[int, tuple[list[int], int]], drafted: int
) -> dict[int, Any]:
    """A decode step at K=``drafted``: ``live[slot] = (tokens, position of the first)``; logits by slot."""
    row = program.table.choose_decode(len(live), drafted, max(position for _, position in live.values()))
    inputs = empty_step(row, program.table)
    idle = [slot for slot in range(SLOTS) if slot not in live]
    inputs["batch_index"][:, 0] = [*live, *idle][: row.batch_size]
    for index, (tokens, position) in enumerate(live.values()):
        inputs["input_ids"][index, : len(tokens)] = tokens
        inputs["position_ids"][index, : len(tokens)] = np.arange(position, position + len(tokens))
    logits = session.run(inputs)["logits"]
    assert logits.shape == (row.batch_size, drafted + 1, VOCAB)
    return {slot: logits[index] for index, slot in enumerate(live)}


def test_live_logits_are_those_of_the_whole_step(program: Program) -> None:
    with program.session() as session:
        for lengths in ([1], [2, 4, 1], [MAX_K + 1, 1, 1, 3], [2, 2], [1, 1, 1, 1]):
            row = program.table.choose_decode(len(lengths), max(lengths) - 1, 0)
            inputs = empty_step(row, program.table)
            inputs["batch_index"][:, 0] = range(row.batch_size)
            for index, count in enumerate(lengths):
                inputs["input_ids"][index, :count] = range(1 + index, 1 + index + count)
                inputs["position_ids"][index, :count] = range(count)
            whole = session.run(inputs)["logits"]
            live = session.run_live(inputs)
            assert session.last_specialization == row
            assert same_logits(program, live, whole[inputs["position_ids"] >= 0])


def same_logits(program: Program, actual: Any, expected: Any) -> bool:
    """Bit by bit where the program promises that."""
    if program.manifest.batch_invariant:
        return bool(np.array_equal(actual, expected))
    return bool(np.allclose(actual, expected, atol=1e-5))


@pytest.mark.parametrize("drafted", [3, MAX_K])
def test_a_step_gives_the_logits_after_every_drafted_token(program: Program, drafted: int) -> None:
    tokens = list(range(40, 40 + drafted + 1))
    with program.session() as session:
        for slot in range(2):
            prefill(session, program.table, PROMPTS[slot], slot)
        starts = {slot: len(PROMPTS[slot]) for slot in range(2)}
        together = verify(session, program, {slot: (tokens, starts[slot]) for slot in range(2)}, drafted)
        for slot, start in starts.items():
            for column, token in enumerate(tokens):
                alone = decode(session, program.table, {slot: (token, start + column)})[slot]
                assert same_logits(program, together[slot][column], alone)


def test_rows_of_different_lengths_have_the_logits_and_the_cache_of_single_steps(program: Program) -> None:
    lengths = {2: 1, 0: 4, 3: 2}
    with program.session() as together, program.session() as alone:
        for session in (together, alone):
            for slot in lengths:
                prefill(session, program.table, PROMPTS[slot], slot)
        live = {slot: (list(range(40, 40 + count)), len(PROMPTS[slot])) for slot, count in lengths.items()}
        logits = verify(together, program, live, 3)
        for slot, (tokens, start) in live.items():
            for column, token in enumerate(tokens):
                single = decode(alone, program.table, {slot: (token, start + column)})[slot]
                assert same_logits(program, logits[slot][column], single)
            for one, other in zip(cells(together)[slot], cells(alone)[slot], strict=True):
                assert same_logits(program, one.numpy(), other.numpy())


def test_a_partial_proposal_writes_its_own_tokens_and_a_longer_one_follows(program: Program) -> None:
    """Case 6, with a neighbour in the batch and another outside of it."""
    with program.session() as session:
        for slot in range(3):
            prefill(session, program.table, PROMPTS[slot], slot)
        before = cells(session)
        verify(session, program, {0: ([9, 8], 3), 1: ([7, 6, 5, 4], 4)}, 3)
        after = cells(session)
        assert changed(before, after) == {0: {3, 4}, 1: {4, 5, 6, 7}}
        verify(session, program, {0: ([3, 2, 1, 9], 5)}, 3)
        assert changed(after, cells(session)) == {0: {5, 6, 7, 8}}


def cells(session: InferenceSession) -> list[list[torch.Tensor]]:
    """Keys and values by slot."""
    slots = [session.read_slot(slot) for slot in range(SLOTS)]
    return [[*slot.keys, *slot.values] for slot in slots]


def changed(before: list[list[torch.Tensor]], after: list[list[torch.Tensor]]) -> dict[int, set[int]]:
    """Positions that differ, by slot."""
    found: dict[int, set[int]] = {}
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        for one, other in zip(old, new, strict=True):
            found.setdefault(slot, set()).update((one != other).any(dim=(0, 2)).nonzero().flatten().tolist())
    return {slot: positions for slot, positions in found.items() if positions}


class Watched:
    """A program whose one session the test may look into; ``fault`` is called before every step."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._session = program.session()
        self.fault: Any = None
        self.positions: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def session(self, threads: int | None = None) -> Watched:
        return self

    def run_live(self, inputs: Any) -> Any:
        self.positions.append(inputs["position_ids"])
        if self.fault is not None:
            self.fault(inputs)
        return self._session.run_live(inputs)

    @property
    def skips_padding(self) -> bool:
        return self._session.skips_padding

    @property
    def copies_slots(self) -> bool:
        return self._session.copies_slots

    def copy_slot(self, source: int, target: int, positions: int) -> None:
        self._session.copy_slot(source, target, positions)

    def read_slot(self, slot: int) -> Any:
        return self._session.read_slot(slot)

    def close(self) -> None:
        """The test looks at the cache after the engine is gone."""


def plain(program: Program, prompts: Sequence[list[int]], max_tokens: int) -> list[tuple[int, ...]]:
    with Engine(program) as engine:
        return [a.token_ids for a in engine.generate(prompts, SamplingParams(max_tokens=max_tokens))]


def from_answers(prompts: Sequence[list[int]], answers: Sequence[tuple[int, ...]], wrong_at: Sequence[int]) -> Script:
    """Drafts out of the known answers; prompt i's are wrong at position ``wrong_at[i]``."""

    def script(step: int, tokens: list[int], limit: int) -> list[int]:
        (which,) = [i for i, prompt in enumerate(prompts) if tokens[: len(prompt)] == prompt]
        at = len(tokens) - len(prompts[which])
        drafted = list(answers[which][at : at + limit])
        if wrong_at[which] < len(drafted):
            drafted[wrong_at[which]] = (drafted[wrong_at[which]] + 1) % VOCAB
        return drafted

    return script


@pytest.mark.parametrize("drafted", [3, MAX_K])
def test_rejected_drafts_leave_no_trace(program: Program, drafted: int) -> None:
    """Case 5: three rows of one batch with wrong drafts at different positions, from the first to none."""
    prompts = PROMPTS[:3]
    expected = plain(program, prompts, 40)
    for first in range(0, drafted + 1, 2):
        wrong_at = [first, (first + 1) % (drafted + 1), drafted]
        script = from_answers(prompts, expected, wrong_at)
        with Engine(program, Scripted(script), fixed_k=drafted) as engine:
            streams = [engine.stream(prompt, SamplingParams(max_tokens=40)) for prompt in prompts]
            deltas = [[delta.token_ids for delta in stream] for stream in streams]
        assert [tuple(token for part in parts for token in part) for parts in deltas] == expected
        for parts, wrong in zip(deltas, wrong_at, strict=True):
            assert {len(part) for part in parts[1:-1]} <= {wrong + 1}
    assert expected == plain(program, prompts, 40)


def test_speculation_stops_at_the_end_of_the_context(program: Program) -> None:
    """Case 7: 60 of 64 positions are prompt, K=7, and a neighbour is live."""
    prompts = [list(range(1, 61)), [5, 6, 7]]
    expected = plain(program, prompts, 100)
    watched = Watched(program)
    before = watched.read_slot(2)
    with Engine(watched, Scripted(from_answers(prompts, expected, [9, 9])), fixed_k=MAX_K) as engine:
        answers = engine.generate(prompts, SamplingParams(max_tokens=100))
    assert [answer.token_ids for answer in answers] == expected
    assert (len(answers[0].token_ids), answers[0].finish_reason) == (4, "length")
    assert max(positions.max() for positions in watched.positions) < CTX_LEN
    assert all(torch.equal(old, new) for old, new in zip(before.keys, watched.read_slot(2).keys, strict=True))


def test_a_failed_k_0_step_fails_its_requests_and_the_next_k_7_step_is_right(program: Program) -> None:
    """Case 14."""
    expected = plain(program, PROMPTS[:2], 30)
    watched = Watched(program)

    def fault(inputs: Any) -> None:
        if inputs["position_ids"].shape[1] == 1:
            raise RuntimeError("boom")

    script = from_answers(PROMPTS[:2], expected, [9, 9])
    with Engine(watched, Scripted(lambda *a: [] if len(a[1]) < 6 else script(*a)), fixed_k=MAX_K) as engine:
        watched.fault = fault
        failing = engine.add_request(PROMPTS[0], SamplingParams(max_tokens=30))
        with pytest.raises(Exception, match="boom"):
            failing.result()
        watched.fault = None
        (answer,) = engine.generate(PROMPTS[1:2], SamplingParams(max_tokens=30))
        assert answer.token_ids == expected[1]
        assert any(k == MAX_K for _, k in engine.stats.speculation.steps)


def test_all_rows_end_in_the_same_step(program: Program) -> None:
    """Case 14."""
    expected = plain(program, PROMPTS[:SLOTS], 9)
    with Engine(program, Scripted(from_answers(PROMPTS, expected, [9] * SLOTS)), fixed_k=MAX_K) as engine:
        answers = engine.generate(PROMPTS[:SLOTS], SamplingParams(max_tokens=9))
        assert [answer.token_ids for answer in answers] == expected
        assert engine.stats.live == 0
        (again,) = engine.generate(PROMPTS[:1], SamplingParams(max_tokens=9))
        assert again.token_ids == expected[0]


def test_prompt_lookup_gives_the_answers_of_one_token_at_a_time(program: Program) -> None:
    prompts = [prompt * 4 for prompt in PROMPTS]
    expected = plain(program, prompts, 32)
    for fixed_k in (None, 3, MAX_K):
        with Engine(program, PromptLookup(), fixed_k=fixed_k) as engine:
            answers = engine.generate(prompts, SamplingParams(max_tokens=32))
        assert [answer.token_ids for answer in answers] == expected


@pytest.fixture(scope="module")
def draft_program(llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The same model, as another program with fewer slots and a shorter context."""
    return AutoModelForCausalLM.from_pretrained(llama_dir).compile(
        tmp_path_factory.mktemp("draft") / "out.poly",
        batch_size=[1, 3],
        continuous_batching=True,
        full_batch_size=3,
        ctx_len=48,
        prefill_seq_len=8,
        target="eager",
        profile=False,
    )


@pytest.mark.parametrize("fixed_k", [None, 3, MAX_K])
def test_a_draft_model_gives_the_answers_of_one_token_at_a_time(
    program: Program, draft_program: Program, fixed_k: int | None
) -> None:
    expected = plain(program, PROMPTS, 32)
    with Engine(program, DraftModel(draft_program), fixed_k=fixed_k) as engine:
        answers = engine.generate(PROMPTS, SamplingParams(max_tokens=32))
        speculation = engine.stats.speculation
    assert [answer.token_ids for answer in answers] == expected
    if fixed_k is not None:
        assert speculation is not None
        assert speculation.accepted > 0.9 * speculation.drafted > 0


def test_a_seed_gives_the_tokens_that_it_gives_without_speculation(program: Program) -> None:
    """Case 12 under speculation: the proposals that a step happens to verify change no draw."""
    params = SamplingParams(max_tokens=30, temperature=0.3, top_p=0.9, seed=42)
    prompt = PROMPTS[3] * 4
    with Engine(program) as engine:
        (expected,) = engine.generate([prompt], params)
    for fixed_k in (None, 3, MAX_K):
        with Engine(program, PromptLookup(), fixed_k=fixed_k) as engine:
            answers = engine.generate([prompt, *PROMPTS], [params] + [SamplingParams(max_tokens=20)] * len(PROMPTS))
        assert answers[0].token_ids == expected.token_ids
