"""Puts what the benchmarks have found into the documentation: ``python -m bench.publish``.

In docs/benchmarks.md a table NAME stands between the lines ``<!-- NAME -->`` and ``<!-- end of NAME -->``; it becomes
what FROM/NAME/NAME.md holds, its headings two levels down, and the plots beside it go to docs/img. Benchmarks that were
not run stay as they are.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from bench.results import ROOT

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, default=ROOT, help="what the benchmarks have written")
    options = parser.parse_args()
    page = DOCS / "benchmarks.md"
    page.write_text(published(page.read_text(encoding="utf-8"), options.source), encoding="utf-8")
    for plot in sorted(options.source.glob("*/*.png")):
        shutil.copyfile(plot, DOCS / "img" / plot.name)
        print(f"docs/img/{plot.name}")


def published(text: str, source: Path) -> str:
    """``text`` with the tables that ``source`` has."""

    def table(found: re.Match[str]) -> str:
        path = source / found["name"] / f"{found['name']}.md"
        if not path.is_file():
            return found[0]
        print(f"docs/benchmarks.md: {found['name']}")
        lines = re.sub("^#", "###", path.read_text(encoding="utf-8").strip(), flags=re.MULTILINE)
        return f"{found['head']}\n{lines}\n\n{found['foot']}"

    pattern = r"(?P<head><!-- (?P<name>[a-z]+) -->\n).*?(?P<foot><!-- end of (?P=name) -->)"
    return re.sub(pattern, table, text, flags=re.DOTALL)


if __name__ == "__main__":
    main()
