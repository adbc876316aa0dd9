"""``polybatch`` as on a target of fixed shapes: padding rows are run too.

Target cpu leaves padding out, so that even a program of one batch size costs what is live. What dynamic batching buys
elsewhere shows only beside a server that runs its whole batch, as programs of fixed shapes do.
"""

from __future__ import annotations

import numpy as np

from polybatch.cli import main
from polybatch.targets.cpu import runner
from polybatch.targets.cpu.padding import LiveStep, StepArrays


def whole_step(arrays: StepArrays) -> LiveStep:
    """All of a step, live or not."""
    rows, columns = arrays[3].shape
    return LiveStep(arrays, (np.arange(rows)[:, None], np.arange(columns)[None]), (rows, columns))


if __name__ == "__main__":
    runner.live_step = whole_step
    runner.CpuRunner.skips_padding = False
    main()
