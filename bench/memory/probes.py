"""One measurement per fresh process: ``python -m bench.memory.probes NAME JSON`` prints a JSON object.

Imports only the standard library by itself, so that nothing is there before the measurement starts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Found = dict[str, Any]


def import_time() -> Found:
    """Seconds of ``import polybatch``."""
    start = time.perf_counter()
    import polybatch  # noqa: F401

    return {"seconds": time.perf_counter() - start}


def load(program: str, threads: int) -> Found:
    """Seconds to a session once torch is imported, and of the first step, which reads the weights."""
    import numpy as np
    import torch  # noqa: F401

    start = time.perf_counter()
    from polybatch import Program

    session = Program.load(program).session(threads)
    opened = time.perf_counter()
    session.run(_one_token(np.zeros((1, 1), dtype=np.int64)))
    return {"seconds": opened - start, "first_step_seconds": time.perf_counter() - opened}


def session_memory(program: str, threads: int) -> Found:
    """Resident bytes that a session adds when it is opened and by its first step, the weights file apart."""
    import numpy as np
    import torch

    from polybatch import Program

    torch.zeros(1) + 1
    loaded = Program.load(program)
    before = _resident() - _resident_weights()
    session = loaded.session(threads)
    opened = _resident() - _resident_weights()
    session.run(_one_token(np.zeros((1, 1), dtype=np.int64)))
    stepped, weights = _resident() - _resident_weights(), _resident_weights()
    cache = loaded.manifest.kv_cache.bytes_per_slot * loaded.full_batch_size
    return {
        "opened_bytes": opened - before,
        "stepped_bytes": stepped - before,
        "weights_bytes": weights,
        "total_bytes": _resident(),
        "cache_reserved_bytes": cache,
    }


def compile_program(spec: dict[str, Any], folder: str, profile: bool) -> Found:
    """Seconds of a compile by stage, loading the model and importing apart, and the bytes that it writes."""
    from bench.programs import ProgramSpec, compile_spec  # imports polybatch

    lists = {name: tuple(value) for name, value in spec.items() if isinstance(value, list)}
    stages: list[tuple[str, float]] = []
    compile_spec(
        ProgramSpec(**{**spec, **lists}),
        Path(folder),
        profile=profile,
        progress=lambda stage: stages.append((stage, time.perf_counter())),
    )
    ends = [start for _, start in stages[1:]] + [time.perf_counter()]
    seconds = {name: end - start for (name, start), end in zip(stages, ends, strict=True)}
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {
        "seconds": sum(seconds.values()),
        "stages": seconds,
        "bytes": sum(path.stat().st_size for path in files),
    }


def _one_token(zero: Any) -> dict[str, Any]:
    return {"input_ids": zero, "position_ids": zero, "batch_index": zero}


def _resident() -> int:
    return _kilobytes(Path("/proc/self/status").read_text(encoding="ascii"), "VmRSS") << 10


def _resident_weights() -> int:
    """Of the mapped weights file, what is resident."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith("weights.safetensors")
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def _kilobytes(status: str, name: str) -> int:
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))


PROBES: dict[str, Callable[..., Found]] = {
    "import": import_time,
    "load": load,
    "session": session_memory,
    "compile": compile_program,
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](**json.loads(sys.argv[2]))))
