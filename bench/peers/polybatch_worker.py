"""polybatch itself, through its public interface."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import polybatch
from bench.peers.protocol import Cell, Config, Load, Peer, UnsupportedError, serve
from polybatch import AutoModelForCausalLM, Engine, Program, SamplingParams

PREFILL = {"steps": 512, "generate": 128}  # by task; the peers too take a prompt of 512 tokens at once
STEP_BATCHES = [1, 2, 8, 32, 128]
DRAFTED = [0, 7]


class PolybatchPeer(Peer):
    """Decode cells through ``session.run``, end to end through ``Engine``."""

    def __init__(self, config: Config) -> None:
        self._config = config
        program = _program(config)
        batches = sorted({row.batch_size for row in program.specializations})
        self.about = {
            "version": f"polybatch {polybatch.__version__}, torch {torch.__version__}",
            "settings": f"isa {program.manifest.isa}; batch sizes {batches}",
        }
        self._vocab = program.vocab_size
        self._filled: set[int] = set()
        if config.task == "generate":
            self._engine = Engine(program, threads=config.threads, prefix_cache=False)  # every prompt is run
        else:
            self._session = program.session(config.threads)

    def prepare(self, cell: Cell) -> None:
        slots = np.random.default_rng(1).permutation(self._config.slots)[: cell.batch]
        for slot in sorted(set(slots.tolist()) - self._filled):
            self._fill(slot, self._config.position)
            self._filled.add(slot)
        tokens = cell.drafted + 1
        positions = np.arange(self._config.position, self._config.position + tokens, dtype=np.int64)
        self._inputs = {
            "input_ids": np.random.default_rng(2).integers(5, 30000, (cell.batch, tokens)),
            "position_ids": np.tile(positions, (cell.batch, 1)),
            "batch_index": slots.astype(np.int64)[:, None],
        }
        self._logits = (cell.batch, tokens, self._vocab)

    def step(self) -> None:
        logits = self._session.run(self._inputs)["logits"]
        assert logits.shape == self._logits

    def prefill(self, tokens: int) -> None:
        self._fill(0, tokens)
        self._filled.add(0)

    def generate(self, load: Load) -> list[list[int]]:
        params = SamplingParams(max_tokens=load.new_tokens, ignore_eos=True)
        done = self._engine.generate(load.prompts(self._vocab), params)
        return [list(completion.token_ids) for completion in done]

    def _fill(self, slot: int, tokens: int) -> None:
        ids = np.random.default_rng(slot).integers(5, 30000, (1, tokens))
        size = PREFILL[self._config.task]
        for start in range(0, tokens, size):
            positions = np.arange(start, start + size, dtype=np.int64)
            positions[positions >= tokens] = -1
            chunk = np.zeros((1, size), np.int64)
            chunk[:, : tokens - start] = ids[:, start : start + size]
            where = np.array([[slot]], np.int64)
            self._session.run({"input_ids": chunk, "position_ids": positions[None], "batch_index": where})


def _program(config: Config) -> Program:
    """The compiled program, made again whenever the package's sources or the request differ."""
    arguments = _compile_arguments(config)
    key = hashlib.sha256(repr((replace(config, threads=0), arguments)).encode())
    for source in sorted(Path(polybatch.__file__).parent.rglob("*")):
        if source.suffix in (".py", ".cpp", ".h"):
            key.update(source.read_bytes())
    folder = Path(config.cache) / f"{Path(config.model).name}-{key.hexdigest()[:16]}.poly"
    if not folder.is_dir():
        dtype = "float32" if config.precision == "fp32" else "bfloat16"
        model = AutoModelForCausalLM.from_pretrained(config.model, dtype=dtype)
        try:
            model.compile(folder, **arguments)
        except TypeError as error:
            if "weights" in arguments and "weights" in str(error):
                raise UnsupportedError("this version compiles no int8 weights") from error
            raise
    return Program.load(folder)


def _compile_arguments(config: Config) -> dict[str, Any]:
    arguments: dict[str, Any] = {"continuous_batching": True, "full_batch_size": config.slots}
    arguments |= {"ctx_len": config.ctx_len, "prefill_seq_len": PREFILL[config.task]}
    if config.precision == "int8":
        arguments["weights"] = "int8"
    if config.task == "steps":
        batches = [size for size in STEP_BATCHES if size <= config.slots]
        return arguments | {"batch_size": batches, "num_speculative_tokens": DRAFTED}
    return arguments | {"batch_size": [2**i for i in range(config.slots.bit_length()) if 2**i <= config.slots]}


if __name__ == "__main__":
    serve(PolybatchPeer)
