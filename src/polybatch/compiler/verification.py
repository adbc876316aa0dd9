"""The check that ends every compile: the program's logits against the Hugging Face model's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from polybatch.compiler.rounding import RoundedModel
from polybatch.errors import VerificationError
from polybatch.models.reference import widened
from polybatch.session import InferenceSession
from polybatch.specialization import SpecializationTable
from polybatch.targets.base import RoundedWeight

# Relative error allowed per position: ||program - exact|| / ||exact - its mean||, where exact is the model in float32.
# A missing mask, window or scale gives errors near 1; float32 rounding about 1e-6.
_TOLERANCE = 1e-3
# A bfloat16 program is held to the error of the model's own bfloat16 logits, within a factor and a ceiling.
_BFLOAT16_FACTOR = 2.0
# Where inputs are rounded to 8 bits, the smallest difference can move one to the next step: such a program is held to
# what rounding them at all does to the logits, within a factor.
_FLIPS_FACTOR = 2.0
_MAX_TOLERANCE = 0.5
_DECODE_STEPS = 3
_CHUNK = 64  # of a longer prefill chunk, the tokens used
_MAX_SEQUENCES = 3


@dataclass(frozen=True)
class Verification:
    """What the check found: the largest relative error of any position, and the bound it was held to."""

    max_error: float
    tolerance: float


def verify_logits(
    session: InferenceSession,
    table: SpecializationTable,
    model: PreTrainedModel,
    rounded: Sequence[RoundedWeight] = (),
    text: torch.Tensor | None = None,
) -> Verification:
    """Prefill ragged sequences in chunks, decode a few tokens, and compare every step's logits with ``model``.

    Runs through the session, so padding, slots and the table are part of what is checked. ``rounded`` are the weights
    that the program holds otherwise than the model, which is then taken with these; ``text`` are token ids to use
    instead of random ones, which can confuse a model so much that it amplifies the least rounding.
    Raises :class:`VerificationError` when a position is off by more than the tolerance.
    """
    prompts = _prompts(table, _random_text(model) if text is None else text.numpy().ravel())
    produced = _run(session, table, prompts)
    reference = RoundedModel(model, rounded)
    with widened(model):
        exact = _model_logits(reference, prompts)
        flips = (
            _largest(_model_logits(reference, prompts, round_inputs=False), exact) if reference.rounds_inputs else 0.0
        )
    own = _largest(_model_logits(reference, prompts), exact) if model.dtype != torch.float32 else 0.0
    worst = _largest(produced, exact)
    tolerance = min(max(_TOLERANCE, _BFLOAT16_FACTOR * own, _FLIPS_FACTOR * flips), _MAX_TOLERANCE)
    if not worst <= tolerance:
        raise VerificationError(
            f"{type(model).__name__}: the compiled logits differ from the model's own by {worst:.2g} "
            f"(relative, allowed {tolerance:g}); this architecture or an option of its config is not supported"
        )
    return Verification(worst, tolerance)


def _random_text(model: PreTrainedModel) -> NDArray[np.int64]:
    vocab_size = int(model.config.get_text_config().vocab_size)
    return np.random.default_rng(0).integers(0, vocab_size, _MAX_SEQUENCES * (2 * _CHUNK + _DECODE_STEPS))


def _prompts(table: SpecializationTable, text: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Ragged token sequences, prompt plus decoded tokens, of about two chunks, one and a bit, and a few tokens."""
    config = table.config
    decoded = _decode_steps(table)
    room = min(table.max_prompt_len, config.ctx_len - decoded)
    chunk = min(config.prefill_seq_len, _CHUNK)
    lengths = [max(1, min(room, length)) for length in (2 * chunk - 3, chunk + 1, 5)]
    count = min(_MAX_SEQUENCES, config.full_batch_size)
    ends = np.cumsum([length + decoded for length in lengths[:count]])
    return np.split(np.resize(text, ends[-1]), ends[:-1])


def _decode_steps(table: SpecializationTable) -> int:
    return min(_DECODE_STEPS, table.config.ctx_len - 1)


def _run(
    session: InferenceSession, table: SpecializationTable, prompts: list[NDArray[np.int64]]
) -> list[NDArray[np.float32]]:
    """Per sequence: logits [steps, vocab] of the last prompt token and of each decoded one."""
    decoded = _decode_steps(table)
    slots = list(range(len(prompts)))
    if table.config.continuous_batching:
        slots = [table.config.full_batch_size - 1 - slot for slot in slots]
    rows = [[_prefill(session, table, prompt[:-decoded], slot)] for prompt, slot in zip(prompts, slots, strict=True)]
    for step in range(decoded):
        at = [len(prompt) - decoded + step for prompt in prompts]
        tokens = [int(prompt[position]) for prompt, position in zip(prompts, at, strict=True)]
        for row, logits in zip(rows, _decode(session, table, tokens, at, slots), strict=True):
            row.append(logits)
    return [np.stack(row) for row in rows]


def _prefill(
    session: InferenceSession, table: SpecializationTable, tokens: NDArray[np.int64], slot: int
) -> NDArray[np.float32]:
    config = table.config
    row = 0 if config.continuous_batching else slot
    logits: Any = None
    for start in range(0, len(tokens), config.prefill_seq_len):
        chunk = tokens[start : start + config.prefill_seq_len]
        spec = table.choose_prefill(start + len(chunk) - 1)
        inputs = _empty_step(spec.input_shapes(config.continuous_batching))
        inputs["input_ids"][row, : len(chunk)] = chunk
        inputs["position_ids"][row, : len(chunk)] = np.arange(start, start + len(chunk))
        if config.continuous_batching:
            inputs["batch_index"][0, 0] = slot
        logits = session.run(inputs)["logits"][row, 0]
    result: NDArray[np.float32] = logits
    return result


def _decode(
    session: InferenceSession, table: SpecializationTable, tokens: list[int], at: list[int], slots: list[int]
) -> list[NDArray[np.float32]]:
    """One token of each sequence, in as many steps as their number takes; logits [vocab] of each."""
    config = table.config
    logits: list[NDArray[np.float32]] = []
    for size in table.cover(len(tokens), max_position=max(at)):
        rows = range(len(logits), min(len(tokens), len(logits) + size.batch_size))
        spec = table.choose_decode(size.batch_size, 0, max(at))
        inputs = _empty_step(spec.input_shapes(config.continuous_batching))
        live = np.arange(len(rows))
        inputs["input_ids"][live, 0] = [tokens[row] for row in rows]
        inputs["position_ids"][live, 0] = [at[row] for row in rows]
        if config.continuous_batching:
            used = [slots[row] for row in rows]
            idle = [slot for slot in range(config.full_batch_size) if slot not in used]
            inputs["batch_index"][:, 0] = (used + idle)[: spec.batch_size]
        logits += list(session.run(inputs)["logits"][live, 0])
    return logits


def _empty_step(shapes: dict[str, tuple[int, ...]]) -> dict[str, NDArray[np.int64]]:
    inputs = {name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()}
    inputs["position_ids"][:] = -1
    return inputs


def _model_logits(
    reference: RoundedModel, prompts: list[NDArray[np.int64]], round_inputs: bool = True
) -> list[NDArray[np.float32]]:
    """Logits [tokens, vocab] of each sequence alone, from the model with transformers' own eager attention."""
    with torch.no_grad(), reference.active(round_inputs):
        return [
            reference.model(input_ids=torch.from_numpy(prompt)[None], use_cache=False).logits[0].float().numpy()
            for prompt in prompts
        ]


def _largest(produced: list[NDArray[np.float32]], expected: list[NDArray[np.float32]]) -> float:
    return max(map(_relative_error, produced, expected))


def _relative_error(produced: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Largest over the decoded positions, the last ones of both sequences."""
    produced = produced[-_DECODE_STEPS - 1 :]
    reference = expected[-len(produced) :].astype(np.float64)
    spread = np.linalg.norm(reference - reference.mean(axis=-1, keepdims=True), axis=-1)
    errors = np.linalg.norm(produced - reference, axis=-1) / np.maximum(spread, 1e-12)
    return float(errors.max())
