"""``manifest.json``: what a program is, what it was compiled by and for, and what files it has."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from polybatch.errors import ProgramCorruptError, ProgramError, ProgramVersionError, SpecializationError
from polybatch.specialization import BatchingConfig, Phase, Specialization, SpecializationTable

SCHEMA_VERSION: Final = 4
MANIFEST_NAME = "manifest.json"
_NEEDED_FILES = {
    "cpu": ("graph.so", "kernels.so", "weights.safetensors"),
    "eager": ("config.json", "weights.safetensors"),
    "qaic": ("model.onnx", "model.onnx.data", "custom_io.yaml", "specializations.json", "qaic.json"),
}


def _inside(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name:
        raise ValueError("file names are relative and stay inside the program")
    return name


FileName = Annotated[str, AfterValidator(_inside)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class CreatedBy(_Record):
    """Versions of what compiled the program; ``compiler`` is the C++ or device compiler, if one was used."""

    polybatch: str
    torch: str
    transformers: str
    compiler: str | None = None


class ModelInfo(_Record):
    """The model: ``weights`` is the stored weight format (None: as ``dtype``), ``source`` the name it was loaded by."""

    class_name: str
    model_type: str
    dtype: Literal["float32", "bfloat16"]
    weights: Literal["int8", "int8-weight-only"] | None = None
    vocab_size: int
    num_layers: int
    source: str


class TensorSpec(_Record):
    """One input or output of a step; the shape mixes ints and the names of symbolic sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Batching(_Record):
    """The fields of :class:`polybatch.specialization.BatchingConfig`."""

    batch_sizes: tuple[int, ...]
    continuous_batching: bool
    full_batch_size: int
    ctx_len: int
    prefill_seq_len: int
    num_speculative_tokens: tuple[int, ...] | None
    comp_ctx_lengths_prefill: tuple[int, ...] | None
    comp_ctx_lengths_decode: tuple[int, ...] | None
    dynamic: bool

    @classmethod
    def from_config(cls, config: BatchingConfig) -> "Batching":
        """The record of a validated request."""
        return cls.model_validate(config.to_json())


class SpecializationEntry(_Record):
    """One row of the table and the measured milliseconds of its step, if measured."""

    phase: Phase
    batch_size: int
    seq_len: int
    ctx_len: int
    comp_ctx_length: int | None
    num_logits_to_keep: int | None
    step_ms: float | None = None


class KvLayer(_Record):
    """The KV cache of one layer: heads and the size of a key and a value, in elements."""

    kv_heads: int
    key_dim: int
    value_dim: int


class KvCache(_Record):
    """The KV cache of the program; ``bytes_per_slot`` covers all layers and all ``ctx_len`` positions."""

    layers: tuple[KvLayer, ...]
    bytes_per_slot: int


class Verification(_Record):
    """The largest relative error of the program's logits against the model's own, and the bound it was held to."""

    max_relative_error: float
    tolerance: float


class FileEntry(_Record):
    """Size in bytes and sha256 (hex) of one file."""

    size: int
    sha256: str


class Manifest(_Record):
    """Everything that ``manifest.json`` holds. ``created`` is an ISO date.

    The writer fills in ``files`` and ``checksum``, the sha256 of all other fields as canonical JSON.
    """

    schema_version: Literal[4] = SCHEMA_VERSION
    created: str
    created_by: CreatedBy
    target: Literal["cpu", "eager", "qaic"]
    isa: str | None = None
    cpu_features: tuple[str, ...] = ()
    model: ModelInfo
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batching: Batching
    specializations: tuple[SpecializationEntry, ...]
    batch_invariant: bool
    kv_cache: KvCache
    verification: Verification | None = None
    files: dict[FileName, FileEntry] = {}
    checksum: str = ""

    def seal(self) -> "Manifest":
        """The same with the checksum that belongs to it."""
        fields = self.model_dump(mode="json", exclude={"checksum"})
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return self.model_copy(update={"checksum": hashlib.sha256(canonical.encode("ascii")).hexdigest()})

    def build_table(self) -> SpecializationTable:
        """The table of specializations; ProgramCorruptError when the stored rows are not those of the request."""
        rows = [entry.model_dump(exclude={"step_ms"}) for entry in self.specializations]
        try:
            return SpecializationTable.from_json(
                {"batching": self.batching.model_dump(mode="json"), "specializations": rows}
            )
        except SpecializationError as error:
            raise ProgramCorruptError(f"{MANIFEST_NAME} holds an impossible table: {error}; recompile") from error

    def step_times(self) -> dict[Specialization, float]:
        """Measured milliseconds per step, of the rows that were measured."""
        return {
            Specialization(**entry.model_dump(exclude={"step_ms"})): entry.step_ms
            for entry in self.specializations
            if entry.step_ms is not None
        }

    def to_text(self) -> str:
        """The text of ``manifest.json``."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"


def describe_rows(
    table: SpecializationTable, step_ms: Mapping[Specialization, float] | None = None
) -> tuple[SpecializationEntry, ...]:
    """The rows of a table as manifest entries, with the step times known."""
    times = step_ms or {}
    return tuple(SpecializationEntry(**row.to_json(), step_ms=times.get(row)) for row in table.rows)


def describe_io(table: SpecializationTable, vocab_size: int) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """(inputs, outputs) of a step with symbolic sizes; outputs: logits float32 [batch_size, n, vocab_size]."""
    shapes: dict[str, tuple[int | str, ...]] = {
        "input_ids": ("batch_size", "seq_len"),
        "position_ids": ("batch_size", "seq_len"),
        "batch_index": ("batch_size", 1),
        "comp_ctx_lengths": ("comp_ctx_lengths",),
        "num_logits_to_keep": ("num_logits_to_keep", 1),
    }
    present = table.rows[0].input_shapes(table.config.continuous_batching)
    inputs = tuple(TensorSpec(name=name, dtype="int64", shape=shapes[name]) for name in present)
    kept: int | str = "num_logits_to_keep" if table.config.speculative else 1
    return inputs, (TensorSpec(name="logits", dtype="float32", shape=("batch_size", kept, vocab_size)),)


def read_manifest(directory: Path) -> Manifest:
    """Read and check ``manifest.json``, the schema version before anything else.

    Raises ProgramError (no such program), ProgramVersionError or ProgramCorruptError, each in one line.
    """
    if not directory.is_dir():
        raise ProgramError(f"there is no program at {directory}; compile one or check the path")
    path = directory / MANIFEST_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ProgramCorruptError(f"{directory} has no {MANIFEST_NAME}; it is not a polybatch program") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramCorruptError(f"cannot read {path}: {error}; recompile the program") from error
    _require_version(path, text)
    manifest = _validate(path, text)
    if manifest.checksum != manifest.seal().checksum:
        raise ProgramCorruptError(
            f"{path} has been edited (its checksum differs); recompile the program or copy it again"
        )
    missing = [name for name in _NEEDED_FILES.get(manifest.target, ()) if name not in manifest.files]
    if missing:
        raise ProgramCorruptError(
            f"{path} is damaged at files: a program of target {manifest.target} has {missing[0]}; recompile the program"
        )
    return manifest


def _validate(path: Path, text: str) -> Manifest:
    try:
        return Manifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProgramCorruptError(f"{path} is damaged at {place}: {first['msg']}; recompile the program") from error


def _require_version(path: Path, text: str) -> None:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ProgramCorruptError(f"{path} is not JSON ({error}); recompile the program") from error
    except RecursionError:
        raise ProgramCorruptError(f"{path} is nested too deeply; recompile the program") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version is None:
        raise ProgramCorruptError(f"{path} has no schema_version; it is not a polybatch program")
    if type(version) is not int:
        raise ProgramCorruptError(
            f"{path} is damaged at schema_version: a {type(version).__name__}, not an int; recompile the program"
        )
    if version != SCHEMA_VERSION:
        raise ProgramVersionError(
            f"{path.parent} has schema version {version}, this polybatch reads {SCHEMA_VERSION}; "
            "recompile the program or install the polybatch that wrote it"
        )
