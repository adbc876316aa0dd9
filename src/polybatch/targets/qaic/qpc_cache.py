"""What the device compiler has made before, by a hash of everything that goes into it, its version included."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from polybatch.targets.qaic.names import QPC_BINARY, QPC_DIR

_BLOCK = 1 << 20


class QpcCache:
    """Compiled programs under ``$XDG_CACHE_HOME/polybatch/qaic`` (``~/.cache`` by default), one folder per key."""

    def __init__(self, root: Path | None = None) -> None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.root = root or base / "polybatch" / "qaic"

    def log_path(self, key: str) -> Path:
        """Where the compiler's output for ``key`` goes, whether it fails or not."""
        self.root.mkdir(parents=True, exist_ok=True)
        return self.root / f"{key}.log"

    def fetch(self, key: str, folder: Path) -> bool:
        """Copy the compiled program to ``folder/qpc``; False when there is none."""
        entry = self.root / key
        binary = entry / QPC_BINARY
        if not binary.is_file() or binary.stat().st_size == 0:
            return False
        shutil.copytree(entry, folder / QPC_DIR)
        return True

    def store(self, key: str, folder: Path) -> None:
        """Keep a copy of ``folder/qpc``, whole or not at all."""
        self.root.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=self.root))
        try:
            shutil.copytree(folder / QPC_DIR, partial, dirs_exist_ok=True)
            shutil.rmtree(self.root / key, ignore_errors=True)
            partial.rename(self.root / key)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def compile_key(folder: Path, inputs: Sequence[str], argv: Sequence[str], sdk_version: str) -> str:
    """A name for the result: 32 hex digits of the hash of the input files' contents, the arguments and the SDK."""
    digests = {}
    for name in inputs:
        with (folder / name).open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(_BLOCK):
                digest.update(block)
        digests[name] = digest.hexdigest()
    # The path of the executable is left out: moving the SDK changes nothing.
    text = json.dumps({"files": digests, "arguments": list(argv[1:]), "sdk": sdk_version}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
