"""The native kernels: building the shared library, and calling it on torch tensors.

Generated graph code calls the kernels through AOTInductor's C shims (``kernels/*_shims.cpp``); ``KernelLibrary`` calls
the same functions through ctypes, for tests and for the runtime's thread setting.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from polybatch.errors import CompilerError
from polybatch.targets.cpu.isa import Isa
from polybatch.targets.cpu.kernel_calls import (
    KERNELS,
    KernelCall,
    packed_expert_linear_call,
    packed_linear_call,
    slot_attention_call,
)

KERNEL_DIR = Path(__file__).with_name("kernels")

# No contraction: a fused multiply-add happens where the source says so and nowhere else.
_COMPILE_FLAGS = (
    "-O3",
    "-std=c++20",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
)
_LINK_FLAGS = ("-shared", "-fopenmp", "-Wl,-Bsymbolic")
_COMPILERS = ("g++", "clang++")
_ERROR_LINES = 20
_KEY_LENGTH = 12


# ---------------------------------------------------------------------------------------------------------- building


def find_compiler(cxx: str | None = None) -> str:
    """Path of the C++ compiler: ``cxx``, else ``$CXX``, else g++, else clang++.

    Raises:
        CompilerError: none is installed.
    """
    asked = cxx or os.environ.get("CXX")
    for name in (asked,) if asked else _COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    raise CompilerError(
        f"no C++ compiler: {asked or ' or '.join(_COMPILERS)} is not on PATH. Install g++ 12 or newer, or set CXX"
    )


def compiler_version(cxx: str | None = None) -> str:
    """First line of what the compiler says of itself."""
    return _full_version(find_compiler(cxx)).partition("\n")[0]


@functools.cache
def _full_version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _sources() -> list[Path]:
    return sorted(path for path in KERNEL_DIR.iterdir() if path.suffix in (".cpp", ".h"))


def _build_key(isa: Isa, compiler: str) -> str:
    digest = hashlib.sha256()
    for part in (*_COMPILE_FLAGS, *_LINK_FLAGS, *isa.compile_flags, _full_version(compiler), torch.__version__):
        digest.update(part.encode() + b"\0")
    for source in _sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:_KEY_LENGTH]


def soname(isa: Isa, *, cxx: str | None = None) -> str:
    """SONAME of the library that ``build_kernels`` makes: two libraries share it only if they are the same build.

    The dynamic loader binds a graph library to a loaded kernel library by SONAME, so this is what keeps programs for
    different instruction sets apart in one process.
    """
    return f"libpolybatch-{isa.name}-{_build_key(isa, find_compiler(cxx))}.so"


def build_kernels(isa: Isa, out_path: Path | None = None, *, cxx: str | None = None) -> Path:
    """Build the kernels for ``isa`` and return the library's path: ``out_path`` (replaced atomically) if given.

    A finished build is kept under ``$XDG_CACHE_HOME/polybatch/kernels`` and taken from there the next time (where that
    cannot be written: in a temporary directory, for this process).

    Raises:
        CompilerError: there is no compiler, or it failed; the message has its last lines.
    """
    compiler = find_compiler(cxx)
    name = soname(isa, cxx=compiler)
    cached = _cache_dir() / name
    if not cached.exists():
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix=".build-") as build_dir:
            _compile(compiler, isa, name, Path(build_dir)).replace(cached)
    if out_path is None:
        return cached
    with tempfile.NamedTemporaryFile(dir=out_path.parent, prefix=f".{out_path.name}-", delete=False) as temporary:
        copy = Path(temporary.name)
    try:
        shutil.copyfile(cached, copy)
        copy.chmod(0o755)
        copy.replace(out_path)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return out_path


def _cache_dir() -> Path:
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polybatch" / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return _temporary_cache()
    return folder if os.access(folder, os.W_OK) else _temporary_cache()


@functools.cache
def _temporary_cache() -> Path:
    folder = tempfile.mkdtemp(prefix="polybatch-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _compile(compiler: str, isa: Isa, name: str, build_dir: Path) -> Path:
    torch_dir = Path(torch.__file__).parent

    def compile_one(source: Path) -> str:
        target = str(build_dir / f"{source.stem}.o")
        flags = (*_COMPILE_FLAGS, *isa.compile_flags, f"-I{torch_dir / 'include'}")
        _run([compiler, *flags, "-c", str(source), "-o", target])
        return target

    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(compile_one, (path for path in _sources() if path.suffix == ".cpp")))
    library = build_dir / name
    libraries = (f"-L{torch_dir / 'lib'}", "-ltorch_cpu")
    _run([compiler, *_LINK_FLAGS, f"-Wl,-soname,{name}", *objects, "-o", str(library), *libraries])
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join(done.stderr.splitlines()[-_ERROR_LINES:])
        raise CompilerError(f"{' '.join(command)}\nfailed with exit code {done.returncode}:\n{last}")


# ----------------------------------------------------------------------------------------------------------- calling


_Arguments = ParamSpec("_Arguments")


def _running(call: Callable[_Arguments, KernelCall]) -> Callable[Concatenate[KernelLibrary, _Arguments], Tensor]:
    """A method that makes the call and runs it."""

    @functools.wraps(call)
    def method(library: KernelLibrary, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Tensor:
        return library.run(call(*args, **kwargs))

    return method


class KernelLibrary:
    """A built kernel library, loaded with its symbols kept to itself.

    Keep it open for as long as a graph library that was linked to it is in use.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        # Through a real path with a slash, so that the loader never searches for another file of the same name.
        self._library = ctypes.CDLL(str(self.path.resolve()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._library.polybatch_isa.restype = ctypes.c_char_p
        self._kernels = {name: getattr(self._library, f"polybatch_{name}") for name in KERNELS}
        for name, kernel in self._kernels.items():
            kernel.argtypes, kernel.restype = [ctypes.POINTER(KERNELS[name])], None

    @property
    def isa(self) -> str:
        return str(self._library.polybatch_isa().decode())

    @property
    def has_gates(self) -> bool:
        """Whether linears can be ``gated``."""
        return bool(self._library.polybatch_has_gates())

    def set_num_threads(self, threads: int) -> int:
        """Set the OpenMP threads of the calling thread (kernels, torch, generated code); returns the previous count."""
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        return int(self._library.polybatch_set_num_threads(threads))

    def release_threads(self) -> None:
        """End the OpenMP threads that earlier work of the calling thread (torch's too) has left waiting for more."""
        self._library.polybatch_release_threads()

    def run(self, call: KernelCall) -> Tensor:
        """Fill ``call.result`` and return it. Raises ValueError for a gated linear if the library has no gates."""
        if getattr(call.arguments, "gated", False) and not self.has_gates:
            raise ValueError(f"the kernels for isa={self.isa} have no gated linears")
        self._kernels[call.kernel](ctypes.byref(call.arguments))
        return call.result

    packed_linear = _running(packed_linear_call)
    packed_expert_linear = _running(packed_expert_linear_call)
    slot_attention = _running(slot_attention_call)
