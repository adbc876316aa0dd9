"""The options of the device and the command line that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polybatch import QaicOptions
from polybatch.targets.qaic.argv import CompilerInputs, compiler_argv, input_files
from polybatch.targets.qaic.options import MANAGED_FLAGS

GOLDEN = Path(__file__).parents[2] / "golden" / "qaic"
BFLOAT16 = {"bfloat16", "bfloat16_mxint8"}
SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "cores": {"num_cores": 8},
    "mxfp6": {"mxfp6_matmul": True, "mxint8_kv_cache": True},
    "four_devices": {"num_devices": 4, "num_cores": 14},
    "tuned": {"mos": 1, "aic_enable_depth_first": True},
    "extra": {"mos": 0, "extra_flags": ("-allocator-dealloc-delay=2", "-qpc-crc")},
    "bfloat16": {"hardware": "ai200"},
    "bfloat16_mxint8": {"hardware": "ai200", "mxint8_kv_cache": True, "num_devices": 2},
}


@pytest.mark.parametrize("name", SETS)
def test_the_command_line_is_as_in_the_golden_file(name: str) -> None:
    argv = compiler_argv(CompilerInputs(QaicOptions(**SETS[name]), name in BFLOAT16))
    assert list(argv) == json.loads((GOLDEN / "argv.json").read_text())[name]


@pytest.mark.parametrize("name", SETS)
def test_the_result_depends_on_every_file_that_the_command_line_names(name: str) -> None:
    inputs = CompilerInputs(QaicOptions(**SETS[name]), name in BFLOAT16)
    named = {part.partition("=")[2] for part in compiler_argv(inputs) if part.endswith((".json", ".yaml", ".onnx"))}
    assert named <= set(input_files(inputs))


@pytest.mark.parametrize("name", SETS)
def test_options_survive_json(name: str) -> None:
    options = QaicOptions(**SETS[name])
    assert QaicOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


@pytest.mark.parametrize("flag", MANAGED_FLAGS)
@pytest.mark.parametrize("form", ["{}", "{}=1", "-{}"])
def test_a_flag_that_is_decided_on_otherwise_is_refused(flag: str, form: str) -> None:
    with pytest.raises(ValueError, match="clashes") as caught:
        QaicOptions(extra_flags=(form.format(flag),))
    assert MANAGED_FLAGS[flag] in str(caught.value)


def test_every_flag_on_the_command_line_is_managed() -> None:
    for name, chosen in SETS.items():
        argv = compiler_argv(CompilerInputs(QaicOptions(**{**chosen, "extra_flags": ()}), name in BFLOAT16))
        assert {part.partition("=")[0] for part in argv[1:]} <= set(MANAGED_FLAGS)


@pytest.mark.parametrize("flag", ["qpc-crc", "-", "--", "", "-a b", "-a\n", "- a"])
def test_what_is_no_flag_is_refused(flag: str) -> None:
    with pytest.raises(ValueError, match="is no compiler flag"):
        QaicOptions(extra_flags=(flag,))


def test_a_flag_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="given twice"):
        QaicOptions(extra_flags=("-qpc-crc", "-qpc-crc=1"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_cores": 0}, ValueError),
        ({"num_cores": 65}, ValueError),
        ({"num_devices": 0}, ValueError),
        ({"mos": -1}, ValueError),
        ({"hardware": "ai300"}, ValueError),
        ({"num_cores": True}, TypeError),
        ({"num_devices": "2"}, TypeError),
        ({"mos": 1.0}, TypeError),
        ({"mxfp6_matmul": 1}, TypeError),
        ({"extra_flags": "-qpc-crc"}, TypeError),
        ({"extra_flags": (1,)}, TypeError),
    ],
)
def test_bad_values_are_refused_when_the_options_are_made(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))[:4]):
        QaicOptions(**options)
