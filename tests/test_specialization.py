"""The table of specializations: which requests are legal, what rows they give and which row a step runs."""

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from polybatch.errors import NoMatchingSpecializationError, SpecializationError, StepInputError
from polybatch.specialization import (
    Specialization,
    SpecializationTable,
    build_table,
    identifying_inputs,
    propose_prefill_lengths,
    to_qaic_specializations,
)

GOLDEN = Path(__file__).parent / "golden"


def dynamic_table(**changes: object) -> SpecializationTable:
    request = {
        "batch_size": [1, 2, 4],
        "continuous_batching": True,
        "full_batch_size": 4,
        "ctx_len": 64,
        "prefill_seq_len": 16,
    }
    return build_table(**{**request, **changes})


def batches(specializations: tuple[Specialization, ...]) -> list[int]:
    return [row.batch_size for row in specializations]


# Rows


def test_rows_are_one_prefill_and_every_batch_size_times_every_k():
    table = dynamic_table(batch_size=[1, 4], num_speculative_tokens=[0, 3])
    assert [row.name for row in table.rows] == [
        "prefill b=1 s=16",
        "decode b=1 K=0",
        "decode b=1 K=3",
        "decode b=4 K=0",
        "decode b=4 K=3",
    ]


def test_ccl_lists_give_one_row_per_value_and_phase():
    table = build_table(ctx_len=64, prefill_seq_len=16, comp_ctx_lengths_prefill=[48], comp_ctx_lengths_decode=[32, 64])
    assert [row.name for row in table.rows] == ["prefill b=1 s=16 CCL=48", "decode b=1 CCL=32", "decode b=1 CCL=64"]


def test_a_missing_decode_ccl_list_means_the_whole_slot():
    table = build_table(ctx_len=64, prefill_seq_len=16, comp_ctx_lengths_prefill=[32, 48])
    assert [row.comp_ctx_length for row in table.rows] == [32, 48, 64]
    assert table.config.comp_ctx_lengths_decode is None


def test_static_batching_prefills_the_whole_batch_without_batch_index():
    table = build_table(batch_size=3, ctx_len=64, prefill_seq_len=16)
    assert table.config.full_batch_size == 3
    assert table.rows[0].input_shapes(continuous_batching=False) == {"input_ids": (3, 16), "position_ids": (3, 16)}


def test_continuous_batching_prefills_one_row():
    assert dynamic_table(batch_size=4).rows[0].batch_size == 1


def test_input_shapes_of_a_speculative_decode_row():
    row = dynamic_table(num_speculative_tokens=[3]).decode[-1]
    assert row.input_shapes(continuous_batching=True) == {
        "input_ids": (4, 4),
        "position_ids": (4, 4),
        "batch_index": (4, 1),
        "num_logits_to_keep": (4, 1),
    }
    assert row.logits_rows == 4


def test_comp_ctx_lengths_is_one_dimensional_and_its_length_is_the_value():
    table = build_table(ctx_len=64, prefill_seq_len=16, comp_ctx_lengths_prefill=[48], comp_ctx_lengths_decode=[32, 64])
    assert table.decode[0].input_shapes(continuous_batching=False)["comp_ctx_lengths"] == (32,)


def test_prefill_of_a_speculative_program_keeps_one_logits_row():
    assert dynamic_table(num_speculative_tokens=[0, 3]).prefill[0].num_logits_to_keep == 1


def test_a_program_that_is_not_speculative_gives_one_logits_row():
    assert {row.logits_rows for row in dynamic_table().rows} == {1}


# Values


@pytest.mark.parametrize("batch_size", [[2, 2, 4], (4, 2), [np.int64(4), 2, np.int32(2)]])
def test_lists_are_sorted_and_without_duplicates(batch_size):
    assert dynamic_table(batch_size=batch_size).config.batch_sizes == (2, 4)


@pytest.mark.parametrize("batch_size", [[1, 8], [], [0], [-1], 0, 5])
def test_batch_sizes_out_of_range_are_value_errors(batch_size):
    with pytest.raises(SpecializationError, match="batch_size"):
        dynamic_table(batch_size=batch_size)


@pytest.mark.parametrize("batch_size", [[True], [2.0], "4", ["4"], True, 2.0, None, {1, 2}, [None], [np.bool_(True)]])
def test_batch_sizes_of_another_type_are_type_errors(batch_size):
    with pytest.raises(TypeError, match="batch_size"):
        dynamic_table(batch_size=batch_size)


@pytest.mark.parametrize(
    "changes", [{"continuous_batching": False, "full_batch_size": None}, {"full_batch_size": None}]
)
@pytest.mark.parametrize("batch_size", [[1, 2], [4]])
def test_a_list_needs_continuous_batching_and_full_batch_size(changes, batch_size):
    with pytest.raises(SpecializationError, match=r"is a list, which needs continuous_batching=True and an explicit"):
        dynamic_table(batch_size=batch_size, **changes)


def test_continuous_batching_needs_full_batch_size():
    with pytest.raises(SpecializationError, match="continuous_batching=True needs full_batch_size"):
        build_table(batch_size=4, continuous_batching=True)


def test_static_batching_refuses_another_full_batch_size():
    with pytest.raises(SpecializationError, match="full_batch_size=8 with batch_size=4"):
        build_table(batch_size=4, full_batch_size=8)
    assert build_table(batch_size=4, full_batch_size=4).config.full_batch_size == 4


@pytest.mark.parametrize("name", ["ctx_len", "prefill_seq_len", "full_batch_size"])
def test_sizes_are_positive_ints(name):
    with pytest.raises(SpecializationError, match=name):
        dynamic_table(**{name: 0})
    for wrong in (True, 8.0, "8"):
        with pytest.raises(TypeError, match=name):
            dynamic_table(**{name: wrong})


def test_continuous_batching_is_a_bool():
    with pytest.raises(TypeError, match="continuous_batching"):
        dynamic_table(continuous_batching=1)


@pytest.mark.parametrize("prefill_seq_len", [1, 2])
def test_a_slot_holds_a_prompt_and_a_new_token(prefill_seq_len):
    with pytest.raises(SpecializationError, match="ctx_len=1 has no room for a prompt and a new token; pass ctx_len=2"):
        build_table(batch_size=2, ctx_len=1, prefill_seq_len=prefill_seq_len)
    assert build_table(batch_size=2, ctx_len=2, prefill_seq_len=2).max_prompt_len == 1


@pytest.mark.parametrize("name", ["ctx_len", "prefill_seq_len", "full_batch_size", "batch_size"])
@pytest.mark.parametrize("size", [2**31, 10**12, pytest.param(10**5000, id="5001 digits")])
def test_sizes_above_32_bits_are_refused_naming_the_limit(name, size):
    with pytest.raises(SpecializationError, match=rf"{name} holds .*; values are ints <= 2147483647 \(2\*\*31 - 1\)"):
        dynamic_table(**{name: size})


def test_the_largest_size_is_legal():
    assert dynamic_table(ctx_len=2**31 - 1, full_batch_size=2**31 - 1).max_prompt_len == 2**31 - 2


def test_prefill_seq_len_is_at_most_ctx_len():
    with pytest.raises(SpecializationError, match="prefill_seq_len=65 is larger than ctx_len=64"):
        dynamic_table(prefill_seq_len=65)


@pytest.mark.parametrize("drafts", [[], [-1], -1])
def test_num_speculative_tokens_out_of_range_are_value_errors(drafts):
    with pytest.raises(SpecializationError, match="num_speculative_tokens"):
        dynamic_table(num_speculative_tokens=drafts)


@pytest.mark.parametrize("drafts", [True, [0, 3.0], "3"])
def test_num_speculative_tokens_of_another_type_are_type_errors(drafts):
    with pytest.raises(TypeError, match="num_speculative_tokens"):
        dynamic_table(num_speculative_tokens=drafts)


def test_a_decode_row_fits_in_a_prefill_chunk():
    with pytest.raises(SpecializationError, match="lower num_speculative_tokens or raise prefill_seq_len"):
        dynamic_table(num_speculative_tokens=[0, 16])


@pytest.mark.parametrize("name", ["comp_ctx_lengths_prefill", "comp_ctx_lengths_decode"])
def test_ccl_values_lie_between_1_and_ctx_len(name):
    for wrong in ([], [0], [65]):
        with pytest.raises(SpecializationError, match=name):
            build_table(ctx_len=64, prefill_seq_len=16, **{name: wrong})
    for wrong in (64, [True], [64.0], "64"):
        with pytest.raises(TypeError, match=name):
            build_table(ctx_len=64, prefill_seq_len=16, **{name: wrong})


def test_a_ccl_value_may_be_smaller_than_the_tokens_of_a_step():
    """A step's live positions lie below its CCL, so such a row runs chunks that are not full."""
    ccl = {"comp_ctx_lengths_prefill": [4, 16], "comp_ctx_lengths_decode": [2, 64]}
    table = build_table(ctx_len=64, prefill_seq_len=8, num_speculative_tokens=3, **ccl)
    assert [table.choose_prefill(last).comp_ctx_length for last in (3, 4)] == [4, 16]
    assert table.choose_decode(1, 3, 0).comp_ctx_length == 64


def test_the_largest_decode_ccl_is_ctx_len():
    with pytest.raises(
        SpecializationError, match=r"must be ctx_len=64, not 32; pass comp_ctx_lengths_decode=\[32, 64\]"
    ):
        build_table(ctx_len=64, prefill_seq_len=16, comp_ctx_lengths_decode=[32])


# One input identifies the row


def test_a_prefill_row_like_a_decode_row_is_refused_naming_both_and_the_argument():
    with pytest.raises(SpecializationError) as error:
        build_table(ctx_len=64, prefill_seq_len=8, num_speculative_tokens=7)
    assert "input_ids is [1, 8] in both (prefill b=1 s=8) and (decode b=1 K=7)" in str(error.value)
    assert "Change prefill_seq_len (now 8) to 9 or more" in str(error.value)


def test_prefill_of_one_token_collides_with_decode_at_batch_1_only():
    with pytest.raises(SpecializationError, match=r"Change prefill_seq_len \(now 1\) to 2 or more"):
        dynamic_table(prefill_seq_len=1)
    assert len(dynamic_table(prefill_seq_len=1, batch_size=[2, 4]).rows) == 3


def test_equal_prefill_and_decode_ccl_values_are_refused_with_lists_that_work():
    lists = {"comp_ctx_lengths_prefill": [512, 2048], "comp_ctx_lengths_decode": [512, 2048]}
    with pytest.raises(SpecializationError) as error:
        build_table(**lists)
    assert "comp_ctx_lengths is [512] in both (prefill b=1 s=128 CCL=512) and (decode b=1 CCL=512)" in str(error.value)
    assert "pass comp_ctx_lengths_prefill=[480, 2016], comp_ctx_lengths_decode=[512, 2048]" in str(error.value)
    assert "(prompts of up to 2016 tokens)" in str(error.value)


def test_a_decode_list_alone_collides_with_the_whole_slot_that_prefill_gets():
    with pytest.raises(SpecializationError, match=r"pass comp_ctx_lengths_prefill=\[2016\]"):
        build_table(comp_ctx_lengths_decode=[512, 2048])


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"batch_size": [1, 2]}, r"Give a single batch_size \(one of \[1, 2\]\)"),
        ({"batch_size": 2, "num_speculative_tokens": [0, 3]}, r"Give a single num_speculative_tokens"),
    ],
)
def test_a_list_crossed_with_ccl_is_refused_naming_why_no_input_works(changes, argument):
    ccl = {"comp_ctx_lengths_prefill": [48], "comp_ctx_lengths_decode": [32, 64]}
    with pytest.raises(SpecializationError, match=argument) as error:
        dynamic_table(**changes, **ccl)
    assert "input_ids is " in str(error.value)
    assert "comp_ctx_lengths is [32] in both" in str(error.value)
    assert "leave out comp_ctx_lengths_prefill and comp_ctx_lengths_decode" in str(error.value)


@pytest.mark.parametrize("drafts", [None, 3])
def test_ccl_with_one_batch_size_and_one_k_is_fine(drafts):
    ccl = {"comp_ctx_lengths_prefill": [48], "comp_ctx_lengths_decode": [32, 64]}
    table = dynamic_table(batch_size=4, num_speculative_tokens=drafts, **ccl)
    assert identifying_inputs(table.rows, continuous_batching=True) == ("comp_ctx_lengths",)


def test_no_input_is_identifying_when_only_num_logits_to_keep_differs():
    rows = (Specialization("prefill", 1, 8, 64, None, 1), Specialization("decode", 1, 8, 64, None, 8))
    assert identifying_inputs(rows, continuous_batching=True) == ()


def test_a_large_refused_table_is_refused_at_once():
    sizes, ccl = list(range(1, 129)), [*range(64, 4096, 32), 4096]
    with pytest.raises(SpecializationError, match="Give a single batch_size"):
        build_table(
            batch_size=sizes,
            continuous_batching=True,
            full_batch_size=128,
            ctx_len=4096,
            comp_ctx_lengths_decode=ccl,
            num_speculative_tokens=[0, 3],
        )


# Warnings and limits


def test_a_small_largest_batch_size_warns():
    (warning,) = dynamic_table(batch_size=[1, 2]).warnings
    assert "a step over more than 2 rows runs as several specializations" in warning


@pytest.mark.parametrize("drafts", [[3, 7], 3])
def test_speculation_without_k_0_warns(drafts):
    (warning,) = dynamic_table(num_speculative_tokens=drafts).warnings
    assert "lacks 0" in warning and "pays for 4 tokens per row" in warning


def test_a_table_that_covers_everything_does_not_warn():
    assert dynamic_table(num_speculative_tokens=[0, 3]).warnings == ()


def test_the_longest_prompt_leaves_one_position_for_a_token():
    assert dynamic_table().max_prompt_len == 63


def test_the_longest_prompt_is_the_largest_prefill_ccl():
    table = build_table(ctx_len=64, prefill_seq_len=16, comp_ctx_lengths_prefill=[32, 48], comp_ctx_lengths_decode=[64])
    assert table.max_prompt_len == 48


# Matching


def test_every_row_matches_its_own_shapes():
    table = dynamic_table(num_speculative_tokens=[0, 3])
    assert [table.match(row.input_shapes(True)) for row in table.rows] == list(table.rows)


def test_num_logits_to_keep_may_be_left_out():
    table = dynamic_table(num_speculative_tokens=[0, 3])
    shapes = {"input_ids": (2, 4), "position_ids": (2, 4), "batch_index": (2, 1)}
    assert table.match(shapes) == table.choose_decode(2, 3, 0)


def test_comp_ctx_lengths_may_be_left_out_only_when_the_rest_identifies_the_row():
    table = build_table(ctx_len=64, prefill_seq_len=16, comp_ctx_lengths_prefill=[48], comp_ctx_lengths_decode=[32, 64])
    assert table.match({"input_ids": (1, 16), "position_ids": (1, 16)}) == table.prefill[0]
    decode = {"input_ids": (1, 1), "position_ids": (1, 1)}
    assert table.match(decode) is None
    assert table.candidates(decode) == table.decode


@pytest.mark.parametrize(
    "change",
    [
        {"input_ids": (3, 1)},
        {"position_ids": (2, 2)},
        {"batch_index": (2,)},
        {"num_logits_to_keep": (1, 1)},
        {"attention_mask": (2, 1)},
    ],
)
def test_shapes_that_were_not_compiled_match_nothing(change):
    shapes = {"input_ids": (2, 1), "position_ids": (2, 1), "batch_index": (2, 1)}
    assert dynamic_table().match(shapes) is not None
    assert dynamic_table().match({**shapes, **change}) is None


def test_a_required_input_cannot_be_left_out():
    assert dynamic_table().match({"input_ids": (2, 1), "position_ids": (2, 1)}) is None


# Choosing


def test_live_rows_run_at_the_smallest_batch_size_that_holds_them():
    table = dynamic_table(batch_size=[4, 1, 2])
    assert [table.choose_decode(live, 0, 0).batch_size for live in (1, 2, 3, 4)] == [1, 2, 4, 4]
    assert [batches(table.cover(live)) for live in (1, 2, 3, 4)] == [[1], [2], [4], [4]]


def test_proposals_run_at_the_smallest_k_that_holds_the_longest():
    table = dynamic_table(num_speculative_tokens=[0, 3, 7])
    chosen = [table.choose_decode(1, proposal, 0).num_speculative_tokens for proposal in (0, 1, 3, 4, 7)]
    assert chosen == [0, 3, 3, 7, 7]


def test_ccl_is_the_smallest_above_the_largest_position_and_k():
    table = build_table(
        ctx_len=64,
        prefill_seq_len=16,
        num_speculative_tokens=3,
        comp_ctx_lengths_prefill=[48],
        comp_ctx_lengths_decode=[32, 64],
    )
    assert table.choose_decode(1, 0, 28).comp_ctx_length == 32
    assert table.choose_decode(1, 0, 29).comp_ctx_length == 64


def test_prefill_takes_the_smallest_ccl_above_its_last_position():
    table = build_table(ctx_len=64, prefill_seq_len=16, comp_ctx_lengths_prefill=[16, 48], comp_ctx_lengths_decode=[64])
    assert [table.choose_prefill(last).comp_ctx_length for last in (0, 15, 16, 47)] == [16, 16, 48, 48]
    with pytest.raises(NoMatchingSpecializationError, match="the longest prompt is 48 tokens"):
        table.choose_prefill(48)


def test_a_k_longer_than_the_room_left_runs_as_long_as_the_proposal_fits():
    table = dynamic_table(num_speculative_tokens=[7], batch_size=[2])
    assert table.choose_decode(1, 3, 60).num_speculative_tokens == 7
    with pytest.raises(NoMatchingSpecializationError, match="does not fit ctx_len=64"):
        table.choose_decode(1, 4, 60)


def test_rows_that_nothing_covers_are_refused_with_what_is_compiled():
    table = dynamic_table(num_speculative_tokens=[0, 3], batch_size=[1, 2])
    for live, proposal in ((3, 0), (1, 4)):
        with pytest.raises(NoMatchingSpecializationError, match=r"compiled: \(1,1\) \(1,4\) \(2,1\) \(2,4\)"):
            table.choose_decode(live, proposal, 0)


def test_no_live_rows_are_no_step():
    assert dynamic_table().cover(0) == ()
    with pytest.raises(StepInputError):
        dynamic_table().choose_decode(0, 0, 0)
    with pytest.raises(StepInputError):
        dynamic_table().cover(-1)


def test_more_rows_than_the_largest_batch_size_run_as_fewest_steps_then_least_padding():
    table = dynamic_table(full_batch_size=16)
    assert batches(table.cover(5)) == [4, 1]
    assert batches(table.cover(7)) == [4, 4]
    assert batches(table.cover(10)) == [4, 4, 2]
    assert batches(dynamic_table(batch_size=[2, 3, 5], full_batch_size=6).cover(6)) == [3, 3]


def test_measured_times_allow_a_cheaper_cover():
    table = dynamic_table(batch_size=[1, 4, 8], full_batch_size=8)
    step_ms = dict(zip(table.decode, (10.0, 12.0, 30.0), strict=True))
    assert batches(table.cover(5)) == [8]
    assert batches(table.cover(5, step_ms)) == [4, 1]


def test_a_saving_below_a_tenth_is_noise():
    table = dynamic_table(batch_size=[1, 4, 8], full_batch_size=8)
    step_ms = dict(zip(table.decode, (10.0, 18.0, 30.0), strict=True))
    assert batches(table.cover(5, step_ms)) == [8]


def test_a_row_never_runs_at_a_larger_batch_that_was_measured_faster():
    table = dynamic_table()
    step_ms = dict(zip(table.decode, (10.0, 2.0, 4.0), strict=True))
    assert [batches(table.cover(live, step_ms)) for live in (1, 2, 3, 4)] == [[1], [2], [4], [4]]


def test_a_cover_needs_the_times_of_every_row_in_question():
    table = dynamic_table(batch_size=[1, 4, 8], full_batch_size=8)
    assert batches(table.cover(5, {table.decode[0]: 0.1})) == [8]


def test_every_step_of_a_cover_has_the_k_and_ccl_of_the_whole():
    table = dynamic_table(num_speculative_tokens=[0, 3], full_batch_size=8)
    assert [row.name for row in table.cover(5, proposal_len=2)] == ["decode b=4 K=3", "decode b=1 K=3"]


# Formats

REQUESTS = {
    "dynamic": {
        "batch_size": [1, 4],
        "continuous_batching": True,
        "full_batch_size": 16,
        "ctx_len": 4096,
        "prefill_seq_len": 128,
        "num_speculative_tokens": [0, 3, 7],
    },
    "static": {"batch_size": 2, "ctx_len": 1024, "prefill_seq_len": 32},
    "ccl": {
        "batch_size": 8,
        "continuous_batching": True,
        "full_batch_size": 8,
        "ctx_len": 4096,
        "comp_ctx_lengths_prefill": [2048, 4064],
        "comp_ctx_lengths_decode": [1024, 4096],
    },
}


@pytest.mark.parametrize("name", REQUESTS)
def test_qaic_specializations_are_as_in_the_golden_file(name):
    written = to_qaic_specializations(build_table(**REQUESTS[name]))
    assert written == json.loads((GOLDEN / f"specializations_{name}.json").read_text())


def test_qaic_specializations_are_all_strings():
    for entry in to_qaic_specializations(build_table(**REQUESTS["dynamic"]))["specializations"]:
        assert all(type(value) is str for value in entry["symbols"].values())


def test_flat_qaic_specializations_are_the_symbols_alone():
    table = build_table(**REQUESTS["ccl"])
    named = to_qaic_specializations(table)["specializations"]
    flat = to_qaic_specializations(table, named=False)["specializations"]
    assert flat == [entry["symbols"] for entry in named]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_table_survives_json(name):
    table = build_table(**REQUESTS[name])
    assert SpecializationTable.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_an_edited_stored_table_is_refused():
    stored = dynamic_table().to_json()
    stored["specializations"][1]["batch_size"] = 3
    with pytest.raises(SpecializationError, match="not those of the stored batching request"):
        SpecializationTable.from_json(stored)


def test_a_stored_table_with_other_fields_is_refused():
    stored = dynamic_table().to_json()
    del stored["batching"]["ctx_len"]
    with pytest.raises(SpecializationError, match="batching fields"):
        SpecializationTable.from_json(stored)


def test_the_table_imports_neither_torch_nor_numpy():
    code = "import sys, polybatch.specialization; assert not {'torch', 'numpy', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


# Properties

BATCHES = st.one_of(st.integers(1, 6), st.lists(st.integers(1, 6), min_size=1, max_size=4))
DRAFTS = st.one_of(st.none(), st.integers(0, 7), st.lists(st.integers(0, 7), min_size=1, max_size=3))
LENGTHS = st.lists(st.sampled_from([1, 2, 8, 31, 32, 33, 63, 64]), min_size=1, max_size=3)


@st.composite
def requests(draw):
    ccl = draw(st.integers(0, 3)) == 0  # most tables with CCL are refused
    decode = draw(LENGTHS) if ccl else None
    return {
        "batch_size": draw(BATCHES),
        "continuous_batching": True,
        "full_batch_size": 6,
        "ctx_len": 64,
        "prefill_seq_len": draw(st.integers(8, 10)),
        "num_speculative_tokens": draw(DRAFTS),
        "comp_ctx_lengths_prefill": draw(st.one_of(st.none(), LENGTHS)) if ccl else None,
        "comp_ctx_lengths_decode": decode and [*decode, 64],
    }


def legal(request) -> SpecializationTable:
    try:
        return build_table(**request)
    except SpecializationError:
        assume(False)
        raise


@given(requests())
def test_in_a_legal_table_one_input_differs_between_every_two_rows(request):
    rows = [row.input_shapes(True) for row in legal(request).rows]
    names = set(rows[0]) - {"num_logits_to_keep"}
    assert any(all(a[name] != b[name] for a, b in combinations(rows, 2)) for name in names)


@given(requests())
def test_a_refused_request_names_an_argument(request):
    try:
        build_table(**request)
    except SpecializationError as error:
        assert any(name in str(error) for name in request)


@given(requests())
def test_a_table_survives_json_whatever_it_holds(request):
    table = legal(request)
    assert SpecializationTable.from_json(json.loads(json.dumps(table.to_json()))) == table


@given(requests(), st.integers(1, 6), st.integers(0, 7), st.integers(0, 63))
def test_the_chosen_row_holds_the_step_and_no_smaller_row_does(request, live, proposal, position):
    table = legal(request)
    fitting = [
        row
        for row in table.decode
        if row.batch_size >= live
        and row.num_speculative_tokens >= proposal
        and row.readable_positions > min(position + row.num_speculative_tokens, 63)
    ]
    if not fitting or position + proposal > 63:
        with pytest.raises(NoMatchingSpecializationError):
            table.choose_decode(live, proposal, position)
    else:
        smallest = min(fitting, key=lambda row: (row.batch_size, row.seq_len, row.readable_positions))
        assert table.choose_decode(live, proposal, position) == smallest


@given(requests(), st.integers(1, 20), st.data())
def test_a_cover_holds_every_row_and_costs_no_more_than_the_largest_batch_repeated(request, live, data):
    table = legal(request)
    times = sorted(data.draw(st.lists(st.floats(0.1, 9.0), min_size=len(table.decode), max_size=len(table.decode))))
    step_ms = dict(zip(table.decode, times, strict=True))
    cover = table.cover(live, step_ms)
    assert sum(batches(cover)) >= live
    largest = table.choose_decode(max(table.config.batch_sizes), 0, 0)
    assert sum(step_ms[row] for row in cover) <= step_ms[largest] * -(-live // largest.batch_size) / 0.9 + 1e-9


@given(requests(), st.integers(1, 40))
def test_a_cover_without_times_uses_the_fewest_steps(request, live):
    table = legal(request)
    assert len(table.cover(live)) == -(-live // max(table.config.batch_sizes))


@given(LENGTHS, LENGTHS)
def test_the_proposed_ccl_lists_build(prefill, decode):
    decode = sorted({*decode, 64})
    proposal = propose_prefill_lengths(sorted(set(prefill)), decode)
    assume(proposal)
    build_table(ctx_len=64, prefill_seq_len=16, comp_ctx_lengths_prefill=list(proposal), comp_ctx_lengths_decode=decode)
