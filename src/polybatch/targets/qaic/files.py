"""The text files that the compiler takes beside the graph. Pure code."""

from __future__ import annotations

import json
import shlex

from polybatch.targets.qaic.argv import CompilerInputs, compiler_argv
from polybatch.targets.qaic.names import QPC_BINARY, QPC_DIR, RETAINED_SUFFIX, past_names

_PARTIAL_DIR = f"{QPC_DIR}.partial"


def kv_precision(*, bfloat16: bool, mxint8: bool) -> str:
    """How the device stores the KV cache."""
    return "mxint8" if mxint8 else "bfloat16" if bfloat16 else "float16"


def custom_io_text(layers: int, precision: str) -> str:
    """``custom_io.yaml``: the precision of every retained input and, alike, of its output."""
    entries = [entry for name in past_names(layers) for entry in (name, name + RETAINED_SUFFIX)]
    return "\n".join(f" - IOName: {name}\n   Precision: {precision}\n" for name in entries) + "\n"


def partition_text(num_devices: int, num_cores: int) -> str:
    """The partition of a model whose matrices are sliced over devices 0, 1, ... (logical numbers)."""
    devices = list(range(num_devices))
    data = {
        "connections": [{"devices": devices, "type": "p2p"}],
        "partitions": [
            {"name": "Partition0", "devices": [{"deviceId": device, "numCores": num_cores} for device in devices]}
        ],
    }
    return json.dumps(data, indent=1) + "\n"


def script_text(inputs: CompilerInputs) -> str:
    """``compile.sh``: finishes the program on a machine that has the SDK; leaves no half result."""
    argv = compiler_argv(CompilerInputs(inputs.options, inputs.bfloat16, _PARTIAL_DIR))
    arguments = " \\\n    ".join(shlex.quote(argument) for argument in argv[1:])
    return f"""#!/bin/sh
# Compiles this program for the device; needs the SDK of the Cloud AI platform.
set -eu
cd "$(dirname "$0")"
sdk="${{POLYBATCH_QAIC_SDK:-/opt/qti-aic}}"
compiler="$sdk/exec/qaic-compile"
if [ ! -x "$compiler" ]; then
    echo "$compiler not found: install the SDK, or set POLYBATCH_QAIC_SDK to where it is" >&2
    exit 1
fi
rm -rf {_PARTIAL_DIR}
trap 'rm -rf {_PARTIAL_DIR}' EXIT
trap 'exit 130' INT TERM
"$compiler" \\
    {arguments}
if [ ! -s {_PARTIAL_DIR}/{QPC_BINARY} ]; then
    echo "$compiler ended without writing {QPC_BINARY}" >&2
    exit 1
fi
rm -rf {QPC_DIR}
mv {_PARTIAL_DIR} {QPC_DIR}
echo "the program is ready: $(pwd)"
"""
