"""The files of a program directory: sums, durability, and swapping one directory for another."""

import ctypes
import errno
import hashlib
import os
import uuid
from pathlib import Path

from polybatch.errors import ProgramError

_CHUNK_BYTES = 1 << 20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_NO_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM})


def absolute(path: str | Path) -> Path:
    """``path`` with ``~`` and symbolic links followed; ProgramError where that leads nowhere, such as a loop."""
    try:
        found = Path(path).expanduser().resolve()
        found.exists()  # a loop again (Python 3.13), or a name that is too long
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise ProgramError(f"the path {str(path)!r} cannot be used: {reason}; choose another") from error
    if any(path.is_symlink() for path in (found, *found.parents)):
        raise ProgramError(f"the path {str(path)!r} cannot be used: it holds a loop of symbolic links; choose another")
    return found


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def list_files(directory: Path) -> dict[str, Path]:
    """Every file below a directory by its relative name with ``/``, sorted; ProgramError for a symbolic link."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink():
            raise ProgramError(f"{path} is a symbolic link; a program holds its files itself")
        if path.is_file():
            found[path.relative_to(directory).as_posix()] = path
    return found


def sync_tree(directory: Path) -> None:
    """Flush every file and directory below, and the directory itself, to the disk."""
    for path in (*directory.rglob("*"), directory):
        sync(path)


def sync(path: Path) -> None:
    """Flush one file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(first: Path, second: Path) -> bool:
    """Swap two paths atomically; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))


def swap_by_renames(new: Path, current: Path, aside: Path) -> None:
    """Move ``current`` to ``aside`` and ``new`` to ``current``; on failure ``current`` is put back."""
    current.rename(aside)
    try:
        new.rename(current)
    except BaseException:
        aside.rename(current)
        raise


def unique_token() -> str:
    """Eight hex digits that no other call gives."""
    return uuid.uuid4().hex[:8]
