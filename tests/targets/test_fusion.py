"""Rotary embeddings inside the attention kernel: found where they are, and the same numbers."""

from __future__ import annotations

import pytest
import torch
from architectures import SUPPORTED, make_model

from polybatch.kv_layout import KVLayout, PlainPacking
from polybatch.models.export import export_step
from polybatch.models.guard import check_supported
from polybatch.targets.cpu.fusion import fuse_rotary

ROTATED = ("llama", "mistral", "qwen3", "gemma3", "granite", "smollm3")
NOT_ROTATED_ALIKE = ("gpt2", "gptj", "cohere", "phi")  # learned, interleaved, interleaved, partial


@pytest.mark.parametrize("name", ROTATED + NOT_ROTATED_ALIKE)
def test_the_fused_graph_gives_the_same_logits(name: str) -> None:
    model = make_model(SUPPORTED[name])
    layout = KVLayout.build(check_supported(model), 32, PlainPacking())
    with torch.no_grad():
        graph, _ = export_step(model, layout)
        tokens = torch.randint(1, 200, (3, 9), generator=torch.Generator().manual_seed(0))
        columns = torch.arange(9).repeat(3, 1)
        slots = torch.tensor([[5], [1], [6]])

        def logits() -> torch.Tensor:
            return graph(tokens, columns, slots, columns, torch.zeros(8, layout.slot_elements))

        before = logits()
        fused = fuse_rotary(graph)
        graph.recompile()
        assert fused == (len(layout.layers) if name in ROTATED else 0)
        torch.testing.assert_close(logits(), before, atol=1e-5, rtol=0)
