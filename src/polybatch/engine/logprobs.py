"""Log-probabilities of a generated token and of the most probable ones."""

from __future__ import annotations

import numpy as np

from polybatch.engine.protocols import Logits
from polybatch.engine.request import TokenLogprobs


def token_logprobs(logits: Logits, token_id: int, count: int) -> TokenLogprobs:
    """Of the softmax of the model's own logits, float32 [vocab]; ``count`` >= 0 most probable tokens with theirs.

    Tokens of equal probability come in the order of their ids.
    """
    logprobs = logits - logits.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    count = min(count, logprobs.size)
    if count == 0:
        return TokenLogprobs(token_id, float(logprobs[token_id]))
    least = np.partition(logprobs, -count)[-count]
    candidates = np.flatnonzero(logprobs >= least)
    top = candidates[np.argsort(-logprobs[candidates], kind="stable")[:count]]
    return TokenLogprobs(
        token_id, float(logprobs[token_id]), tuple(zip(top.tolist(), logprobs[top].tolist(), strict=True))
    )
