"""Imports point one way; a package may import only from those below it."""

from __future__ import annotations

import ast
from pathlib import Path

import polybatch

ROOT = Path(polybatch.__file__).parent

# From the top down; the modules of one layer do not import each other.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"cli"}),
    frozenset({"server"}),
    frozenset({"engine", "compiler"}),
    frozenset({"session"}),
    frozenset({"program"}),
    frozenset({"targets"}),
    frozenset({"models"}),
    frozenset({"weights", "ops", "kv_layout", "cpu_features", "specialization"}),
    frozenset({"errors"}),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# ``program.session()`` is the one call up: it opens a session on itself.
ALLOWED_UP = {("program", "session")}


def _imports(path: Path) -> set[str]:
    """The top-level polybatch modules that a file imports, type checking included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("polybatch"):
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "polybatch" else [node.module]
            )
            found |= {name.split(".")[1] for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("polybatch.")}
    return found & set(LEVEL)


def test_imports_point_down() -> None:
    upward = []
    for path in ROOT.rglob("*.py"):
        owner = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if owner == "__init__":
            continue
        assert owner in LEVEL, f"{owner} is in no layer"
        for imported in _imports(path) - {owner}:
            if LEVEL[imported] <= LEVEL[owner] and (owner, imported) not in ALLOWED_UP:
                upward.append(f"{path.relative_to(ROOT)} imports {imported}")
    assert upward == []


def test_importing_polybatch_loads_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, polybatch; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_table_imports_neither_torch_nor_a_target() -> None:
    for path in (ROOT / "specialization").rglob("*.py"):
        assert "import torch" not in path.read_text()
        assert _imports(path) <= {"specialization", "errors"}
