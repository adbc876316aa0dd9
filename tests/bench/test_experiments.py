from __future__ import annotations

import json

from bench.experiments.plan import BASELINE, DYNAMIC, Cell, plan
from bench.experiments.report import markdown
from bench.experiments.results import CellResult, ExperimentResult

PLAN = plan("model", "bf16")


def cell_result(batch: int, drafted: int, factor: float, openings: int = 1) -> CellResult:
    base = [10.0, 11.0, 12.0, 13.0]
    ms = {BASELINE: base, DYNAMIC: [value * factor for value in base]}
    return CellResult(Cell(batch, drafted), BASELINE, ms, 1, openings, identical=True, foreign_share=0.01)


def test_the_first_experiment_compares_eight_programs_with_one() -> None:
    programs = set(PLAN["E1"].programs)
    assert len(programs) == 9
    assert {spec.batch_sizes for spec in programs if len(spec.batch_sizes) == 1} == {(2**i,) for i in range(8)}
    assert all(spec.full_batch_size == 128 and spec.ctx_len == 2048 for spec in programs)


def test_the_third_experiment_has_forty_cells_and_five_rows_per_baseline() -> None:
    comparisons = PLAN["E3"].comparisons
    assert len({cell for comparison in comparisons for cell in comparison.cells}) == 40
    assert {comparison.programs[BASELINE].drafted for comparison in comparisons} == {(0, 3, 7, 15, 31)}
    assert len({comparison.programs[DYNAMIC] for comparison in comparisons}) == 1


def test_the_fourth_experiment_changes_nothing_but_the_slots() -> None:
    (comparison,) = PLAN["E4"].comparisons
    assert [spec.full_batch_size for spec in comparison.programs.values()] == [1, 8, 32, 128]
    assert {spec.batch_sizes for spec in comparison.programs.values()} == {(1,)}
    assert comparison.fill_all


def test_deltas_are_summarized_by_batch_and_by_k() -> None:
    cells = [cell_result(1, 0, 1.02), cell_result(1, 7, 1.04), cell_result(2, 0, 1.06), cell_result(2, 7, 1.08)]
    result = ExperimentResult("E3", "title", 0.01, cells)
    by_batch = result.medians_by(DYNAMIC, lambda cell: cell.batch)
    by_k = result.medians_by(DYNAMIC, lambda cell: cell.drafted)
    assert {key: round(value, 9) for key, value in by_batch.items()} == {1: 0.03, 2: 0.07}
    assert {key: round(value, 9) for key, value in by_k.items()} == {0: 0.04, 7: 0.06}


def test_openings_of_one_cell_are_put_together() -> None:
    cell = cell_result(1, 0, 1.0)
    cell.add(cell_result(1, 0, 1.0))
    assert (cell.samples, cell.openings, cell.warm_ups) == (8, 2, 2)


def test_results_survive_json() -> None:
    result = ExperimentResult("E1", "title", 0.01, [cell_result(1, 0, 1.5, openings=2)])
    assert ExperimentResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_report_says_what_passed() -> None:
    passed = ExperimentResult("E1", "one", 0.01, [cell_result(1, 0, 1.005)])
    failed = ExperimentResult("E2", "two", 0.01, [cell_result(8, 0, 1.02)])
    text = markdown([passed, failed], {"cpu": "a cpu", "memory_gib": "16"}, {"model": "A"})
    assert "dynamic: median delta +0.50%; largest 0.50% (b=1, K=0), within 1%" in text
    assert "dynamic: median delta +2.00%; largest 2.00% (b=8, K=0), beyond 1%" in text
    assert "| 8 | 0 | 11.50 / 12.70 / 12.85 |" in text
