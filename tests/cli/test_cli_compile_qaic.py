"""``polybatch compile --target qaic``: what is refused before any model is looked for, and what is passed on."""

from __future__ import annotations

import pytest

from polybatch import AutoModelForCausalLM, QaicOptions

SHAPE = ["--batch-size", "1,2", "--ctx-len", "64", "--prefill-seq-len", "8"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--target", "eager", "--num-cores", "8"], "target eager takes no options for the device"),
        (["--mxfp6-matmul"], "target cpu takes no options for the device"),
        (["--target", "qaic", "--num-cores", "0"], "num_cores=0 is too small"),
        (["--target", "qaic", "--extra-flag", "-mos=2"], "clashes with what the compile passes itself: pass mos="),
        (["--target", "qaic", "--extra-flag", "qpc-crc"], "is no compiler flag"),
        (["--target", "qaic", "--hardware", "ai300"], "unknown hardware 'ai300'"),
        (["--target", "qaic", "--weights", "int8"], "target qaic has no weights='int8'"),
        (["--target", "qaic", "--comp-ctx-lengths-decode", "32,64"], "Give a single batch_size"),
    ],
)
def test_what_cannot_end_well_is_refused_before_the_model_is_looked_for(run, tmp_path, options, says):
    result = run("compile", "no/such/model", *SHAPE, "-o", tmp_path / "a.poly", *options)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "no/such/model" not in result.stderr


def test_options_reach_the_compile(run, model_dir, tmp_path, monkeypatch):
    given = []

    def compile(self, path, **options):
        given.append(options["qaic"])
        raise ValueError("enough")

    monkeypatch.setattr(AutoModelForCausalLM, "compile", compile)
    flags = ["--num-cores", "14", "--num-devices", "2", "--mxint8-kv-cache", "--mos", "0", "--flat-specializations"]
    more = ["--aic-enable-depth-first", "--plain-onnx", "--extra-flag=-qpc-crc", "--extra-flag", "-name=2"]
    run("compile", model_dir, *SHAPE, "-o", tmp_path / "a.poly", "--target", "qaic", *flags, *more)
    run("compile", model_dir, *SHAPE, "-o", tmp_path / "a.poly", "--target", "qaic")
    run("compile", model_dir, *SHAPE, "-o", tmp_path / "a.poly", "--target", "qaic", "--hardware", "ai200")
    assert given == [
        QaicOptions(
            num_cores=14,
            num_devices=2,
            mxint8_kv_cache=True,
            mos=0,
            flat_specializations=True,
            aic_enable_depth_first=True,
            plain_onnx=True,
            extra_flags=("-qpc-crc", "-name=2"),
        ),
        None,
        QaicOptions(hardware="ai200"),
    ]
