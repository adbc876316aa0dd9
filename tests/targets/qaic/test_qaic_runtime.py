"""The description of a compiled program, and the types of its buffers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from qaic_double import driver, messages

from polybatch import DeviceOpenError, NoMatchingSpecializationError
from polybatch.targets.qaic.device import _array
from polybatch.targets.qaic.io_descriptor import Binding, IoDescriptor
from polybatch.targets.qaic.runtime import Runtime

RUNTIME = Runtime(driver, messages)


def _entry(name: str, index: int, kind: int = 0, **changes: Any) -> dict[str, Any]:
    entry = {"name": name, "index": index, "type": kind, "dir": 0, "dims": [1, 4], "size": 16}
    return {**entry, "is_partial_buf_allowed": name.startswith("past_"), **changes}


def _parse(bindings: list[dict[str, Any]], allowed: list[Any]) -> IoDescriptor:
    return IoDescriptor.parse(RUNTIME, json.dumps({"bindings": bindings, "allowed_shapes": allowed}).encode())


def test_a_program_of_one_specialization_has_the_shapes_of_its_bindings() -> None:
    described = _parse([_entry("b", 1), _entry("a", 0, dims=[2])], [])
    assert [binding.name for binding in described.bindings] == ["a", "b"]
    described.require_allowed({"a": (2,), "b": (1, 4)})
    with pytest.raises(NoMatchingSpecializationError):
        described.require_allowed({"a": (3,)})


def test_all_shapes_must_belong_to_one_specialization() -> None:
    described = _parse([_entry("a", 0), _entry("b", 1)], [[(0, [1]), (0, [10])], [(0, [2]), (0, [20])]])
    described.require_allowed({"a": (2,), "b": (20,)})
    with pytest.raises(NoMatchingSpecializationError, match=r"\{'a': \[1\], 'b': \[10\]\}"):
        described.require_allowed({"a": (1,), "b": (20,)})


def test_a_cache_that_the_host_would_have_to_send_is_refused() -> None:
    with pytest.raises(DeviceOpenError, match=r"past_key\.0 does not stay on the device"):
        _parse([_entry("past_key.0", 0, is_partial_buf_allowed=False)], [])


def test_an_element_type_from_the_future_is_refused() -> None:
    with pytest.raises(DeviceOpenError, match="element type 99"):
        _parse([_entry("a", 0, 99)], [])


@pytest.mark.parametrize("named", [True, False])
def test_bfloat16_is_read_bit_by_bit(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if named:
        monkeypatch.setattr(messages, "BFLOAT16_TYPE", 42, raising=False)
    (binding,) = _parse([_entry("logits", 0, 42 if named else 11, dims=[1, 2])], []).bindings
    values = np.array([[1.5, -3.0]], np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    read = _array(binding, (1, 2), halves.tobytes())
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, values)


def test_float16_is_read_as_it_is() -> None:
    binding = Binding("logits", 0, "float16", (2,), 4, False, False)
    assert _array(binding, (2,), np.array([1.5, -3.0], np.float16).tobytes()).tolist() == [1.5, -3.0]
