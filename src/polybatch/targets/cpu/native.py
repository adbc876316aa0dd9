"""The native kernels: building the shared library, and calling it on torch tensors.

Generated graph code calls the kernels through AOTInductor's C shims (``kernels/*_shims.cpp``); ``KernelLibrary`` calls
the same functions through ctypes, for tests and for the runtime's thread setting.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from polybatch.errors import CompilerError
from polybatch.targets.cpu.isa import Isa
from polybatch.targets.cpu.packing import elements_per_group, packed_linear_shape

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

    A finished build is kept under ``$XDG_CACHE_HOME/polybatch/kernels`` and taken from there the next time.

    Raises:
        CompilerError: there is no compiler, or it failed; the message has its last lines.
    """
    compiler = find_compiler(cxx)
    name = soname(isa, cxx=compiler)
    cached = _cache_dir() / name
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
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
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "polybatch" / "kernels"


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

_int64 = ctypes.c_int64
_pointer = ctypes.c_void_p
_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1}


class _LinearCall(ctypes.Structure):
    """``PolybatchLinear`` of kernels/api.h."""

    _fields_ = [
        ("element", _int64),
        ("rows", _int64),
        ("in_features", _int64),
        ("out_features", _int64),
        ("x", _pointer),
        ("x_row_stride", _int64),
        ("weight", _pointer),
        ("bias", _pointer),
        ("y", _pointer),
    ]


class _ExpertLinearCall(ctypes.Structure):
    """``PolybatchExpertLinear`` of kernels/api.h."""

    _fields_ = [("linear", _LinearCall), ("expert_index", _pointer), ("experts", _int64)]


class _SlotAttentionCall(ctypes.Structure):
    """``PolybatchSlotAttention`` of kernels/api.h."""

    _fields_ = [
        ("element", _int64),
        ("batch", _int64),
        ("heads", _int64),
        ("kv_heads", _int64),
        ("tokens", _int64),
        ("head_dim", _int64),
        ("value_dim", _int64),
        ("q", _pointer),
        ("q_strides", _int64 * 3),
        ("k", _pointer),
        ("k_strides", _int64 * 3),
        ("v", _pointer),
        ("v_strides", _int64 * 3),
        ("cache", _pointer),
        ("slot_stride", _int64),
        ("k_offset", _int64),
        ("v_offset", _int64),
        ("ctx_len", _int64),
        ("batch_index", _pointer),
        ("position_ids", _pointer),
        ("batch_index_stride", _int64),
        ("position_strides", _int64 * 2),
        ("sinks", _pointer),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window", _int64),
        ("out", _pointer),
    ]


_CALLS: dict[str, type[ctypes.Structure]] = {
    "packed_linear": _LinearCall,
    "packed_expert_linear": _ExpertLinearCall,
    "slot_attention": _SlotAttentionCall,
}


class KernelLibrary:
    """A built kernel library, loaded with its symbols kept to itself.

    Keep it open for as long as a graph library that was linked to it is in use.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        # Through a real path with a slash, so that the loader never searches for another file of the same name.
        self._library = ctypes.CDLL(str(self.path.resolve()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._library.polybatch_isa.restype = ctypes.c_char_p
        for name, call in _CALLS.items():
            function = getattr(self._library, f"polybatch_{name}")
            function.argtypes, function.restype = [ctypes.POINTER(call)], None

    @property
    def isa(self) -> str:
        return str(self._library.polybatch_isa().decode())

    def set_num_threads(self, threads: int) -> int:
        """Set the OpenMP threads of the calling thread (kernels, torch, generated code); returns the previous count."""
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        return int(self._library.polybatch_set_num_threads(threads))

    def packed_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
        """x [..., K] times a weight from ``pack_linear``, plus an fp32 bias [N]: [..., N] in x's dtype."""
        call, y, _kept = _linear_call(x, weight, bias, out_features, ())
        self._library.polybatch_packed_linear(ctypes.byref(call))
        return y

    def packed_expert_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, expert_index: Tensor, out_features: int
    ) -> Tensor:
        """Row i of x [rows, K] times expert ``expert_index[i]`` of stacked packed weights [E, ...]; bias [E, N]."""
        experts = weight.shape[0]
        if x.dim() != 2 or expert_index.dtype != torch.int64 or tuple(expert_index.shape) != (x.shape[0],):
            raise ValueError(f"x {list(x.shape)} and expert_index {list(expert_index.shape)} do not fit together")
        if ((expert_index < 0) | (expert_index >= experts)).any():
            raise ValueError(f"expert_index must be in 0..{experts - 1}")
        linear, y, _kept = _linear_call(x, weight, bias, out_features, (experts,))
        expert_index = expert_index.contiguous()
        call = _ExpertLinearCall(linear, expert_index.data_ptr(), experts)
        self._library.polybatch_packed_expert_linear(ctypes.byref(call))
        return y

    def slot_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: Tensor,
        batch_index: Tensor,
        position_ids: Tensor,
        sinks: Tensor | None,
        k_offset: int,
        v_offset: int,
        ctx_len: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Tensor:
        """Write k, v into ``cache`` [slots, slot_stride] in place, then attend to the live positions of each slot.

        q [B, H, S, D], k [B, HK, S, D], v [B, HK, S, DV], batch_index [B] or [B, 1], position_ids [B, S] with -1 for
        padding, sinks float32 [H] or None. Returns [B, S, H, DV].
        """
        batch, heads, tokens, head_dim = q.shape
        kv_heads, value_dim = k.shape[1], v.shape[3]
        elements_per_group(q.dtype)
        if not q.dtype == k.dtype == v.dtype == cache.dtype:
            raise ValueError(f"q {q.dtype}, k {k.dtype}, v {v.dtype} and cache {cache.dtype} must have one dtype")
        if tuple(k.shape) != (batch, kv_heads, tokens, head_dim) or tuple(v.shape) != (
            batch,
            kv_heads,
            tokens,
            value_dim,
        ):
            raise ValueError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} do not fit together")
        if heads % kv_heads or tuple(position_ids.shape) != (batch, tokens) or batch_index.numel() != batch:
            raise ValueError("heads, batch_index or position_ids do not fit q and k")
        live = position_ids >= 0
        slots = batch_index.reshape(batch)[live.any(dim=1)]
        if (position_ids >= ctx_len).any() or (slots < 0).any() or (slots >= cache.shape[0]).any():
            raise ValueError(f"a position is not below {ctx_len}, or a slot is not in 0..{cache.shape[0] - 1}")
        q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
        batch_index = batch_index.reshape(batch)
        out = q.new_empty(batch, tokens, heads, value_dim)
        call = _SlotAttentionCall(
            _ELEMENTS[q.dtype], batch, heads, kv_heads, tokens, head_dim, value_dim,
            q.data_ptr(), (_int64 * 3)(*q.stride()[:3]),
            k.data_ptr(), (_int64 * 3)(*k.stride()[:3]),
            v.data_ptr(), (_int64 * 3)(*v.stride()[:3]),
            cache.data_ptr(), cache.stride(0), k_offset, v_offset, ctx_len,
            batch_index.data_ptr(), position_ids.data_ptr(), batch_index.stride(0),
            (_int64 * 2)(*position_ids.stride()),
            None if sinks is None else sinks.data_ptr(), scale, softcap, window, out.data_ptr(),
        )  # fmt: skip
        self._library.polybatch_slot_attention(ctypes.byref(call))
        return out


def _linear_call(
    x: Tensor, weight: Tensor, bias: Tensor | None, out_features: int, stack: tuple[int, ...]
) -> tuple[_LinearCall, Tensor, tuple[Tensor | None, ...]]:
    """A linear's arguments, its result and the tensors to keep alive; weight and bias have leading sizes ``stack``."""
    in_features = x.shape[-1]
    expected = (*stack, *packed_linear_shape(out_features, in_features, weight.dtype))
    if x.dtype != weight.dtype or tuple(weight.shape) != expected:
        raise ValueError(f"x {x.dtype} {list(x.shape)} does not fit weight {weight.dtype} {list(weight.shape)}")
    if bias is not None and (bias.dtype != torch.float32 or tuple(bias.shape) != (*stack, out_features)):
        raise ValueError(f"the bias must be float32 {[*stack, out_features]}, not {bias.dtype} {list(bias.shape)}")
    rows = x.reshape(-1, in_features) if in_features else x.new_empty(x.shape[:-1].numel(), 0)
    rows = rows if in_features <= 1 or rows.stride(-1) == 1 else rows.contiguous()
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    y = x.new_empty(*x.shape[:-1], out_features)
    call = _LinearCall(
        _ELEMENTS[x.dtype],
        rows.shape[0],
        in_features,
        out_features,
        rows.data_ptr(),
        rows.stride(0),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
    )
    return call, y, (rows, weight, bias)
