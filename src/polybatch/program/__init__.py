"""A program on disk: its manifest, the atomic writer and the loader."""

from polybatch.program.manifest import (
    SCHEMA_VERSION,
    Batching,
    CreatedBy,
    FileEntry,
    KvCache,
    KvLayer,
    Manifest,
    ModelInfo,
    SpecializationEntry,
    TensorSpec,
    Verification,
    describe_io,
    describe_rows,
    read_manifest,
)
from polybatch.program.program import Program
from polybatch.program.writer import ProgramWriter

__all__ = [
    "SCHEMA_VERSION",
    "Batching",
    "CreatedBy",
    "FileEntry",
    "KvCache",
    "KvLayer",
    "Manifest",
    "ModelInfo",
    "Program",
    "ProgramWriter",
    "SpecializationEntry",
    "TensorSpec",
    "Verification",
    "describe_io",
    "describe_rows",
    "read_manifest",
]
