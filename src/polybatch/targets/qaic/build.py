"""Writes the files of a qaic program, and compiles it for the device where the SDK is installed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from polybatch.errors import UnsupportedModelError
from polybatch.kv_layout import CacheSpec
from polybatch.specialization import specializations_text
from polybatch.targets.base import BuildRequest, BuildResult
from polybatch.targets.qaic.argv import CompilerInputs, compiler_argv, input_files, partition_file
from polybatch.targets.qaic.device_compiler import run_compiler
from polybatch.targets.qaic.export import export_onnx
from polybatch.targets.qaic.files import custom_io_text, kv_precision, partition_text, script_text
from polybatch.targets.qaic.names import CUSTOM_IO_FILE, SPECIALIZATIONS_FILE
from polybatch.targets.qaic.options import QaicOptions
from polybatch.targets.qaic.qpc_cache import QpcCache, compile_key
from polybatch.targets.qaic.record import Record
from polybatch.targets.qaic.sdk import Sdk, find_sdk, sdk_root

SCRIPT_FILE = "compile.sh"
LOG_FILE = "qaic-compile.log"
_BITS = {"float16": 16.0, "bfloat16": 16.0, "mxint8": 8.25}  # mxint8: 32 values share 8 bits of exponent


def build_program(request: BuildRequest, folder: Path) -> BuildResult:
    """Write the graph and the compiler's inputs. Raises UnsupportedModelError."""
    options = request.qaic or QaicOptions()
    request.progress("exporting the graph")
    _export(request, options, folder)
    inputs = _compiler_inputs(request)
    precision = kv_precision(bfloat16=inputs.bfloat16, mxint8=options.mxint8_kv_cache)
    for name, text in _texts(request, inputs, precision).items():
        (folder / name).write_text(text, encoding="utf-8")
    return BuildResult(
        isa=None,
        cpu_features=(),
        compiler=None,
        batch_invariant=False,
        bytes_per_slot=int(_slot_elements(request.cache) * _BITS[precision] / 8),
    )


def finish_program(request: BuildRequest, folder: Path, built: BuildResult) -> BuildResult:
    """Compile for the device; where there is no SDK, write the script that does it elsewhere. Raises CompilerError."""
    inputs = _compiler_inputs(request)
    sdk = find_sdk()
    Record(inputs.options, compiler_argv(inputs), None if sdk is None else sdk.version).write(folder)
    if sdk is None:
        _write_script(inputs, folder)
        return replace(built, notes=(_how_to_finish(),))
    _compile(request, inputs, sdk, folder)
    return replace(built, compiler=f"qaic-compile {sdk.version}")


def _compiler_inputs(request: BuildRequest) -> CompilerInputs:
    return CompilerInputs(request.qaic or QaicOptions(), request.cache.dtype == "bfloat16")


def _export(request: BuildRequest, options: QaicOptions, folder: Path) -> None:
    try:
        export_onnx(request.model, request.cache.layers, request.table.config, folder, plain=options.plain_onnx)
    except OSError:
        raise
    except Exception as error:  # the exporter raises many kinds, most of them internal
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedModelError(
            f"{type(request.model).__name__} is not supported: its forward pass cannot be exported ({reason})"
        ) from error


def _texts(request: BuildRequest, inputs: CompilerInputs, precision: str) -> dict[str, str]:
    """The text files that the compiler takes, by name."""
    options = inputs.options
    texts = {
        SPECIALIZATIONS_FILE: specializations_text(request.table, named=not options.flat_specializations),
        CUSTOM_IO_FILE: custom_io_text(len(request.cache.layers), precision),
    }
    if options.num_devices > 1:
        texts[partition_file(options.num_devices)] = partition_text(options.num_devices, options.num_cores)
    return texts


def _write_script(inputs: CompilerInputs, folder: Path) -> None:
    script = folder / SCRIPT_FILE
    script.write_text(script_text(inputs), encoding="utf-8")
    script.chmod(0o755)


def _compile(request: BuildRequest, inputs: CompilerInputs, sdk: Sdk, folder: Path) -> None:
    argv = compiler_argv(inputs, str(sdk.compiler))
    cache = QpcCache()
    request.progress("looking for an earlier device program of the same inputs")
    key = compile_key(folder, input_files(inputs), argv, sdk.version)
    if cache.fetch(key, folder):
        return
    log = cache.log_path(key)
    request.progress(f"compiling for the device (log: {log})")
    run_compiler(argv, folder, log)
    shutil.copyfile(log, folder / LOG_FILE)
    cache.store(key, folder)


def _slot_elements(cache: CacheSpec) -> int:
    return sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in cache.layers) * cache.ctx_len


def _how_to_finish() -> str:
    return (
        f"{sdk_root()}/exec/qaic-compile is not on this machine, so the program is exported but not compiled for the "
        f"device; copy it to a machine with the SDK and run {SCRIPT_FILE} in it"
    )
