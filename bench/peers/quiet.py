"""How much of the machine other processes used while a worker was being timed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICK_SECONDS = 1.0 / os.sysconf("SC_CLK_TCK")
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal; not idle, iowait, guest


@dataclass(frozen=True)
class CpuUse:
    """Seconds of processor time since boot, of everything and of one process."""

    all: float
    process: float

    @classmethod
    def read(cls, pid: int) -> CpuUse:
        everything = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
        own = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        busy = sum(int(everything[field]) for field in BUSY_FIELDS)
        return cls(busy * TICK_SECONDS, (int(own[11]) + int(own[12])) * TICK_SECONDS)

    def foreign_share(self, later: CpuUse, seconds: float) -> float:
        """Of all processors during ``seconds``, the share that other processes took between two readings."""
        foreign = (later.all - self.all) - (later.process - self.process)
        return max(0.0, foreign) / (seconds * (os.cpu_count() or 1))
