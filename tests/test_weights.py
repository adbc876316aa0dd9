"""weights.safetensors: a valid file, aligned, mapped without a copy, refused when damaged."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from polybatch.errors import ProgramCorruptError
from polybatch.weights import map_safetensors, write_safetensors

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8]


def read_header(path: Path) -> tuple[int, dict]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    return start, json.loads(data[8:start])


def write_header(path: Path, header: object, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def mixed() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [(16, 16), (64,), (3,), (), (5, 7), (0, 4)]
    return {
        f"{dtype}.{index}": torch.randint(0, 100, size, generator=generator).to(dtype)
        for dtype in DTYPES
        for index, size in enumerate(sizes)
    }


def test_the_official_library_reads_what_is_written(tmp_path, mixed):
    size = write_safetensors(tmp_path / "w.safetensors", mixed, {"format": "pt"})
    assert size == (tmp_path / "w.safetensors").stat().st_size
    read = load_file(tmp_path / "w.safetensors")
    assert read.keys() == mixed.keys()
    for name, tensor in mixed.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)


def test_what_is_written_is_mapped_back(tmp_path, mixed):
    write_safetensors(tmp_path / "w.safetensors", mixed)
    read = map_safetensors(tmp_path / "w.safetensors")
    assert read.keys() == mixed.keys()
    for name, tensor in mixed.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)


def test_the_data_starts_on_a_page_and_tensors_on_lines(tmp_path, mixed):
    write_safetensors(tmp_path / "w.safetensors", mixed)
    start, header = read_header(tmp_path / "w.safetensors")
    assert start % 4096 == 0
    for name, tensor in mixed.items():
        begin = header[name]["data_offsets"][0]
        assert begin % tensor.element_size() == 0
        if tensor.numel() * tensor.element_size() % 64 == 0:
            assert begin % 64 == 0


def test_mapped_tensors_are_aligned_in_memory(tmp_path):
    write_safetensors(tmp_path / "w.safetensors", {"a": torch.ones(3), "b": torch.ones(16), "c": torch.ones(64)})
    read = map_safetensors(tmp_path / "w.safetensors")
    assert [read[name].data_ptr() % 64 for name in ("b", "c")] == [0, 0]


def test_mapping_copies_nothing(tmp_path):
    write_safetensors(tmp_path / "w.safetensors", {"a": torch.ones(64), "b": torch.zeros(64)})
    read = map_safetensors(tmp_path / "w.safetensors")
    assert read["a"].untyped_storage().data_ptr() == read["b"].untyped_storage().data_ptr()
    assert read["b"].data_ptr() - read["a"].data_ptr() == 256
    assert str(tmp_path) in Path("/proc/self/maps").read_text()


def test_writing_to_a_mapped_tensor_does_not_change_the_file(tmp_path):
    path = tmp_path / "w.safetensors"
    write_safetensors(path, {"a": torch.ones(64)})
    before = path.read_bytes()
    map_safetensors(path)["a"].fill_(7.0)
    assert path.read_bytes() == before
    assert float(map_safetensors(path)["a"][0]) == 1.0


def test_a_file_of_the_official_library_is_mapped(tmp_path):
    save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(4)}, tmp_path / "w.safetensors")
    read = map_safetensors(tmp_path / "w.safetensors")
    assert torch.equal(read["a"], torch.arange(6.0).reshape(2, 3)) and torch.equal(read["b"], torch.arange(4))


def test_views_are_written_as_they_look(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    write_safetensors(tmp_path / "w.safetensors", {"t": base.T, "row": base[1], "column": base[:, 1]})
    read = map_safetensors(tmp_path / "w.safetensors")
    assert torch.equal(read["t"], base.T) and torch.equal(read["row"], base[1])
    assert torch.equal(read["column"], base[:, 1])


def test_no_tensors_make_a_file_that_reads_as_none(tmp_path):
    write_safetensors(tmp_path / "w.safetensors", {})
    assert map_safetensors(tmp_path / "w.safetensors") == {}


def test_another_dtype_is_a_type_error_and_writes_nothing(tmp_path):
    with pytest.raises(TypeError, match=r"tensor a has dtype torch\.complex64"):
        write_safetensors(tmp_path / "w.safetensors", {"a": torch.ones(2, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_corrupt(tmp_path):
    with pytest.raises(ProgramCorruptError, match="cannot be read"):
        map_safetensors(tmp_path / "w.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 4096, 4097, 4351])
def test_a_truncated_file_is_corrupt(tmp_path, keep):
    path = tmp_path / "w.safetensors"
    write_safetensors(path, {"a": torch.ones(64)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ProgramCorruptError, match=r"w\.safetensors is damaged"):
        map_safetensors(path)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data_bytes"),
    [
        (b"{", 0),
        (b"\xff\xfe", 0),
        (b"[" * 100_000, 0),
        ([], 0),
        ({"a": None}, 0),
        ({"a": {**GOOD, "dtype": "F8"}}, 8),
        ({"a": {**GOOD, "dtype": ["F32"]}}, 8),
        ({"a": {**GOOD, "shape": [3]}}, 8),
        ({"a": {**GOOD, "shape": [-2]}}, 8),
        ({"a": {**GOOD, "shape": [2.0]}}, 8),
        ({"a": {**GOOD, "shape": None}}, 8),
        ({"a": {**GOOD, "data_offsets": [8, 0]}}, 8),
        ({"a": {**GOOD, "data_offsets": [0]}}, 8),
        ({"a": {**GOOD, "data_offsets": [0, 8, 8]}}, 8),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8),
        ({"a": GOOD}, 7),
        ({"a": GOOD}, 9),
        ({"a": GOOD, "b": {**GOOD, "data_offsets": [4, 12]}}, 12),
        ({"a": GOOD, "b": {**GOOD, "data_offsets": [12, 20]}}, 20),
        ({"a": {**GOOD, "shape": [2**31, 2**31]}}, 8),
    ],
)
def test_an_edited_header_is_corrupt(tmp_path, header, data_bytes):
    path = tmp_path / "w.safetensors"
    write_header(path, header, bytes(data_bytes))
    with pytest.raises(ProgramCorruptError, match=r"w\.safetensors is damaged"):
        map_safetensors(path)


def test_a_tensor_off_its_alignment_is_corrupt(tmp_path):
    path = tmp_path / "w.safetensors"
    text = json.dumps({"a": GOOD}).encode()
    write_header(path, text + b" " * (1 + -(8 + len(text)) % 4), bytes(8))
    with pytest.raises(ProgramCorruptError, match="not a multiple of 4"):
        map_safetensors(path)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3)), max_size=6))
def test_any_set_of_tensors_survives(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    written = {f"t{i}": torch.ones(shape, dtype=dtype) for i, (dtype, shape) in enumerate(tensors)}
    write_safetensors(path, written)
    for read in (map_safetensors(path), load_file(path)):
        assert read.keys() == written.keys()
        assert all(torch.equal(read[name], written[name]) for name in written)
