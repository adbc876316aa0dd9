"""OpenVINO GenAI's continuous batching pipeline; end to end only, as it has no call for one step's logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.peers.memory import position_bytes
from bench.peers.openvino_export import exported
from bench.peers.protocol import Config, Load, Peer, UnsupportedError, serve

HINTS = {"bf16": "bf16", "int8": "bf16", "fp32": "f32"}


class GenAiPeer(Peer):
    """A pipeline of as many sequences as there are slots; prompts are token ids."""

    def __init__(self, config: Config) -> None:
        folder = exported(config)
        if not (folder / "openvino_tokenizer.xml").is_file():
            raise UnsupportedError("cannot run a model without a tokenizer")
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = config.slots
        scheduler.max_num_batched_tokens = 2048
        scheduler.enable_prefix_caching = False
        scheduler.dynamic_split_fuse = True
        cache_bytes = config.slots * config.ctx_len * position_bytes(Path(config.model), config.precision)
        scheduler.cache_size = (cache_bytes >> 30) + 1  # GiB
        hint = HINTS[config.precision]
        properties = {
            "INFERENCE_PRECISION_HINT": hint,
            "KV_CACHE_PRECISION": hint,
            "INFERENCE_NUM_THREADS": config.threads,
        }
        self._pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)
        self._vocab = 30000
        self.about = {"version": f"openvino-genai {genai.__version__}", "settings": str(properties)}

    def generate(self, load: Load) -> list[list[int]]:
        generation = genai.GenerationConfig()
        generation.max_new_tokens = generation.min_new_tokens = load.new_tokens
        generation.ignore_eos = True
        generation.do_sample = False
        generation.apply_chat_template = False
        prompts = [ov.Tensor(np.array([ids], np.int64)) for ids in load.prompts(self._vocab)]
        done = self._pipeline.generate(prompts, [generation] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in done]


if __name__ == "__main__":
    serve(GenAiPeer)
