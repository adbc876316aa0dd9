"""``qaic.json``: what a program was exported with, for the runtime and for people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from polybatch.errors import ProgramCorruptError
from polybatch.targets.qaic.options import QaicOptions

RECORD_FILE = "qaic.json"


@dataclass(frozen=True)
class Record:
    """The options, the compiler's arguments, and the SDK that compiled it (None: not compiled yet)."""

    options: QaicOptions
    argv: tuple[str, ...]
    sdk_version: str | None

    def write(self, folder: Path) -> None:
        """Write the record into a program."""
        data = {"options": self.options.to_json(), "argv": list(self.argv), "sdk_version": self.sdk_version}
        (folder / RECORD_FILE).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Record:
        """The record of a program; ProgramCorruptError when it cannot be read."""
        path = folder / RECORD_FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(QaicOptions.from_json(data["options"]), tuple(data["argv"]), data["sdk_version"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ProgramCorruptError(f"{path} cannot be read ({error}); recompile the program") from error
