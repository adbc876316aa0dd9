"""Covering live rows with compiled decode batch sizes."""

from functools import lru_cache

Cost = tuple[float, int, int]
"""(milliseconds or 0, steps, padding rows), compared in that order."""


@lru_cache(maxsize=4096)
def cheapest_cover(live_rows: int, batch_sizes: tuple[int, ...], step_ms: tuple[float, ...] | None) -> tuple[int, ...]:
    """The batch sizes to run so that every live row is in one of them, largest first.

    ``step_ms[i]`` is the measured time of ``batch_sizes[i]``; None means unknown times, and then the fewest steps
    win. Ties go to fewer steps, then to fewer padding rows. Dynamic programming over the number of rows.
    """
    times = step_ms if step_ms is not None else (0.0,) * len(batch_sizes)
    best: list[tuple[Cost, tuple[int, ...]]] = [((0.0, 0, 0), ())]
    for rows in range(1, live_rows + 1):
        options = []
        for batch, ms in zip(batch_sizes, times, strict=True):
            (spent, steps, padding), sizes = best[max(0, rows - batch)]
            options.append(((spent + ms, steps + 1, padding + max(0, batch - rows)), (*sizes, batch)))
        best.append(min(options))
    return tuple(sorted(best[live_rows][1], reverse=True))
