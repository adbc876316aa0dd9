"""The table of specializations and the choice of a row at run time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from polybatch.errors import NoMatchingSpecializationError, SpecializationError, StepInputError
from polybatch.specialization.config import BatchingConfig, validate_request
from polybatch.specialization.cover import cheapest_cover
from polybatch.specialization.identify import require_identifiable
from polybatch.specialization.row import Phase, Specialization

_OPTIONAL_INPUTS = frozenset({"num_logits_to_keep", "comp_ctx_lengths"})


@dataclass(frozen=True)
class SpecializationTable:
    """Every shape a program runs, prefill rows first; build it with :func:`build_table`.

    Rows are ordered by (batch, K, CCL) within a phase, and one input identifies each of them (rule 4).
    """

    config: BatchingConfig
    rows: tuple[Specialization, ...]
    warnings: tuple[str, ...] = ()

    @cached_property
    def max_prompt_len(self) -> int:
        """The longest prompt in tokens: one position is left for a token, and prefill reads at most its largest CCL."""
        return min(self.config.ctx_len - 1, max(row.readable_positions for row in self.prefill))

    @cached_property
    def prefill(self) -> tuple[Specialization, ...]:
        """The prefill rows, by rising CCL."""
        return self._phase("prefill")

    @cached_property
    def decode(self) -> tuple[Specialization, ...]:
        """The decode rows, by rising (batch, K, CCL)."""
        return self._phase("decode")

    def candidates(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Specialization, ...]:
        """Rows that agree with every shape passed; ``num_logits_to_keep`` and ``comp_ctx_lengths`` may be left out."""
        found = []
        for row in self._by_step.get(tuple(shapes.get("input_ids", ())), ()):
            allowed = row.input_shapes(self.config.continuous_batching)
            required = allowed.keys() - _OPTIONAL_INPUTS
            if required <= shapes.keys() and all(allowed.get(name) == tuple(shapes[name]) for name in shapes):
                found.append(row)
        return tuple(found)

    @cached_property
    def _by_step(self) -> dict[tuple[int, ...], tuple[Specialization, ...]]:
        """Rows by the shape of ``input_ids``, so that a step does not pay for the size of the table."""
        groups: dict[tuple[int, ...], list[Specialization]] = {}
        for row in self.rows:
            groups.setdefault((row.batch_size, row.seq_len), []).append(row)
        return {shape: tuple(rows) for shape, rows in groups.items()}

    def match(self, shapes: Mapping[str, tuple[int, ...]]) -> Specialization | None:
        """The one row with these input shapes; None when no row, or more than one, agrees with them."""
        found = self.candidates(shapes)
        return found[0] if len(found) == 1 else None

    def choose_decode(self, live_rows: int, proposal_len: int, max_position: int) -> Specialization:
        """The smallest decode row that fits: batch >= rows, K >= longest proposal, CCL > largest position + K.

        ``max_position`` is the position of the first token of the row that is furthest on. Near the end of a slot
        the unfilled columns of a K that is longer than the proposal are padding, so only the proposal must fit.
        Raises NoMatchingSpecializationError when no row fits, StepInputError for fewer than one live row.
        """
        if live_rows < 1:
            raise StepInputError(f"a decode step needs at least one live row, not {live_rows}")
        self._require_room(proposal_len, max_position)
        last = self.config.ctx_len - 1
        for row in self.decode:
            enough = row.batch_size >= live_rows and row.num_speculative_tokens >= proposal_len
            if enough and row.readable_positions > min(max_position + row.num_speculative_tokens, last):
                return row
        compiled = " ".join(sorted({f"({row.batch_size},{row.seq_len})" for row in self.decode}))
        raise NoMatchingSpecializationError(
            f"no specialization covers {live_rows} rows of {proposal_len + 1} tokens; compiled: {compiled}. "
            "Run fewer rows or shorter proposals per step, or recompile with a larger "
            "batch_size or num_speculative_tokens"
        )

    def choose_prefill(self, last_position: int) -> Specialization:
        """The prefill row with the smallest CCL > the chunk's last position; NoMatchingSpecializationError if none."""
        for row in self.prefill:
            if row.readable_positions > last_position:
                return row
        raise NoMatchingSpecializationError(
            f"no prefill specialization reads position {last_position}; "
            f"the longest prompt is {self.max_prompt_len} tokens"
        )

    def cover(
        self,
        live_rows: int,
        step_ms: Mapping[Specialization, float] | None = None,
        *,
        proposal_len: int = 0,
        max_position: int = 0,
    ) -> tuple[Specialization, ...]:
        """The decode rows to run so that each of ``live_rows`` rows is in one, largest batch first.

        With a time for every row in question the cheapest cover wins (5 live rows as 4 + 1 instead of 8); otherwise
        the fewest steps, then the fewest padding rows. No live rows: no steps. Raises as :meth:`choose_decode`.
        """
        if live_rows == 0:
            return ()
        if live_rows < 0:
            raise StepInputError(f"live_rows cannot be negative, got {live_rows}")
        sizes = self.config.batch_sizes
        times = None
        if step_ms is not None:
            rows = [self.choose_decode(size, proposal_len, max_position) for size in sizes]
            if all(row in step_ms for row in rows):
                times = tuple(step_ms[row] for row in rows)
        cover = cheapest_cover(live_rows, sizes, times)
        return tuple(self.choose_decode(size, proposal_len, max_position) for size in cover)

    def to_json(self) -> dict[str, Any]:
        """A plain dict that :meth:`from_json` takes back."""
        return {"batching": self.config.to_json(), "specializations": [row.to_json() for row in self.rows]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SpecializationTable":
        """Build the table again from its request; SpecializationError when the stored rows are not the ones built."""
        fields = BatchingConfig.__dataclass_fields__
        batching = dict(data["batching"])
        if batching.keys() != fields.keys():
            raise SpecializationError(
                f"a stored table has the batching fields {sorted(fields)}, got {sorted(batching)}"
            )
        dynamic = batching.pop("dynamic")
        sizes = batching.pop("batch_sizes")
        table = build_table(batch_size=sizes[0] if len(sizes) == 1 else sizes, **batching)
        if table.config.dynamic != dynamic or [row.to_json() for row in table.rows] != list(data["specializations"]):
            raise SpecializationError("the stored specializations are not those of the stored batching request")
        return table

    def _phase(self, phase: Phase) -> tuple[Specialization, ...]:
        return tuple(row for row in self.rows if row.phase == phase)

    def _require_room(self, proposal_len: int, max_position: int) -> None:
        if max_position + proposal_len >= self.config.ctx_len:
            raise NoMatchingSpecializationError(
                f"position {max_position} with {proposal_len} proposed tokens does not fit ctx_len="
                f"{self.config.ctx_len}; shorten the proposal or end the sequence"
            )


def build_table(
    *,
    batch_size: int | Sequence[int] = 1,
    continuous_batching: bool = False,
    full_batch_size: int | None = None,
    ctx_len: int = 2048,
    prefill_seq_len: int = 128,
    num_speculative_tokens: int | Sequence[int] | None = None,
    comp_ctx_lengths_prefill: Sequence[int] | None = None,
    comp_ctx_lengths_decode: Sequence[int] | None = None,
) -> SpecializationTable:
    """Check a request and give its table; sequences are lists or tuples.

    When only one of the two CCL lists is given, the other phase reads the whole slot: its list means [ctx_len].
    Advice that is not an error is in ``table.warnings``. Raises TypeError for a value of the wrong type and
    SpecializationError (a ValueError) for a request that breaks a rule.
    """
    config = validate_request(
        batch_size=batch_size,
        continuous_batching=continuous_batching,
        full_batch_size=full_batch_size,
        ctx_len=ctx_len,
        prefill_seq_len=prefill_seq_len,
        num_speculative_tokens=num_speculative_tokens,
        comp_ctx_lengths_prefill=comp_ctx_lengths_prefill,
        comp_ctx_lengths_decode=comp_ctx_lengths_decode,
    )
    rows = _rows(config)
    require_identifiable(rows, config)
    return SpecializationTable(config=config, rows=rows, warnings=_warnings(config))


def _rows(config: BatchingConfig) -> tuple[Specialization, ...]:
    default = (config.ctx_len,) if config.uses_comp_ctx_lengths else (None,)
    keep = 1 if config.speculative else None
    prefill = [
        Specialization(
            "prefill",
            config.prefill_batch_size,
            config.prefill_seq_len,
            config.ctx_len,
            comp_ctx_length=ccl,
            num_logits_to_keep=keep,
        )
        for ccl in config.comp_ctx_lengths_prefill or default
    ]
    decode = [
        Specialization(
            "decode", batch, drafts + 1, config.ctx_len, comp_ctx_length=ccl, num_logits_to_keep=keep and drafts + 1
        )
        for batch in config.batch_sizes
        for drafts in config.num_speculative_tokens or (0,)
        for ccl in config.comp_ctx_lengths_decode or default
    ]
    return (*prefill, *decode)


def _warnings(config: BatchingConfig) -> tuple[str, ...]:
    found = []
    largest = config.batch_sizes[-1]
    if largest < config.full_batch_size:
        found.append(
            f"the largest batch_size is {largest} but full_batch_size={config.full_batch_size}: "
            f"a step over more than {largest} rows runs as several specializations"
        )
    drafts = config.num_speculative_tokens
    if drafts is not None and drafts[0] > 0:
        found.append(
            f"num_speculative_tokens={list(drafts)} lacks 0: every decode step, also one without proposals, "
            f"pays for {drafts[0] + 1} tokens per row; add 0 to avoid it"
        )
    return tuple(found)
