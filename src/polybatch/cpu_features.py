"""What instruction sets this machine has."""

from functools import lru_cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_KEYS = frozenset({"flags", "Features"})  # x86, arm


@lru_cache(maxsize=1)
def available_features() -> frozenset[str]:
    """Feature names as Linux spells them (``avx2``, ``avx512_bf16``, ``asimd``); empty on other systems."""
    try:
        return parse_cpuinfo(_CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return frozenset()


def parse_cpuinfo(text: str) -> frozenset[str]:
    """The features that every processor listed in the text of ``/proc/cpuinfo`` has."""
    processors = set()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in _KEYS:
            processors.add(frozenset(value.split()))
    return frozenset.intersection(*processors) if processors else frozenset()
