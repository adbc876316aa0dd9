"""A compiled program, loaded."""

import importlib.metadata
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polybatch.cpu_features import available_features
from polybatch.errors import ProgramCorruptError, ProgramError, ProgramIncompatibleError
from polybatch.program.files import absolute, sha256_of
from polybatch.program.manifest import Manifest, read_manifest
from polybatch.specialization import Specialization, SpecializationTable

if TYPE_CHECKING:
    from polybatch.session import InferenceSession

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True, eq=False)
class Program:
    """A program directory that has been checked; make one with :meth:`load`."""

    path: Path
    manifest: Manifest
    device_ids: tuple[int, ...] | None = None

    @classmethod
    def load(cls, path: str | Path, verify: bool = False) -> "Program":
        """Check the directory against its manifest and this machine; reads no weights and imports no torch.

        ``verify`` also hashes every file. Raises ProgramError (nothing there), ProgramVersionError,
        ProgramCorruptError (naming the file) or ProgramIncompatibleError (CPU features, torch version).
        """
        directory = absolute(path)
        manifest = read_manifest(directory)
        _require_files(directory, manifest, verify)
        _require_features(directory, manifest)
        if manifest.target == "cpu":
            _require_torch(directory, manifest)
        program = cls(directory, manifest)
        _ = program.table  # refuse an impossible table here and not at the first step
        return program

    @cached_property
    def table(self) -> SpecializationTable:
        """The table of specializations."""
        return self.manifest.build_table()

    @property
    def specializations(self) -> tuple[Specialization, ...]:
        """Every compiled row, prefill first."""
        return self.table.rows

    @cached_property
    def step_ms(self) -> dict[Specialization, float]:
        """Milliseconds per step measured at compile time, of the rows that were measured."""
        return self.manifest.step_times()

    @property
    def target(self) -> str:
        """``cpu``, ``eager`` or ``qaic``."""
        return self.manifest.target

    @property
    def ctx_len(self) -> int:
        """Positions per slot."""
        return self.table.config.ctx_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self.manifest.model.vocab_size

    @property
    def full_batch_size(self) -> int:
        """Slots of the KV cache."""
        return self.table.config.full_batch_size

    @property
    def prefill_seq_len(self) -> int:
        """Tokens in one prefill chunk."""
        return self.table.config.prefill_seq_len

    @property
    def max_prompt_len(self) -> int:
        """The longest prompt in tokens."""
        return self.table.max_prompt_len

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Token ids that end a sequence, from ``generation_config.json``; empty when the program says none."""
        path = self.path / "generation_config.json"
        if not path.is_file():
            return ()
        try:
            given = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (ValueError, AttributeError, RecursionError) as error:
            raise ProgramCorruptError(f"{path} is not a JSON object; recompile the program") from error
        ids = given if isinstance(given, list) else [] if given is None else [given]
        if not all(type(token) is int for token in ids):
            raise ProgramCorruptError(f"{path} has eos_token_id {given!r}, not ints; recompile the program")
        return tuple(ids)

    def on_devices(self, device_ids: Sequence[int]) -> "Program":
        """This program, to be opened on these devices (target qaic); ValueError for ids that cannot be."""
        ids = tuple(operator.index(device) for device in device_ids)
        if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
            raise ValueError(f"device_ids must be different ints from 0 on, not {list(ids)}")
        return replace(self, device_ids=ids)

    def tokenizer(self) -> Any:
        """The tokenizer stored in the program (loaded once); ProgramError when it has none. Imports transformers."""
        return self._tokenizer

    def session(self, threads: int | None = None) -> "InferenceSession":
        """A new session with its own, empty KV cache; ``threads`` None uses every core that torch would use."""
        from polybatch.session import open_session

        return open_session(self, threads)

    @cached_property
    def _tokenizer(self) -> Any:
        if not any((self.path / name).is_file() for name in _TOKENIZER_FILES):
            raise ProgramError(f"{self.path} carries no tokenizer; pass token ids instead of text")
        import transformers

        return transformers.AutoTokenizer.from_pretrained(self.path, local_files_only=True)


def _require_files(directory: Path, manifest: Manifest, verify: bool) -> None:
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise ProgramCorruptError(f"{path} is missing; recompile the program or copy it again")
        size = path.stat().st_size
        if size != entry.size:
            raise ProgramCorruptError(
                f"{path} has {size} bytes instead of {entry.size}; recompile the program or copy it again"
            )
        if verify and sha256_of(path) != entry.sha256:
            raise ProgramCorruptError(f"{path} has changed (sha256 differs); recompile the program or copy it again")


def _require_features(directory: Path, manifest: Manifest) -> None:
    missing = sorted(set(manifest.cpu_features) - available_features())
    if missing:
        raise ProgramIncompatibleError(
            f"{directory} was compiled for isa={manifest.isa} and this CPU lacks {', '.join(missing)}; "
            "recompile here, or with --isa portable"
        )


def _require_torch(directory: Path, manifest: Manifest) -> None:
    """The compiled graph binds to torch's C++ interface; the local label (``+cpu``) names a wheel, not an interface."""
    recorded = manifest.created_by.torch
    installed = importlib.metadata.version("torch")
    if recorded.partition("+")[0] != installed.partition("+")[0]:
        raise ProgramIncompatibleError(
            f"{directory} was compiled with torch {recorded} and torch {installed} is installed; "
            f"recompile it or install torch=={recorded.partition('+')[0]}"
        )
