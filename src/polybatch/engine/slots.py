"""The slots of the KV cache: which are free and which are held."""

from __future__ import annotations


class SlotAllocator:
    """Hands out the slots 0..count-1; every slot is either free or held by exactly one sequence."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"a cache has at least 1 slot, got {count}")
        self.count = count
        self._free = set(range(count))
        self._held: set[int] = set()

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def free_slots(self) -> frozenset[int]:
        return frozenset(self._free)

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def allocate(self, slot: int | None = None) -> int:
        """Take the lowest free slot, or a certain one. Raises ValueError when it, or none at all, is free."""
        if not self._free:
            raise ValueError(f"all {self.count} slots are held")
        slot = min(self._free) if slot is None else slot
        if slot not in self._free:
            raise ValueError(f"slot {slot} is not free; free: {sorted(self._free)}")
        self._free.remove(slot)
        self._held.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; the next sequence may take it at once. Raises ValueError if it is not held."""
        if slot not in self._held:
            raise ValueError(f"slot {slot} is not held; held: {sorted(self._held)}")
        self._held.remove(slot)
        self._free.add(slot)
