"""Converts a Hugging Face directory to OpenVINO's format, once per precision."""

from __future__ import annotations

from pathlib import Path

from bench.peers.protocol import Config


def exported(config: Config) -> Path:
    """The folder with openvino_model.xml, and the tokenizer where the model has one.

    Float weights keep the checkpoint's precision: 16 bits for these models, also where the runtime computes in fp32.
    For int8 they are int8 per channel, symmetric.
    """
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    folder = Path(config.cache) / f"openvino-{Path(config.model).name}-{config.precision}"
    if (folder / "openvino_model.xml").is_file():
        return folder
    quantization = OVWeightQuantizationConfig(bits=8, sym=True) if config.precision == "int8" else None
    model = OVModelForCausalLM.from_pretrained(
        config.model, export=True, compile=False, load_in_8bit=False, quantization_config=quantization
    )
    model.save_pretrained(folder)
    _export_tokenizer(Path(config.model), folder)
    return folder


def _export_tokenizer(model: Path, folder: Path) -> None:
    if not (model / "tokenizer.json").is_file():
        return
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.save_pretrained(folder)
    for name, converted in zip(
        ("tokenizer", "detokenizer"), convert_tokenizer(tokenizer, with_detokenizer=True), strict=True
    ):
        openvino.save_model(converted, folder / f"openvino_{name}.xml")
