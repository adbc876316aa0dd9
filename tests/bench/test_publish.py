"""The documentation takes the tables of benchmarks that were run, and keeps the others."""

from __future__ import annotations

from pathlib import Path

from bench.publish import DOCS, published

PAGE = "# A\n\n<!-- limits -->\nold\n<!-- end of limits -->\n\ntext\n\n<!-- memory -->\nold\n<!-- end of memory -->\n"


def test_tables_that_were_made_take_the_place_of_older_ones(tmp_path: Path) -> None:
    (tmp_path / "limits").mkdir()
    (tmp_path / "limits" / "limits.md").write_text("# B\n| new |\n")
    once = published(PAGE, tmp_path)
    assert once == PAGE.replace("limits -->\nold\n", "limits -->\n\n### B\n| new |\n\n", 1)
    assert published(once, tmp_path) == once


def test_the_page_has_a_place_for_each_benchmark() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    for name in ("experiments", "limits", "quality", "speculation", "memory", "serve", "peers"):
        assert page.count(f"<!-- {name} -->") == page.count(f"<!-- end of {name} -->") == 1
