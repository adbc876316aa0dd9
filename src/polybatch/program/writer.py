"""Writing a program: into a temporary sibling, then renamed into place whole."""

import errno
import json
import shutil
from pathlib import Path
from types import TracebackType

from polybatch.errors import ProgramError
from polybatch.program.files import absolute, exchange, list_files, sha256_of, swap_by_renames, sync, sync_tree
from polybatch.program.manifest import MANIFEST_NAME, FileEntry, Manifest
from polybatch.program.sibling import clean_stale_siblings, new_sibling
from polybatch.specialization import specializations_text

SPECIALIZATIONS_NAME = "specializations.json"
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class ProgramWriter:
    """Context manager that makes a program appear at ``output_dir`` whole or not at all.

    Files go to :attr:`path`; :meth:`commit` finishes. Leaving without a commit, by any exception included, removes
    what was written and leaves an older program as it was.Raises ProgramError, before any work, when ``output_dir``
    is no place for a program, or exists and is neither empty nor a polybatch program; a full disk becomes a
    ProgramError with the bytes.
    """

    def __init__(self, output_dir: str | Path) -> None:
        self.output_dir = absolute(output_dir)
        self._temporary: Path | None = None
        self._bytes_needed = 0
        _require_replaceable(self.output_dir)

    @property
    def path(self) -> Path:
        """The directory to write into; ProgramError outside the ``with`` block and after the commit."""
        if self._temporary is None:
            raise ProgramError("a ProgramWriter takes files only inside its with block, before commit")
        return self._temporary

    def reserve(self, num_bytes: int) -> None:
        """Say how many bytes are still to come; ProgramError when the disk has fewer free."""
        self._bytes_needed = num_bytes
        if num_bytes > shutil.disk_usage(self.path).free:
            raise self._disk_full()

    def commit(self, manifest: Manifest) -> Manifest:
        """Write ``manifest.json`` and ``specializations.json``, flush, and rename the program into place.

        ``manifest.files`` is replaced by the size and sha256 of every file; the completed manifest is returned.
        """
        table = manifest.build_table()
        specializations = self.path / SPECIALIZATIONS_NAME
        if manifest.target != "qaic":  # whose compiler has been given the file, perhaps in its other form
            specializations.write_text(specializations_text(table), encoding="utf-8")
        (self.path / MANIFEST_NAME).unlink(missing_ok=True)
        files = {
            name: FileEntry(size=path.stat().st_size, sha256=sha256_of(path))
            for name, path in list_files(self.path).items()
        }
        complete = Manifest.model_validate({**manifest.model_dump(), "files": files}).seal()
        (self.path / MANIFEST_NAME).write_text(complete.to_text(), encoding="utf-8")
        sync_tree(self.path)
        self._move_into_place(self.path)
        self._temporary = None
        return complete

    def __enter__(self) -> "ProgramWriter":
        self.output_dir.parent.mkdir(parents=True, exist_ok=True)
        clean_stale_siblings(self.output_dir)
        _require_replaceable(self.output_dir)
        self._temporary = new_sibling(self.output_dir)
        self._temporary.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._temporary is None:
            return
        full = self._disk_full() if isinstance(error, OSError) and error.errno in _DISK_FULL else None
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary = None
        if full is not None:
            raise full from error

    def _move_into_place(self, temporary: Path) -> None:
        leftover = None
        if self.output_dir.exists():
            _require_replaceable(self.output_dir)
            leftover = temporary
            if not exchange(temporary, self.output_dir):
                leftover = new_sibling(self.output_dir, "old")
                swap_by_renames(temporary, self.output_dir, leftover)
        else:
            temporary.rename(self.output_dir)
        sync(self.output_dir.parent)
        if leftover is not None:
            shutil.rmtree(leftover, ignore_errors=True)

    def _disk_full(self) -> ProgramError:
        written = sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())
        needed = f"needs {self._bytes_needed} bytes, " if self._bytes_needed else ""
        return ProgramError(
            f"disk full: writing {self.output_dir} {needed}had written {written} bytes and "
            f"{shutil.disk_usage(self.path).free} are free on {self.output_dir.parent}; make room or write elsewhere"
        )


def _require_replaceable(directory: Path) -> None:
    if not directory.exists():
        _require_makeable(directory)
        return
    if not directory.is_dir():
        raise ProgramError(f"{directory} exists and is not a directory; choose another output directory")
    if not any(directory.iterdir()):
        return
    known = _files_of_program(directory)
    if known is None:
        raise ProgramError(
            f"{directory} exists and is neither empty nor a polybatch program; choose another output directory"
        )
    present = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    foreign = sorted(present - known - {MANIFEST_NAME})
    if known and foreign:  # other schema versions may not list their files
        raise ProgramError(
            f"{directory} holds {foreign[0]}, which is not part of the program there; "
            "move it away or choose another output directory"
        )


def _require_makeable(directory: Path) -> None:
    above = next(path for path in directory.parents if path.exists())
    if not above.is_dir():
        raise ProgramError(f"{directory} cannot be made: {above} is not a directory; choose another output directory")


def _files_of_program(directory: Path) -> set[str] | None:
    """Names of the files of the program of any schema version; None when the directory is no program."""
    try:
        data = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
        if "schema_version" not in data or "polybatch" not in data["created_by"]:
            return None
        known = set(data.get("files") or ())
        if data.get("target") == "qaic":  # compile.sh adds these later
            known |= {path.relative_to(directory).as_posix() for path in (directory / "qpc").rglob("*")}
        return known
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
