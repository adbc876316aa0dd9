"""What runs right now, as JSON for people and for the page."""

from __future__ import annotations

from typing import Any

from polybatch.server.metrics.latency import Histogram
from polybatch.server.model import ServedModel
from polybatch.server.service import Service


def slots(service: Service) -> dict[str, Any]:
    """Every slot of the cache: who holds it, how far it is, how fast."""
    model = service.ready()
    rows = [
        {
            "slot": slot.slot,
            "request_id": slot.request_id,
            "user": None if slot.request_id is None else service.users.get(slot.request_id),
            "state": _state(slot.request_id, slot.generated_tokens),
            "position": slot.position,
            "prompt_tokens": slot.prompt_tokens,
            "generated_tokens": slot.generated_tokens,
            "tokens_per_s": slot.tokens_per_s,
        }
        for slot in model.engine.slots()
    ]
    return {"ctx_len": model.ctx_len, "slots": rows}


def _state(request_id: int | None, generated: int) -> str:
    if request_id is None:
        return "free"
    return "decode" if generated else "prefill"


def snapshot(service: Service) -> dict[str, Any]:
    """Slots, steps by specialization and latencies: all that the page shows. Counts only grow."""
    model = service.ready()
    stats = model.engine.stats
    latencies = service.latencies
    return slots(service) | {
        "model": model.name,
        "live": stats.live,
        "waiting": stats.waiting,
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "generated_tokens": stats.generated_tokens,
        "finished": dict(stats.finished),
        "acceptance": None if stats.speculation is None else stats.speculation.acceptance,
        "specializations": _table(model),
        "first_token_s": _histogram(latencies.to_first_token),
        "between_tokens_s": _histogram(latencies.between_tokens),
    }


def _table(model: ServedModel) -> list[dict[str, Any]]:
    done = model.engine.stats.specializations
    rows = []
    for name in model.about.get("specializations", list(done)):
        row = done.get(name)
        rows.append(
            {
                "name": name,
                "steps": row.steps if row else 0,
                "rows": row.live_rows if row else 0,
                "padding_rows": row.padding_rows if row else 0,
                "seconds": row.seconds if row else 0.0,
            }
        )
    return rows


def _histogram(values: Histogram) -> dict[str, Any]:
    return {"bounds": values.bounds, "counts": list(values.counts)}
