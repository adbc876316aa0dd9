"""One call of a tool, and the JSON that models write for it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Call:
    """arguments: a JSON object as a string, as OpenAI's API has it."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def parse_calls(text: str, names: Collection[str]) -> list[Call]:
    """The calls of ``{"name": ..., "arguments": {...}}`` or a list of such; [] when the text is anything else.

    ``parameters`` for ``arguments`` is what Llama 3 models write.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call(item, names) for item in (found if isinstance(found, list) else [found])]
    return [call for call in calls if call is not None] if None not in calls else []


def _call(item: Any, names: Collection[str]) -> Call | None:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or item["name"] not in names:
        return None
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the object as a string
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return Call(item["name"], json.dumps(arguments, ensure_ascii=False))
