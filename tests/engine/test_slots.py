import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybatch.engine.slots import SlotAllocator


def test_slots_are_handed_out_lowest_first():
    slots = SlotAllocator(3)
    assert [slots.allocate() for _ in range(3)] == [0, 1, 2]
    slots.free(2)
    slots.free(0)
    assert slots.allocate() == 0
    assert slots.held == {0, 1}


def test_a_full_allocator_refuses():
    slots = SlotAllocator(1)
    slots.allocate()
    with pytest.raises(ValueError, match="all 1 slots are held"):
        slots.allocate()


def test_a_slot_is_freed_once():
    slots = SlotAllocator(2)
    slots.free(slots.allocate())
    with pytest.raises(ValueError, match="slot 0 is not held"):
        slots.free(0)


def test_an_empty_cache_is_refused():
    with pytest.raises(ValueError, match="at least 1 slot"):
        SlotAllocator(0)


@given(st.integers(1, 6), st.lists(st.integers(0, 6)))
def test_every_slot_is_free_or_held_once(count, script):
    slots = SlotAllocator(count)
    for choice in script:
        if choice and slots.free_count:
            lowest = min(set(range(count)) - slots.held)
            assert slots.allocate() == lowest
        elif slots.held:
            slots.free(sorted(slots.held)[choice % len(slots.held)])
        assert slots.free_count + len(slots.held) == count
