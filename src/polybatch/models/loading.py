"""Reads a Hugging Face causal LM: a directory, a hub id, or a GGUF file inside a directory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers import logging as hf_logging
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from polybatch.errors import ModelLoadError, UnsupportedModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LoadedModel:
    """A causal LM in evaluation mode with what travels with it into a program."""

    model: PreTrainedModel
    tokenizer: Any | None
    generation_config: GenerationConfig
    source: str

    @property
    def dtype_name(self) -> str:
        """ "float32" or "bfloat16"."""
        return str(self.model.dtype).removeprefix("torch.")


def load_model(path: str | Path, dtype: str | torch.dtype | None = None, gguf_file: str | None = None) -> LoadedModel:
    """Load model, tokenizer and generation config.

    ``dtype`` is float32 or bfloat16; None keeps a bfloat16 checkpoint as it is and makes anything else float32.
    A directory without tokenizer files gives ``tokenizer=None``. Raises :class:`ModelLoadError`,
    :class:`UnsupportedModelError`, and ValueError for another dtype.
    """
    wanted = _check_dtype(dtype)
    source = str(path)
    _check_path(path, gguf_file)
    with quiet_transformers():
        config = _load_config(source, gguf_file)
        _check_causal(config)
        resolved = wanted or (torch.bfloat16 if config.dtype == torch.bfloat16 and not gguf_file else torch.float32)
        model = _load_weights(source, config, resolved, gguf_file)
        tokenizer = _load_tokenizer(source, gguf_file)
    generation = model.generation_config or GenerationConfig.from_model_config(config)
    if generation.eos_token_id is None and tokenizer is not None:
        generation.eos_token_id = tokenizer.eos_token_id
    return LoadedModel(model.eval().requires_grad_(False), tokenizer, generation, Path(source).name)


def _check_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not supported; pass one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _check_path(path: str | Path, gguf_file: str | None) -> None:
    folder = Path(path)
    looks_local = folder.is_absolute() or str(path).startswith(".") or folder.exists() or str(path).count("/") > 1
    if looks_local and not folder.is_dir():
        raise ModelLoadError(f"{path} is not a directory; pass a Hugging Face model directory or a hub id")
    if gguf_file is not None and looks_local and not (folder / gguf_file).is_file():
        raise ModelLoadError(f"{folder / gguf_file} does not exist; pass the name of a GGUF file inside {path}")
    if gguf_file is None and looks_local and not (folder / "config.json").is_file():
        found = sorted(entry.name for entry in folder.glob("*.gguf"))
        hint = f"; it holds {found[0]}: pass gguf_file={found[0]!r}" if found else ""
        raise ModelLoadError(f"{path} has no config.json, so it is no Hugging Face model directory{hint}")


def _load_config(source: str, gguf_file: str | None) -> Any:
    try:
        return AutoConfig.from_pretrained(source, gguf_file=gguf_file)
    except ImportError as error:
        raise ModelLoadError("reading a GGUF file needs more packages; pip install 'polybatch[gguf]'") from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelLoadError(f"cannot read the model config of {source}: {_first_line(error)}") from error


def _check_causal(config: Any) -> None:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or config.is_encoder_decoder:
        kind = (config.architectures or [type(config).__name__])[0]
        raise UnsupportedModelError(
            f"{kind} is not supported: it is no decoder-only causal LM that transformers' AutoModelForCausalLM loads"
        )


def _load_weights(source: str, config: Any, dtype: torch.dtype, gguf_file: str | None) -> PreTrainedModel:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, gguf_file=gguf_file, output_loading_info=True
        )
    except ImportError as error:
        raise ModelLoadError(f"reading {source} needs more packages: {_first_line(error)}") from error
    except Exception as error:  # loaders of several formats raise their own kinds
        raise ModelLoadError(f"cannot read the weights of {source}: {_first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelLoadError(
            f"{source} lacks {len(missing)} weights of {type(model).__name__}, {missing[0]} among them; "
            "the checkpoint is incomplete or of another architecture"
        )
    return model


def _load_tokenizer(source: str, gguf_file: str | None) -> Any | None:
    if gguf_file is None and Path(source).is_dir():
        folder = Path(source)
        names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
        if not any((folder / name).is_file() for name in names):
            return None
    try:
        return AutoTokenizer.from_pretrained(source, gguf_file=gguf_file)
    except Exception as error:  # tokenizer files of many formats raise their own kinds
        raise ModelLoadError(f"cannot read the tokenizer of {source}: {_first_line(error)}") from error


def model_from_state(folder: Path, state: dict[str, torch.Tensor]) -> PreTrainedModel:
    """A causal LM from the config.json in ``folder`` and its weights by name."""
    config = AutoConfig.from_pretrained(folder)
    with quiet_transformers():
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained(
            None, config=config, state_dict=state, dtype=config.dtype
        )
    return model.eval().requires_grad_(False)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' load reports: what matters in them is raised as an error."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
