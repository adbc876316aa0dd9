"""Refuses architectures whose logits would be wrong, by watching one tiny forward pass go through the interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from polybatch.errors import UnsupportedModelError
from polybatch.kv_layout import LayerKV
from polybatch.models import attention, experts

_PROBE = "polybatch_probe"
_PROBE_TOKENS = 3

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")

# What the operator takes, and what changes nothing in a forward pass without a cache object.
_HANDLED = frozenset({"scaling", "sliding_window", "softcap", "s_aux"})
_HARMLESS = frozenset(
    {"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states", "return_dict"}
    | {"output_router_logits", "logits_to_keep", "past_key_values"}
)


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    masked: bool
    arguments: dict[str, Any]


@contextmanager
def routed(model: PreTrainedModel, implementation: str = attention.IMPLEMENTATION) -> Iterator[None]:
    """Route the model's attention (and its experts, if any) through polybatch's functions for a while."""
    before = (model.config._attn_implementation, model.config._experts_implementation)
    try:
        model.set_attn_implementation(implementation)
        model.set_experts_implementation(experts.IMPLEMENTATION)
        yield
    finally:
        model.set_attn_implementation(before[0])
        model.set_experts_implementation(before[1])


def check_supported(model: PreTrainedModel) -> tuple[LayerKV, ...]:
    """The KV shape of each layer of a causal LM, in layer order.

    Raises :class:`UnsupportedModelError` when the model is no decoder-only causal LM, when a layer bypasses
    transformers' ``AttentionInterface``, or when it passes attention an argument that the operator would ignore.
    """
    _check_kind(model)
    calls = _probe(model)
    layers = int(model.config.get_text_config().num_hidden_layers)
    by_layer: dict[int, _Call] = {}
    for call in calls:
        layer = getattr(call.module, "layer_idx", None)
        if not isinstance(layer, int) or layer in by_layer:
            raise _unsupported(model, "its attention modules carry no unique layer_idx")
        _check_arguments(model, call, layer)
        by_layer[layer] = call
    if sorted(by_layer) != list(range(layers)):
        raise _unsupported(
            model,
            f"{len(by_layer)} of {layers} layers reach attention through transformers' AttentionInterface; "
            "the others bypass it or hold no KV cache",
        )
    return tuple(
        LayerKV(by_layer[i].key_shape[1], by_layer[i].key_shape[3], by_layer[i].value_shape[3]) for i in range(layers)
    )


@dataclass(frozen=True)
class PositionLimit:
    """How many positions a model's embeddings serve, and why no more."""

    positions: int
    reason: str


def position_limit(model: PreTrainedModel) -> PositionLimit | None:
    """The context up to which a position's embedding depends on that position alone; None without such a limit.

    A learned table ends. ``dynamic`` and ``longrope`` scaling change every position's angles once the longest sequence
    of a step passes the original length: rows would depend on their neighbours, and the cache on the past.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None)
    trained = getattr(config, "max_position_embeddings", None)
    if not rope:
        return None if trained is None else PositionLimit(trained, f"has learned positions up to {trained}")
    for parameters in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        kind = parameters.get("rope_type")
        if kind in _LENGTH_DEPENDENT_ROPE:
            original = int(parameters.get("original_max_position_embeddings") or trained or 0)
            return PositionLimit(original, f"uses {kind} rope scaling, whose angles change past {original} positions")
    return None


def _unsupported(model: PreTrainedModel, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{type(model).__name__} is not supported: {what}")


def _check_kind(model: PreTrainedModel) -> None:
    if model.config.is_encoder_decoder:
        raise _unsupported(model, "it is an encoder-decoder model; a decoder-only causal LM is needed")
    if model.get_output_embeddings() is None:
        raise _unsupported(model, "it has no output embeddings (lm_head), so it is no causal LM")
    if not model._can_set_attn_implementation():
        raise _unsupported(model, "its attention does not go through transformers' AttentionInterface")


def _probe(model: PreTrainedModel) -> list[_Call]:
    calls: list[_Call] = []

    def record(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
    ) -> tuple[Tensor, None]:
        calls.append(_Call(module, tuple(key.shape), tuple(value.shape), attention_mask is not None, arguments))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None

    AttentionInterface.register(_PROBE, record)
    ids = torch.ones(1, _PROBE_TOKENS, dtype=torch.long)
    try:
        with torch.no_grad(), routed(model, _PROBE):
            model(input_ids=ids, position_ids=torch.arange(_PROBE_TOKENS)[None], use_cache=False)
    except Exception as error:
        raise _unsupported(model, f"a forward pass through the AttentionInterface fails ({error})") from error
    finally:
        AttentionInterface._global_mapping.pop(_PROBE, None)
    return calls


def _check_arguments(model: PreTrainedModel, call: _Call, layer: int) -> None:
    if call.masked:
        raise _unsupported(model, f"layer {layer} builds an attention mask of its own")
    if call.arguments.get("dropout"):
        raise _unsupported(model, f"layer {layer} asks for attention dropout at inference")
    if call.arguments.get("is_causal") is False:
        raise _unsupported(model, f"layer {layer} attends to later positions (is_causal=False)")
    known = _HANDLED | _HARMLESS | {"dropout", "is_causal"}
    extra = sorted(name for name, value in call.arguments.items() if name not in known and value is not None)
    if extra:
        raise _unsupported(model, f"layer {layer} passes attention {', '.join(extra)}, which the kernels ignore")
    _check_window(model, call, layer)


def _check_window(model: PreTrainedModel, call: _Call, layer: int) -> None:
    """A window that only the mask carries would be lost: the config must agree with what attention is passed."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    kind = kinds[layer] if kinds else None
    if kind not in (None, "full_attention", "sliding_attention"):
        raise _unsupported(model, f"layer {layer} uses {kind}")
    window = getattr(config, "sliding_window", None)
    if kinds is None and getattr(config, "use_sliding_window", True) is False:
        window = None
    expected = window if kind in (None, "sliding_attention") else None
    passed = call.arguments.get("sliding_window")
    if expected and passed != expected:
        raise _unsupported(
            model, f"layer {layer} has a sliding window of {expected} in its config but passes attention {passed}"
        )
