"""The command line of ``qaic-compile``. Pure code."""

from __future__ import annotations

from dataclasses import dataclass

from polybatch.targets.qaic.names import CUSTOM_IO_FILE, MODEL_FILE, QPC_DIR, SPECIALIZATIONS_FILE, WEIGHTS_FILE
from polybatch.targets.qaic.options import QaicOptions


@dataclass(frozen=True)
class CompilerInputs:
    """What the compiler is given; every path is relative to the program directory, so that it may be moved."""

    options: QaicOptions
    bfloat16: bool
    """Whether the exported graph is in bfloat16, which only some hardware has."""
    output_dir: str = QPC_DIR


def compiler_argv(inputs: CompilerInputs, executable: str = "qaic-compile") -> tuple[str, ...]:
    """The argument vector, to be run in the program directory."""
    options = inputs.options
    argv = [executable, "-aic-hw", f"-aic-hw-version={options.hardware}", f"-m={MODEL_FILE}", "-retained-state"]
    if not inputs.bfloat16:
        argv.append("-convert-to-fp16")
    argv.append(f"-aic-num-cores={options.num_cores}")
    if options.mxfp6_matmul:
        argv.append("-mxfp6-matmul")
    if options.mos is not None:
        argv.append(f"-mos={options.mos}")
    if options.aic_enable_depth_first:
        argv.append("-aic-enable-depth-first")
    argv += options.extra_flags
    if options.num_devices > 1:
        argv.append(f"-mdp-load-partition-config={partition_file(options.num_devices)}")
    argv.append(f"-network-specialization-config={SPECIALIZATIONS_FILE}")
    if not inputs.bfloat16 or options.mxint8_kv_cache:
        argv.append(f"-custom-IO-list-file={CUSTOM_IO_FILE}")
    argv.append(f"-aic-binary-dir={inputs.output_dir}")
    return tuple(argv)


def input_files(inputs: CompilerInputs) -> tuple[str, ...]:
    """The files that the result depends on."""
    devices = inputs.options.num_devices
    partition = (partition_file(devices),) if devices > 1 else ()
    return (MODEL_FILE, WEIGHTS_FILE, SPECIALIZATIONS_FILE, CUSTOM_IO_FILE, *partition)


def partition_file(num_devices: int) -> str:
    """The name of the partition file for that many devices."""
    return f"mdp_ts_{num_devices}.json"
