"""The options that benchmarks have in common."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench.peers.install import CACHE
from bench.results import default_out


def parser_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """For ``python -m bench.NAME``; the description keeps its lines."""
    return argparse.ArgumentParser(
        prog=f"python -m bench.{name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """--threads, all of the machine's by default."""
    parser.add_argument("--threads", type=int, default=os.cpu_count())


def add_folders(parser: argparse.ArgumentParser, name: str) -> None:
    """--out, by default the folder of the benchmark ``name``, and --cache."""
    parser.add_argument("--out", type=Path, default=default_out(name))
    parser.add_argument("--cache", type=Path, default=CACHE, help="models and compiled programs")


def add_common(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """--threads, --out, --cache and --lock; returns the parser."""
    add_threads(parser)
    add_folders(parser, name)
    parser.add_argument(
        "--lock", type=Path, help="file to hold while measuring (bench.lock), where several benchmarks run"
    )
    return parser
