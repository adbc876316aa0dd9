"""What a benchmark leaves behind: NAME.json with everything, NAME.md for docs/benchmarks.md (see ``bench.publish``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path("build/bench")


def default_out(name: str) -> Path:
    """The folder that the benchmark ``name`` writes to, if not told otherwise."""
    return ROOT / name


def write_results(out: Path, name: str, data: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Write OUT/NAME.json and OUT/NAME.md; both are whole or as they were."""
    out.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(data, indent=1)), (".md", "\n".join(lines))):
        path = out / f"{name}{suffix}"
        unfinished = path.with_suffix(f"{suffix}.new")
        unfinished.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        unfinished.replace(path)
