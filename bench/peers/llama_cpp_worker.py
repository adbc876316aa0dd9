"""llama.cpp through the C interface of the llama-cpp-python package: one llama_decode per step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as c

from bench.peers.protocol import Cell, Config, Load, Peer, serve

KV_TYPES = {"bf16": llama_cpp.GGML_TYPE_F16, "int8": llama_cpp.GGML_TYPE_F16, "fp32": llama_cpp.GGML_TYPE_F32}
BATCH_TOKENS = 2048


class LlamaCppPeer(Peer):
    """A context with one KV stream per sequence; the default 16-bit KV type unless fp32 is asked for."""

    def __init__(self, config: Config) -> None:
        self._config = config
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(config.gguf.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {config.gguf}")
        self._context = llama_cpp.llama_init_from_model(self._model, _context_params(config))
        if not self._context:
            raise RuntimeError("llama.cpp cannot make the context (see the log)")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(max(BATCH_TOKENS, 1024), 0, 1)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        info = llama_cpp.llama_print_system_info().decode().replace(" | ", " ")
        self.about = {"version": f"llama-cpp-python {llama_cpp.__version__}", "settings": f"KV f16 or f32; {info}"}
        self._filled: set[int] = set()

    def prepare(self, cell: Cell) -> None:
        position = self._config.position
        for sequence in range(cell.batch):
            if sequence in self._filled:
                continue
            if not self._filled:
                self._feed(sequence, position)
            else:  # without a unified cache this copies the rows
                llama_cpp.llama_memory_seq_cp(self._memory, min(self._filled), sequence, -1, -1)
            self._filled.add(sequence)
        tokens = np.random.default_rng(2).integers(5, 30000, (cell.batch, cell.drafted + 1))
        self._fill_batch([(row, position, ids, True) for row, ids in enumerate(tokens.tolist())])
        self._rows = cell.batch

    def step(self) -> None:
        self._decode()
        assert llama_cpp.llama_get_logits_ith(self._context, self._batch.n_tokens - 1)

    def rewind(self) -> None:
        for sequence in range(self._rows):
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, self._config.position, -1)

    def prefill(self, tokens: int) -> None:
        self._feed(0, tokens)
        assert llama_cpp.llama_get_logits_ith(self._context, -1)

    def end_prefill(self) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, 0, -1, -1)
        self._filled.discard(0)

    def generate(self, load: Load) -> list[list[int]]:
        """Waves of as many requests as there are slots; all lengths are equal, so no slot ever waits for another."""
        prompts, done = load.prompts(self._vocab), []
        for start in range(0, load.requests, self._config.slots):
            done += self._generate_wave(prompts[start : start + self._config.slots], load.new_tokens)
        return done

    def _generate_wave(self, prompts: Sequence[list[int]], new_tokens: int) -> list[list[int]]:
        last, fit = [], BATCH_TOKENS // len(prompts[0])
        for first in range(0, len(prompts), fit):
            group = prompts[first : first + fit]
            self._fill_batch([(first + i, 0, ids, False) for i, ids in enumerate(group)])
            self._decode()
            last += self._greedy(len(group))
        made_tokens = [last]
        for made in range(1, new_tokens):
            self._fill_batch([(row, len(prompts[0]) + made - 1, [token], True) for row, token in enumerate(last)])
            self._decode()
            last = self._greedy(len(prompts))
            made_tokens.append(last)
        llama_cpp.llama_memory_clear(self._memory, False)
        return [list(answer) for answer in zip(*made_tokens, strict=True)]

    def _greedy(self, rows: int) -> list[int]:
        """The most probable token of each output row of the last decode."""
        address = llama_cpp.llama_get_logits(self._context)
        logits = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (rows, self._vocab))
        chosen: list[int] = logits.argmax(axis=1).tolist()
        return chosen

    def _feed(self, sequence: int, tokens: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        ids = np.random.default_rng(sequence).integers(5, 30000, tokens).tolist()
        self._fill_batch([(sequence, 0, ids, False)])
        self._decode()

    def _fill_batch(self, rows: Sequence[tuple[int, int, list[int], bool]]) -> None:
        """Rows of (sequence, first position, token ids, logits of all tokens or only of the last)."""
        batch: Any = self._batch
        at = 0
        for sequence, start, ids, every in rows:
            for offset, token in enumerate(ids):
                batch.token[at], batch.pos[at] = token, start + offset
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
                batch.logits[at] = every or offset == len(ids) - 1
                at += 1
        batch.n_tokens = at

    def _decode(self) -> None:
        code = c.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")


def _context_params(config: Config) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = config.slots * config.ctx_len
    params.n_seq_max = config.slots
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = config.threads
    params.type_k = params.type_v = KV_TYPES[config.precision]
    params.kv_unified = False
    return params


if __name__ == "__main__":
    serve(LlamaCppPeer)
