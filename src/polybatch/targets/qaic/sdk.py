"""Where the platform's SDK is, and which version."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from polybatch.errors import CompilerError

ENVIRONMENT = "POLYBATCH_QAIC_SDK"
_DEFAULT_ROOT = Path("/opt/qti-aic")
_VERSION_FILES = ("apps.xml", "platform.xml")


@dataclass(frozen=True)
class Sdk:
    """An installed SDK: its compiler, and its versions such as ``apps 1.20.2.0, platform 1.20.1.0``."""

    compiler: Path
    version: str


def sdk_root() -> Path:
    """``$POLYBATCH_QAIC_SDK``, or where the SDK installs itself."""
    return Path(os.environ.get(ENVIRONMENT) or _DEFAULT_ROOT)


def find_sdk() -> Sdk | None:
    """The SDK of this machine; None without one. CompilerError when the environment names a place that has none."""
    root = sdk_root()
    compiler = root / "exec" / "qaic-compile"
    if os.access(compiler, os.X_OK) and compiler.is_file():
        return Sdk(compiler.absolute(), _version(root / "versions"))
    if os.environ.get(ENVIRONMENT):
        raise CompilerError(f"{ENVIRONMENT}={root} has no executable exec/qaic-compile; correct it or unset it")
    return None


def _version(folder: Path) -> str:
    found = []
    for name in _VERSION_FILES:
        try:
            version = ElementTree.parse(folder / name).getroot().findtext(".//base_version")
        except (OSError, ElementTree.ParseError):
            version = None
        if version and version.strip():
            found.append(f"{name.removesuffix('.xml')} {version.strip()}")
    return ", ".join(found) or "unknown"
