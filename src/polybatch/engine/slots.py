"""The slots of the KV cache: which are free, lowest first."""

from __future__ import annotations

import heapq


class SlotAllocator:
    """Hands out the slots 0..count-1; every slot is either free or held by exactly one sequence."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"a cache has at least 1 slot, got {count}")
        self.count = count
        self._free = list(range(count))
        self._held: set[int] = set()

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def allocate(self) -> int:
        """Take the lowest free slot. Raises ValueError when none is free; ask ``free_count`` first."""
        if not self._free:
            raise ValueError(f"all {self.count} slots are held")
        slot = heapq.heappop(self._free)
        self._held.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; the next sequence may take it at once. Raises ValueError if it is not held."""
        if slot not in self._held:
            raise ValueError(f"slot {slot} is not held; held: {sorted(self._held)}")
        self._held.remove(slot)
        heapq.heappush(self._free, slot)
