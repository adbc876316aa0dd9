"""The files beside the graph, against golden files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from qaic_double.sdk import install_compiler

from polybatch import QaicOptions
from polybatch.specialization import build_table, specializations_text
from polybatch.targets.qaic.argv import CompilerInputs
from polybatch.targets.qaic.files import custom_io_text, kv_precision, partition_text, script_text

GOLDEN = Path(__file__).parents[2] / "golden" / "qaic"
CONTINUOUS = {"continuous_batching": True, "full_batch_size": 16, "ctx_len": 4096, "prefill_seq_len": 128}
LENGTHS = {"comp_ctx_lengths_prefill": [2048, 4064], "comp_ctx_lengths_decode": [1024, 4096]}
# The combinations of the feature: five that there are and two that cannot be told apart at run time.
SUPPORTED: dict[str, dict[str, Any]] = {
    "dynamic": {"batch_size": [1, 2, 4, 8, 16]},
    "multi_k": {"batch_size": 16, "num_speculative_tokens": [0, 3, 7]},
    "dynamic_multi_k": {"batch_size": [1, 4, 16], "num_speculative_tokens": [0, 3]},
    "ccl": {"batch_size": 16, **LENGTHS},
    "ccl_k": {"batch_size": 16, "num_speculative_tokens": 3, **LENGTHS},
}
REJECTED: dict[str, dict[str, Any]] = {
    "dynamic_ccl": {"batch_size": [1, 16], **LENGTHS},
    "multi_k_ccl": {"batch_size": 16, "num_speculative_tokens": [0, 3], **LENGTHS},
}


@pytest.mark.parametrize("form", ["named", "flat"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_specializations_are_as_in_the_golden_file(name: str, form: str) -> None:
    text = specializations_text(build_table(**CONTINUOUS, **SUPPORTED[name]), named=form == "named")
    assert text == (GOLDEN / f"specializations_{name}_{form}.json").read_text()


@pytest.mark.parametrize("name", REJECTED)
def test_refusals_are_as_in_the_golden_file(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        build_table(**CONTINUOUS, **REJECTED[name])
    assert f"{caught.value}\n" == (GOLDEN / f"rejected_{name}.txt").read_text()


@pytest.mark.parametrize("precision", ["float16", "mxint8", "bfloat16"])
def test_custom_io_is_as_in_the_golden_file(precision: str) -> None:
    assert custom_io_text(2, precision) == (GOLDEN / f"custom_io_{precision}.yaml").read_text()


def test_the_precision_of_the_cache() -> None:
    assert kv_precision(bfloat16=False, mxint8=False) == "float16"
    assert kv_precision(bfloat16=True, mxint8=False) == "bfloat16"
    assert kv_precision(bfloat16=True, mxint8=True) == kv_precision(bfloat16=False, mxint8=True) == "mxint8"


def test_the_partition_slices_over_every_device() -> None:
    device = [{"deviceId": number, "numCores": 14} for number in range(2)]
    assert json.loads(partition_text(2, 14)) == {
        "connections": [{"devices": [0, 1], "type": "p2p"}],
        "partitions": [{"name": "Partition0", "devices": device}],
    }


def test_the_script_is_as_in_the_golden_file() -> None:
    options = QaicOptions(num_devices=2, extra_flags=("-name=it's",))
    assert script_text(CompilerInputs(options, False)) == (GOLDEN / "compile.sh").read_text()


@pytest.mark.parametrize(
    ("compiler", "code", "says"),
    [
        ("echo broken >&2; exit 3", 3, "broken"),
        ("mkdir qpc.partial", 1, "without writing programqpc.bin"),
        ("mkdir qpc.partial; : > qpc.partial/programqpc.bin", 1, "without writing programqpc.bin"),
    ],
)
def test_a_script_whose_compiler_fails_leaves_what_was_there(
    compiler: str, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYBATCH_QAIC_SDK", str(install_compiler(tmp_path / "sdk", f"#!/bin/sh\n{compiler}\n")))
    program = tmp_path / "program"
    (program / "qpc").mkdir(parents=True)
    (program / "qpc" / "programqpc.bin").write_text("older")
    (program / "compile.sh").write_text(script_text(CompilerInputs(QaicOptions(), False)))
    done = subprocess.run(["sh", program / "compile.sh"], capture_output=True, text=True)
    assert (done.returncode, says in done.stderr) == (code, True)
    assert (program / "qpc" / "programqpc.bin").read_text() == "older"
    assert sorted(path.name for path in program.iterdir()) == ["compile.sh", "qpc"]
