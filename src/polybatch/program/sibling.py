"""Temporary siblings of a program directory: their names, and clearing up after compiles that were killed.

``.NAME.HOST.PID.TOKEN.tmp`` is a program being written (or an old one being removed), ``.old`` instead of ``.tmp``
a program moved aside where two directories cannot be swapped atomically. A long NAME is shortened and gets a hash.
"""

import hashlib
import os
import platform
import re
import shutil
from pathlib import Path

from polybatch.program.files import unique_token

_NAME_BYTES = 48  # of NAME; with _HOST_LENGTH the whole fits the file systems of the shortest names (143 bytes)
_HOST_LENGTH = 64


def new_sibling(target: Path, suffix: str = "tmp") -> Path:
    """A fresh path next to ``target``; nothing is created."""
    return target.with_name(f".{_stem(target)}.{_host()}.{os.getpid()}.{unique_token()}.{suffix}")


def clean_stale_siblings(target: Path) -> None:
    """Remove siblings whose process on this machine is dead; put a program left aside back if there is none."""
    pattern = re.compile(rf"\.{re.escape(_stem(target))}\.{re.escape(_host())}\.(\d+)\.[0-9a-f]+\.(tmp|old)")
    for path in sorted(target.parent.iterdir()):
        found = pattern.fullmatch(path.name)
        if found is None or _is_alive(int(found[1])):
            continue
        if found[2] == "old" and not target.exists():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _stem(target: Path) -> str:
    name = os.fsencode(target.name)
    if len(name) <= _NAME_BYTES:
        return target.name
    digest = hashlib.sha256(name).hexdigest()[:16]
    return f"{name[: _NAME_BYTES - 17].decode(errors='ignore')}-{digest}"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:_HOST_LENGTH] or "localhost"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
