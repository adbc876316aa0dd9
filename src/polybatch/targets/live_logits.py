"""Of a step's logits, those of live tokens."""

from __future__ import annotations

import numpy as np

from polybatch.targets.base import Float32Array, Int64Array


def live_logits(logits: Float32Array, position_ids: Int64Array, logits_index: Int64Array) -> Float32Array:
    """[live, vocab] of [b, n, vocab], row after row; a view where all of them are live.

    position_ids: [b, s], -1 in padding. logits_index: [b, n], the column that each belongs to.
    """
    rows = zip(position_ids.tolist(), logits_index.tolist(), strict=True)
    live = [positions[column] >= 0 for positions, columns in rows for column in columns]
    flat = logits.reshape(-1, logits.shape[-1])
    return flat if all(live) else flat[np.array(live)]
