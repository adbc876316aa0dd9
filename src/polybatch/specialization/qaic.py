"""The table as the ``specializations.json`` that the Cloud AI compiler takes."""

import json
from typing import Any

from polybatch.specialization.row import Specialization
from polybatch.specialization.table import SpecializationTable


def to_qaic_specializations(table: SpecializationTable, *, named: bool = True) -> dict[str, list[dict[str, Any]]]:
    """``{"specializations": [...]}`` with one entry per row, all values strings (the compiler rejects ints).

    An entry is ``{"name", "symbols"}``, or only the symbols when ``named`` is false (older SDKs). Symbols are the
    graph's dimension names; ``full_batch_exec_size`` (rows per prefill call) is information, not a dimension.
    """
    entries: list[dict[str, Any]] = []
    for phase, rows in (("Prefill", table.prefill), ("Decode", table.decode)):
        for index, row in enumerate(rows):
            symbols = _symbols(row, table)
            name = phase if len(rows) == 1 else f"{phase}_{index}"
            entries.append({"name": name, "symbols": symbols} if named else symbols)
    return {"specializations": entries}


def specializations_text(table: SpecializationTable, *, named: bool = True) -> str:
    """The text of ``specializations.json``."""
    return json.dumps(to_qaic_specializations(table, named=named), indent=1, sort_keys=True) + "\n"


def _symbols(row: Specialization, table: SpecializationTable) -> dict[str, str]:
    continuous = table.config.continuous_batching
    symbols: dict[str, int | None] = {
        "batch_size": row.batch_size,
        "seq_len": row.seq_len,
        "ctx_len": row.ctx_len,
        "full_batch_size": table.config.full_batch_size if continuous else None,
        "comp_ctx_lengths": row.comp_ctx_length,
        "num_logits_to_keep": row.num_logits_to_keep,
        "full_batch_exec_size": row.batch_size if continuous and row.phase == "prefill" else None,
    }
    return {name: str(value) for name, value in symbols.items() if value is not None}
