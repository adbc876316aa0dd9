"""``python -m bench.qaic``: what exporting for target qaic costs, in time over the table and in memory over the model.

Compiles a small model for a table of one decode row and one of 40, in turn, and a model of random weights whose
anonymous memory it samples meanwhile. The device compiler has no part in it where there is no SDK. Prints lines.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from polybatch import AutoModelForCausalLM
from polybatch.models.loading import LoadedModel

_HIDDEN, _INTERMEDIATE = 2048, 8192
_LAYER_WEIGHTS = 4 * _HIDDEN * _HIDDEN + 3 * _HIDDEN * _INTERMEDIATE
_SAMPLE_SECONDS = 0.01
_FORTY: dict[str, Any] = {
    "batch_size": [1, 2, 4, 8, 16, 32, 64, 128],
    "num_speculative_tokens": [0, 3, 7, 15, 31],
}
_ONE: dict[str, Any] = {"batch_size": 128, "num_speculative_tokens": 31}
_SHAPES: dict[str, Any] = {"continuous_batching": True, "full_batch_size": 128, "ctx_len": 256, "prefill_seq_len": 64}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.qaic", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="compiles of each table")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the model whose memory is measured; 0: none")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    _report_times(options.repeats)
    if options.gib:
        _report_memory(options.gib, options.dtype)


def _report_times(repeats: int) -> None:
    model = _random_model(layers=2, dtype="float32", hidden=64)
    seconds: dict[int, list[float]] = {1: [], 40: []}
    _compile(model, _ONE)  # the first export of a process also pays for imports
    for repeat in range(repeats):
        for rows in sorted(seconds, reverse=bool(repeat % 2)):
            started = time.perf_counter()
            _compile(model, _ONE if rows == 1 else _FORTY)
            seconds[rows].append(time.perf_counter() - started)
    one, forty = median(seconds[1]), median(seconds[40])
    print(f"compile, 1 decode row {one:.2f} s, 40 rows {forty:.2f} s: {forty / one:.3f} x (medians of {repeats})")


def _report_memory(gib: float, dtype: str) -> None:
    element = 2 if dtype == "bfloat16" else 4
    model = _random_model(layers=max(1, round(gib * 2**30 / element / _LAYER_WEIGHTS)), dtype=dtype)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    before = _anonymous_bytes()
    with _peak() as peaks:
        _compile(model, {"batch_size": [1, 2]}, full_batch_size=2)
    print(
        f"model {size / 2**30:.2f} GiB in {dtype}: anonymous memory {before / 2**30:.2f} GiB before, "
        f"peak {max(peaks) / 2**30:.2f} GiB"
    )


def _random_model(layers: int, dtype: str, hidden: int = _HIDDEN) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 16,
        vocab_size=1024,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    torch.manual_seed(0)
    model = model.to(getattr(torch, dtype)).to_empty(device="cpu").eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(0, 0.02)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its tables are no parameters
    return model


def _compile(model: LlamaForCausalLM, table: dict[str, Any], **changes: Any) -> None:
    loaded = AutoModelForCausalLM(LoadedModel(model, None, GenerationConfig(), "random"))
    with tempfile.TemporaryDirectory(prefix="polybatch-bench-") as folder:
        loaded.compile(Path(folder) / "program.poly", target="qaic", **{**_SHAPES, **table, **changes})


@contextmanager
def _peak() -> Iterator[Sequence[int]]:
    """Samples of this process's anonymous memory in bytes."""
    samples, ended = [_anonymous_bytes()], threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            samples.append(_anonymous_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))) * 1024


if __name__ == "__main__":
    main()
