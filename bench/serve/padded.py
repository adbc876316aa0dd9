"""``polybatch`` as on a target of fixed shapes: ``python -m bench.serve.padded padded|static COMMAND ...``.

Target cpu leaves padding out, so that even a program of one batch size costs what is live. What dynamic batching buys
elsewhere shows only beside a server that runs its whole batch, as programs of fixed shapes do:

* padded: padding rows run too; they have no positions to attend to.
* static: they attend to the whole context besides, as attention of a fixed shape does whatever its mask says. What they
  write lies in slots that no row of the step uses, at the last position: it is written again before anybody reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from bench.serve.served import CTX_LEN
from polybatch.cli import main
from polybatch.targets.base import StepArrays
from polybatch.targets.cpu import runner
from polybatch.targets.cpu.padding import LiveStep


def padded(arrays: StepArrays) -> LiveStep:
    """All of a step, live or not."""
    rows, columns = arrays[3].shape
    return LiveStep(arrays, (np.arange(rows)[:, None], np.arange(columns)[None]), (rows, columns))


def static(arrays: StepArrays) -> LiveStep:
    """The same, with rows of padding at the end of their slots."""
    ids, positions, slots, wanted = arrays
    idle = (positions < 0).all(axis=1, keepdims=True)
    return padded((ids, np.where(idle, CTX_LEN - 1, positions), slots, wanted))


STEPS: dict[str, Callable[[StepArrays], LiveStep]] = {"padded": padded, "static": static}

if __name__ == "__main__":
    runner.live_step = STEPS[sys.argv.pop(1)]
    runner.CpuRunner.skips_padding = False
    del runner.CpuRunner.run_live  # fixed shapes give the logits of the whole step
    main()
