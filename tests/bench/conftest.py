"""The benchmarks are no part of the installed package; their tests import them from the repository."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
