"""Writes the GGUF file that llama.cpp reads from a Hugging Face llama directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QUANTIZED = {"bf16": "BF16", "fp32": "F32", "int8": "Q8_0"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(model: Path, path: Path, precision: str) -> Path:
    """Write ``path`` once, with matrices in ``precision`` (int8 is Q8_0), norms in fp32 and no vocabulary."""
    if path.is_file():
        return path
    import gguf
    from safetensors import safe_open

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        raise ValueError(f"{model} is a {config['model_type']} model; only llama directories can be written as GGUF")
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    _write_header(writer, config)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    kind = gguf.GGMLQuantizationType[QUANTIZED[precision]]
    with safe_open(str(model / "model.safetensors"), "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  # safe_open is no dict
            if name == "lm_head.weight" and config["tie_word_embeddings"]:
                continue
            values = tensors.get_tensor(name).float().numpy()
            if "q_proj" in name or "k_proj" in name:
                values = _interleave_rotary(values, heads if "q_proj" in name else kv_heads)
            if values.ndim == 1:
                writer.add_tensor(_gguf_name(name), values)
            else:
                writer.add_tensor(_gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.rename(path)


def _write_header(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in OUTER_NAMES:
        return f"{OUTER_NAMES[stem]}.weight"
    layer, _, rest = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER_NAMES[rest]}.weight"


def _interleave_rotary(weight: Any, heads: int) -> Any:
    """Rows of each head from halves (Hugging Face) to pairs, as GGUF's llama architecture rotates them."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
