"""An installed SDK made of the doubles, in a folder of its own; or one whose compiler is any script."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

HERE = Path(__file__).parent


def install_sdk(root: Path, version: str = "1.20.2.0") -> Path:
    """The doubles as an SDK that ``POLYBATCH_QAIC_SDK`` may name."""
    paths = [str(HERE.parent), *sys.path]
    start = f"import sys\nsys.path[:0] = {paths!r}\n"
    compiler = f"#!{sys.executable}\n{start}from qaic_double.compiler import main\nsys.exit(main(sys.argv[1:]))\n"
    install_compiler(root, compiler, version)
    for folder, name, module in (
        (Path("lib") / platform.machine(), "qaicrt", "driver"),
        (Path("python"), "QAicApi_pb2", "messages"),
    ):
        (root / "dev" / folder).mkdir(parents=True)
        (root / "dev" / folder / f"{name}.py").write_text(f"from qaic_double.{module} import *\n")
    return root


def install_compiler(root: Path, script: str, version: str = "1.20.2.0") -> Path:
    """An SDK of that version whose compiler is ``script``, and which has no runtime."""
    (root / "exec").mkdir(parents=True)
    compiler = root / "exec" / "qaic-compile"
    compiler.write_text(script)
    compiler.chmod(0o755)
    (root / "versions").mkdir()
    for name in ("apps", "platform"):
        text = f"<versions><ci_build><base_version>{version}</base_version></ci_build></versions>"
        (root / "versions" / f"{name}.xml").write_text(text)
    return root
