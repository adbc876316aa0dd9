"""Reading what a CPU can do."""

from polybatch import cpu_features
from polybatch.cpu_features import available_features, parse_cpuinfo


def test_x86_flags_are_read():
    assert parse_cpuinfo("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\nbugs\t\t: spectre_v1\n") == {
        "fpu",
        "avx2",
        "avx512_bf16",
    }


def test_arm_features_are_read():
    assert parse_cpuinfo("processor\t: 0\nFeatures\t: fp asimd bf16\n") == {"fp", "asimd", "bf16"}


def test_only_what_every_processor_has_counts():
    assert parse_cpuinfo("flags : sse avx2\n\nflags : sse\n") == {"sse"}


def test_a_text_without_processors_has_none():
    assert parse_cpuinfo("") == frozenset()


def test_a_system_without_cpuinfo_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_features, "_CPUINFO", tmp_path / "cpuinfo")
    assert available_features.__wrapped__() == frozenset()
