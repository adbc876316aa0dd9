"""Rule 4: one single input must identify the specialization.

A step names its row only through the shapes of its inputs, and the runtimes look for one input whose shape is
different in every row. ``num_logits_to_keep`` does not count: a caller may leave it out of a step.
"""

from collections.abc import Sequence

from polybatch.errors import SpecializationError
from polybatch.specialization.config import BatchingConfig
from polybatch.specialization.row import Specialization

_CANDIDATES = ("input_ids", "position_ids", "batch_index", "comp_ctx_lengths")
_ALIGNMENT = 32  # proposed compute context lengths are multiples of it where they can be

Collision = tuple[Specialization, Specialization, tuple[int, ...]]


def identifying_inputs(rows: Sequence[Specialization], continuous_batching: bool) -> tuple[str, ...]:
    """Names of the inputs whose shape differs between every two rows; empty when there is none."""
    shapes = [row.input_shapes(continuous_batching) for row in rows]
    present = [name for name in _CANDIDATES if all(name in shape for shape in shapes)]
    return tuple(name for name in present if len({shape[name] for shape in shapes}) == len(rows))


def require_identifiable(rows: Sequence[Specialization], config: BatchingConfig) -> None:
    """Raise SpecializationError naming colliding rows and the argument to change, unless some input identifies."""
    if identifying_inputs(rows, config.continuous_batching):
        return
    reasons = []
    for name in _CANDIDATES:
        collision = _first_collision(name, rows, config.continuous_batching)
        if collision is not None and name != "position_ids":  # shaped as input_ids
            first, second, shape = collision
            reasons.append(f"{name} is {list(shape)} in both ({first.name}) and ({second.name})")
    if config.speculative:
        reasons.append("num_logits_to_keep may be left out of a step, so it identifies nothing")
    raise SpecializationError(
        "no single input tells all rows of the table apart: " + "; ".join(reasons) + ". " + _advice(rows, config)
    )


def propose_prefill_lengths(prefill: Sequence[int], decode: Sequence[int]) -> tuple[int, ...]:
    """The prefill CCL list with each value that is also a decode value lowered to a free one.

    Prefers multiples of 32, then any smaller value; a value with nothing free below it is dropped.
    """
    taken = set(decode) | set(prefill)
    kept = [length for length in prefill if length not in decode]
    for length in sorted(set(prefill) & set(decode), reverse=True):
        aligned = range((length - 1) // _ALIGNMENT * _ALIGNMENT, 0, -_ALIGNMENT)
        free = next((v for v in (*aligned, *range(length - 1, 0, -1)) if v not in taken), None)
        if free is not None:
            taken.add(free)
            kept.append(free)
    return tuple(sorted(kept))


def _first_collision(name: str, rows: Sequence[Specialization], continuous_batching: bool) -> Collision | None:
    seen: dict[tuple[int, ...], Specialization] = {}
    for row in rows:
        shape = row.input_shapes(continuous_batching).get(name)
        if shape is None:
            return None
        if shape in seen:
            return seen[shape], row, shape
        seen[shape] = row
    return None


def _advice(rows: Sequence[Specialization], config: BatchingConfig) -> str:
    if not config.uses_comp_ctx_lengths:
        return _advise_prefill_seq_len(config)
    advice = []
    lists = [f"batch_size (one of {list(config.batch_sizes)})"] if len(config.batch_sizes) > 1 else []
    if config.num_speculative_tokens is not None and len(config.num_speculative_tokens) > 1:
        lists.append(f"num_speculative_tokens (one of {list(config.num_speculative_tokens)})")
    if lists:
        advice.append(
            f"Give a single {' and a single '.join(lists)}, "
            "or leave out comp_ctx_lengths_prefill and comp_ctx_lengths_decode"
        )
    prefill = sorted({row.readable_positions for row in rows if row.phase == "prefill"})
    decode = sorted({row.readable_positions for row in rows if row.phase == "decode"})
    if set(prefill) & set(decode):
        advice.append(_advise_disjoint_lengths(prefill, decode))
    return ". ".join(advice)


def _advise_disjoint_lengths(prefill: Sequence[int], decode: Sequence[int]) -> str:
    shared = sorted(set(prefill) & set(decode))
    proposal = propose_prefill_lengths(prefill, decode)
    text = f"comp_ctx_lengths_prefill {list(prefill)} and comp_ctx_lengths_decode {list(decode)} share {shared}"
    if not proposal:
        return f"{text}; leave out both lists"
    return (
        f"{text}; pass comp_ctx_lengths_prefill={list(proposal)}, comp_ctx_lengths_decode={list(decode)} "
        f"(prompts of up to {min(proposal[-1], decode[-1] - 1)} tokens)"
    )


def _advise_prefill_seq_len(config: BatchingConfig) -> str:
    longest = max(config.num_speculative_tokens or (0,)) + 1
    larger = longest + 1
    text = f"Change prefill_seq_len (now {config.prefill_seq_len}) to {larger} or more"
    if larger > config.ctx_len:
        text += f" and ctx_len (now {config.ctx_len}) with it"
    if config.speculative and config.prefill_seq_len > 1:
        text += f", or leave {config.prefill_seq_len - 1} out of num_speculative_tokens"
    return text
