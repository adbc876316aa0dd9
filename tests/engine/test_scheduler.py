"""Fixed admission scripts (no clock, no threads), then properties over random ones."""

import time

from hypothesis import given
from hypothesis import strategies as st

from polybatch.engine.scheduler import PlannedRow, Scheduler, StepPlan


def run_step(scheduler: Scheduler, remaining: dict[int, int]) -> str:
    """Run the planned step; ``remaining`` counts the tokens each request still wants. Returns e.g. "P0" or "D0,1"."""
    plan = scheduler.plan()
    if plan is None:
        return "-"
    for row in plan.rows:
        if scheduler.advance(row.request_id, row.count):
            remaining[row.request_id] -= 1
            if remaining[row.request_id] == 0:
                scheduler.remove(row.request_id)
    return plan.phase[0].upper() + ",".join(str(row.request_id) for row in plan.rows)


def test_an_idle_scheduler_plans_nothing():
    assert Scheduler(4, 8).plan() is None


def test_a_prompt_is_cut_into_chunks():
    scheduler = Scheduler(4, 8)
    scheduler.add(7, 19)
    rows = []
    for _ in range(3):
        plan = scheduler.plan()
        rows += plan.rows
        scheduler.advance(7, plan.rows[0].count)
    assert rows == [PlannedRow(7, 0, 0, 8), PlannedRow(7, 0, 8, 8), PlannedRow(7, 0, 16, 3)]
    assert scheduler.plan() == StepPlan("decode", (PlannedRow(7, 0, 19, 1),))


def test_with_nothing_decoding_chunks_run_back_to_back():
    scheduler = Scheduler(4, 4)
    scheduler.add(0, 12)
    assert [run_step(scheduler, {0: 9}) for _ in range(4)] == ["P0", "P0", "P0", "D0"]


def test_one_chunk_between_two_decode_steps_while_anything_decodes():
    scheduler = Scheduler(2, 4)
    remaining = {0: 20, 1: 20}
    scheduler.add(0, 2)
    script = [run_step(scheduler, remaining) for _ in range(2)]
    scheduler.add(1, 10)
    script += [run_step(scheduler, remaining) for _ in range(7)]
    assert script == ["P0", "D0", "P1", "D0", "P1", "D0", "P1", "D0,1", "D0,1"]


def test_admission_is_first_come_first_served():
    scheduler = Scheduler(1, 4)
    remaining = {0: 1, 1: 1, 2: 1}
    for request_id in (2, 0, 1):
        scheduler.add(request_id, 3)
    assert [run_step(scheduler, remaining) for _ in range(4)] == ["P2", "P0", "P1", "-"]


def test_a_finished_slot_goes_to_the_newcomer_at_once():
    scheduler = Scheduler(2, 4)
    remaining = {0: 2, 1: 9, 2: 9}
    for request_id in range(3):
        scheduler.add(request_id, 3)
    assert [run_step(scheduler, remaining) for _ in range(3)] == ["P0", "D0", "P1"]
    assert scheduler.held_slots == {0, 1}
    assert [run_step(scheduler, remaining) for _ in range(3)] == ["D1", "P2", "D2,1"]  # rows are in slot order


def test_a_removed_request_leaves_queue_or_slot():
    scheduler = Scheduler(1, 4)
    scheduler.add(0, 3)
    scheduler.add(1, 3)
    scheduler.plan()
    scheduler.remove(1)
    assert (scheduler.live_count, scheduler.waiting_count) == (1, 0)
    scheduler.remove(0)
    scheduler.remove(0)
    assert scheduler.plan() is None
    assert scheduler.held_slots == frozenset()


def test_static_batching_admits_a_batch_and_waits_for_all_of_it():
    scheduler = Scheduler(2, 4, continuous=False)
    remaining = {0: 1, 1: 4, 2: 1}
    for request_id, prompt in ((0, 3), (1, 6), (2, 2)):
        scheduler.add(request_id, prompt)
    script = [run_step(scheduler, remaining) for _ in range(7)]
    assert script == ["P0,1", "P1", "D1", "D1", "D1", "P2", "-"]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 20), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 10), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def drive(actions, slots, chunk, continuous):
    """Run a script to the end; yields (plan, decoding before the plan, scheduler)."""
    scheduler = Scheduler(slots, chunk, continuous=continuous)
    remaining: dict[int, int] = {}
    cached: dict[int, int] = {}
    prompts: dict[int, int] = {}
    tail = [("step", 0, 0)] * 2000
    for kind, first, second in [*actions, *tail]:
        if kind == "add":
            request_id = len(prompts)
            prompts[request_id], remaining[request_id], cached[request_id] = first, second, 0
            scheduler.add(request_id, first)
        elif kind == "abort":
            scheduler.remove(first)
            remaining.pop(first, None)
        else:
            decoding = {i for i in remaining if cached[i] >= prompts[i]}
            plan = scheduler.plan()
            if plan is None:
                if not remaining:
                    continue
                raise AssertionError(f"requests {remaining} are pending but nothing is planned")
            yield plan, decoding, scheduler
            for row in plan.rows:
                assert row.start == cached[row.request_id]
                cached[row.request_id] += row.count
                if scheduler.advance(row.request_id, row.count):
                    remaining[row.request_id] -= 1
                    if remaining[row.request_id] == 0:
                        del remaining[row.request_id]
                        scheduler.remove(row.request_id)
    assert scheduler.held_slots == frozenset()
    assert not remaining


@given(ACTIONS, st.integers(1, 4), st.integers(1, 8), st.booleans())
def test_any_script_ends_with_all_slots_free_and_few_chunks_between_decodes(actions, slots, chunk, continuous):
    chunks = 0
    for plan, decoding, scheduler in drive(actions, slots, chunk, continuous):
        taken = [row.slot for row in plan.rows]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= scheduler.held_slots
        if plan.phase == "decode":
            assert {row.request_id for row in plan.rows} == decoding
            assert taken == sorted(taken)
            chunks = 0
        else:
            chunks = chunks + 1 if decoding else 0
            assert chunks <= 1
            assert all(1 <= row.count <= chunk for row in plan.rows)


@given(ACTIONS, st.integers(1, 4), st.integers(1, 8), st.booleans())
def test_a_script_replays(actions, slots, chunk, continuous):
    first, second = (
        [plan for plan, _, _ in drive(actions, slots, chunk, continuous)],
        [plan for plan, _, _ in drive(actions, slots, chunk, continuous)],
    )
    assert first == second


def test_a_long_queue_is_removed_and_admitted_in_linear_time():
    started = time.perf_counter()
    scheduler = Scheduler(1, 4)
    for request_id in range(60_000):
        scheduler.add(request_id, 1)
    for request_id in range(29_999, -1, -1):
        scheduler.remove(request_id)
    for request_id in range(30_000, 60_000):
        assert scheduler.plan().rows[0].request_id == request_id
        scheduler.remove(request_id)
    assert scheduler.plan() is None
    assert time.perf_counter() - started < 2
