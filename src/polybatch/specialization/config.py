"""The validated request that a table is built from."""

import operator
from dataclasses import asdict, dataclass
from typing import Any

from polybatch.errors import SpecializationError

MAX_SIZE = 2**31 - 1
"""Positions, slots and rows are counted in 32-bit ints."""


@dataclass(frozen=True)
class BatchingConfig:
    """What was asked for, lists sorted and without duplicates.

    ``dynamic`` is true when more than one decode batch size is compiled. Without continuous batching there is one
    batch size and ``full_batch_size`` equals it. A CCL list that was not given stays None here; when the other list
    was given, the rows of its phase use ``ctx_len``.
    """

    batch_sizes: tuple[int, ...]
    continuous_batching: bool
    full_batch_size: int
    ctx_len: int
    prefill_seq_len: int
    num_speculative_tokens: tuple[int, ...] | None
    comp_ctx_lengths_prefill: tuple[int, ...] | None
    comp_ctx_lengths_decode: tuple[int, ...] | None
    dynamic: bool

    @property
    def speculative(self) -> bool:
        """Whether steps take ``num_logits_to_keep``."""
        return self.num_speculative_tokens is not None

    @property
    def uses_comp_ctx_lengths(self) -> bool:
        """Whether steps take ``comp_ctx_lengths``: either list was given."""
        return self.comp_ctx_lengths_prefill is not None or self.comp_ctx_lengths_decode is not None

    @property
    def prefill_batch_size(self) -> int:
        """Rows of a prefill step: 1 under continuous batching, otherwise the batch size."""
        return 1 if self.continuous_batching else self.batch_sizes[0]

    def to_json(self) -> dict[str, Any]:
        """The fields as a plain dict, tuples as lists."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def validate_request(
    *,
    batch_size: object,
    continuous_batching: object,
    full_batch_size: object,
    ctx_len: object,
    prefill_seq_len: object,
    num_speculative_tokens: object,
    comp_ctx_lengths_prefill: object,
    comp_ctx_lengths_decode: object,
) -> BatchingConfig:
    """Check every value on its own and against its neighbours (rules 2, 3, 5 and 6 of the table).

    Raises TypeError for a wrong type and SpecializationError for a value out of range.
    """
    if not isinstance(continuous_batching, bool):
        raise TypeError(f"continuous_batching must be a bool, not {_describe(continuous_batching)}")
    context = _integer("ctx_len", ctx_len, low=1)
    if context < 2:
        raise SpecializationError(f"ctx_len={context} has no room for a prompt and a new token; pass ctx_len=2 or more")
    chunk = _integer("prefill_seq_len", prefill_seq_len, low=1)
    if chunk > context:
        raise SpecializationError(f"prefill_seq_len={chunk} is larger than ctx_len={context}; lower prefill_seq_len")
    batches = _integers("batch_size", batch_size, low=1)
    slots = _validate_slots(batch_size, batches, continuous_batching, full_batch_size)
    drafts = None if num_speculative_tokens is None else _validate_drafts(num_speculative_tokens, chunk)
    return BatchingConfig(
        batch_sizes=batches,
        continuous_batching=continuous_batching,
        full_batch_size=slots,
        ctx_len=context,
        prefill_seq_len=chunk,
        num_speculative_tokens=drafts,
        comp_ctx_lengths_prefill=_validate_lengths("comp_ctx_lengths_prefill", comp_ctx_lengths_prefill, context),
        comp_ctx_lengths_decode=_validate_lengths("comp_ctx_lengths_decode", comp_ctx_lengths_decode, context),
        dynamic=len(batches) > 1,
    )


def _validate_slots(given: object, batches: tuple[int, ...], continuous: bool, full_batch_size: object) -> int:
    slots = None if full_batch_size is None else _integer("full_batch_size", full_batch_size, low=1)
    asked = f"batch_size={given!r}"
    if isinstance(given, (list, tuple)) and (not continuous or slots is None):
        missing = "continuous_batching=True" if not continuous else f"full_batch_size (at least {batches[-1]})"
        raise SpecializationError(
            f"{asked} is a list, which needs continuous_batching=True and an explicit full_batch_size; add {missing}"
        )
    if not continuous:
        if slots not in (None, batches[0]):
            raise SpecializationError(
                f"full_batch_size={slots} with {asked} needs continuous_batching=True; "
                "without it there are as many slots as rows"
            )
        return batches[0]
    if slots is None:
        raise SpecializationError(
            "continuous_batching=True needs full_batch_size, the number of slots of the KV cache; "
            f"for {asked} pass full_batch_size={batches[-1]} or more"
        )
    if batches[-1] > slots:
        raise SpecializationError(
            f"{asked} holds {batches[-1]}, but full_batch_size={slots}; "
            f"lower batch_size or pass full_batch_size={batches[-1]}"
        )
    return slots


def _validate_drafts(given: object, prefill_seq_len: int) -> tuple[int, ...]:
    drafts = _integers("num_speculative_tokens", given, low=0)
    if drafts[-1] + 1 > prefill_seq_len:
        raise SpecializationError(
            f"num_speculative_tokens={drafts[-1]} makes decode rows of {drafts[-1] + 1} tokens, more than "
            f"prefill_seq_len={prefill_seq_len}; lower num_speculative_tokens or raise prefill_seq_len"
        )
    return drafts


def _validate_lengths(name: str, given: object, ctx_len: int) -> tuple[int, ...] | None:
    if given is None:
        return None
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{name} must be a list of ints, not {_describe(given)}")
    lengths = _integers(name, given, low=1)
    if lengths[-1] > ctx_len:
        raise SpecializationError(f"{name} holds {lengths[-1]}, but ctx_len={ctx_len}; values go from 1 to ctx_len")
    if name == "comp_ctx_lengths_decode" and lengths[-1] != ctx_len:
        raise SpecializationError(
            f"the largest value of {name} must be ctx_len={ctx_len}, not {lengths[-1]}; "
            f"pass {name}={[*lengths, ctx_len]} or ctx_len={lengths[-1]}"
        )
    return lengths


def _integers(name: str, given: object, *, low: int) -> tuple[int, ...]:
    values = given if isinstance(given, (list, tuple)) else (given,)
    if not values:
        raise SpecializationError(f"{name} is an empty list; give at least one int >= {low}")
    return tuple(sorted({_integer(name, value, low=low) for value in values}))


def _integer(name: str, value: Any, *, low: int) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} takes ints, not {_describe(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} takes ints, not {_describe(value)}") from None
    if not low <= number <= MAX_SIZE:
        shown = number if number.bit_length() <= 64 else f"an int of {number.bit_length()} bits"
        allowed = f">= {low}" if number < low else f"<= {MAX_SIZE} (2**31 - 1)"
        raise SpecializationError(f"{name} holds {shown}; values are ints {allowed}")
    return number


def _describe(value: object) -> str:
    return f"{value!r} ({type(value).__name__})"
