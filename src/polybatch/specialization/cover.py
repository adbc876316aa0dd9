"""Covering live rows with compiled decode batch sizes."""

from functools import lru_cache

Cost = tuple[float, int, int]
"""(milliseconds or 0, steps, padding rows), compared in that order."""


_MARGIN = 0.9
"""Measured times are noisy: another cover must cost less than this part of the plain one to be chosen."""


@lru_cache(maxsize=4096)
def cheapest_cover(live_rows: int, batch_sizes: tuple[int, ...], step_ms: tuple[float, ...] | None) -> tuple[int, ...]:
    """The batch sizes (ascending) to run so that every live row is in one of them, largest first.

    The plain cover has the fewest steps, then the fewest padding rows. ``step_ms[i]`` is the measured time of
    ``batch_sizes[i]``: a cover that saves a tenth of the plain one's time is taken instead.
    """
    plain = _best_cover(live_rows, batch_sizes, (0.0,) * len(batch_sizes))
    if step_ms is None:
        return plain
    # A smaller batch never costs more than a larger one: where it was measured so, that was noise.
    times = tuple(min(step_ms[i:]) for i in range(len(step_ms)))
    cheapest = _best_cover(live_rows, batch_sizes, times)
    ms = dict(zip(batch_sizes, times, strict=True))
    worth_it = sum(ms[size] for size in cheapest) < _MARGIN * sum(ms[size] for size in plain)
    return cheapest if worth_it else plain


def _best_cover(live_rows: int, batch_sizes: tuple[int, ...], times: tuple[float, ...]) -> tuple[int, ...]:
    """Least time, then fewest steps, then fewest padding rows; dynamic programming over the number of rows."""
    best: list[tuple[Cost, tuple[int, ...]]] = [((0.0, 0, 0), ())]
    for rows in range(1, live_rows + 1):
        options = []
        for batch, ms in zip(batch_sizes, times, strict=True):
            (spent, steps, padding), sizes = best[max(0, rows - batch)]
            options.append(((spent + ms, steps + 1, padding + max(0, batch - rows)), (*sizes, batch)))
        best.append(min(options))
    return tuple(sorted(best[live_rows][1], reverse=True))
