"""Tiny random models of many architectures, for tests: every one is a Hugging Face config and a seed."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 256
_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
}
_GQA = {**_BASE, "num_key_value_heads": 2}
_HEAD = {**_GQA, "head_dim": 16}
_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB, "n_positions": 256}
_FALCON = {**_BASE, "ffn_hidden_size": 128}
_WINDOW = {"sliding_window": 16}


@dataclass(frozen=True)
class Architecture:
    """One architecture at a size of a few thousand weights."""

    config: str
    options: dict[str, Any] = field(default_factory=dict)


SUPPORTED: dict[str, Architecture] = {
    "llama": Architecture("LlamaConfig", _HEAD),
    "mistral": Architecture("MistralConfig", {**_HEAD, **_WINDOW}),
    "qwen2": Architecture("Qwen2Config", _GQA),
    "qwen3": Architecture("Qwen3Config", _HEAD),
    "gemma": Architecture("GemmaConfig", _HEAD),
    "gemma2": Architecture("Gemma2Config", {**_HEAD, **_WINDOW}),
    "gemma3": Architecture(
        "Gemma3TextConfig", {**_HEAD, **_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
    ),
    "phi": Architecture("PhiConfig", _BASE),
    "phi3": Architecture("Phi3Config", {**_GQA, "pad_token_id": 0, "original_max_position_embeddings": 256}),
    "gpt2": Architecture("GPT2Config", _GPT),
    "gpt_neox": Architecture("GPTNeoXConfig", _BASE),
    "gptj": Architecture("GPTJConfig", {**_GPT, "rotary_dim": 8}),
    "opt": Architecture(
        "OPTConfig",
        {
            "hidden_size": 64,
            "word_embed_proj_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 128,
            "vocab_size": VOCAB,
            "max_position_embeddings": 256,
        },
    ),
    "starcoder2": Architecture("Starcoder2Config", _GQA),
    "olmo2": Architecture("Olmo2Config", _GQA),
    "granite": Architecture("GraniteConfig", _GQA),
    "smollm3": Architecture("SmolLM3Config", {**_GQA, "pad_token_id": 0}),
    "cohere": Architecture("CohereConfig", _GQA),
    "mixtral": Architecture("MixtralConfig", {**_GQA, "num_local_experts": 4}),
    "qwen3_moe": Architecture(
        "Qwen3MoeConfig", {**_HEAD, "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    ),
    "gpt_oss": Architecture("GptOssConfig", {**_HEAD, **_WINDOW, "num_local_experts": 4}),
    "glm4": Architecture("Glm4Config", {**_HEAD, "pad_token_id": 0}),
    "exaone4": Architecture(
        "Exaone4Config", {**_GQA, **_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
    ),
    "helium": Architecture("HeliumConfig", _HEAD),
    "arcee": Architecture("ArceeConfig", _HEAD),
    "apertus": Architecture("ApertusConfig", {**_GQA, "pad_token_id": 0}),
    "olmo": Architecture("OlmoConfig", _GQA),
    "nemotron": Architecture("NemotronConfig", _GQA),
    "cohere2": Architecture("Cohere2Config", {**_GQA, **_WINDOW}),
    "olmo3": Architecture("Olmo3Config", {**_GQA, **_WINDOW}),
    "deepseek_v3": Architecture(
        "DeepseekV3Config",
        {
            **_BASE,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
        },
    ),
    "stablelm": Architecture("StableLmConfig", _GQA),
    "gpt_bigcode": Architecture("GPTBigCodeConfig", _GPT),
    "codegen": Architecture("CodeGenConfig", {**_GPT, "rotary_dim": 8}),
    "falcon": Architecture("FalconConfig", _FALCON),
    "falcon_grouped": Architecture("FalconConfig", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
}

UNSUPPORTED: dict[str, Architecture] = {
    "bloom": Architecture("BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB}),
    "falcon_alibi": Architecture("FalconConfig", {**_FALCON, "alibi": True}),
    "mamba": Architecture("MambaConfig", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": VOCAB}),
    "mpt": Architecture("MptConfig", {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": VOCAB}),
}


def make_model(architecture: Architecture, **changes: Any) -> Any:
    """A float32 model with random weights large enough that every part of it shows in the logits."""
    config = getattr(transformers, architecture.config)(**{**copy.deepcopy(architecture.options), **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        scale = 0.08 if parameter.dim() > 1 else 0.3
        offset = 0.0 if parameter.dim() > 1 else 1.0
        parameter.data = offset + scale * torch.randn_like(parameter)
    return model


def save_model(architecture: Architecture, folder: Path, **changes: Any) -> Path:
    """The model's directory, without a tokenizer."""
    make_model(architecture, **changes).save_pretrained(folder)
    return folder
