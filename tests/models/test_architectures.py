"""Every supported architecture, on every target, against transformers' own eager attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import SUPPORTED, UNSUPPORTED, VOCAB, make_model, save_model
from steps import decode, prefill

from polybatch import AutoModelForCausalLM, UnsupportedModelError

CHUNK = 8
LENGTHS = (21, 9, 5)  # ragged; the first and second pass the sliding window of 16 while decoding
DECODED = 10
ATOL = 1e-4


@pytest.mark.parametrize("target", ["eager", "cpu"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_chunked_prefill_and_ragged_decode_equal_the_model(name: str, target: str, tmp_path: Path) -> None:
    folder = save_model(SUPPORTED[name], tmp_path / "model")
    program = AutoModelForCausalLM.from_pretrained(folder).compile(
        tmp_path / "out.poly",
        batch_size=[1, 2, 4],
        continuous_batching=True,
        full_batch_size=4,
        ctx_len=64,
        prefill_seq_len=CHUNK,
        target=target,
    )
    rng = np.random.default_rng(1)
    sequences = {slot: rng.integers(0, VOCAB, n + DECODED).tolist() for slot, n in zip((3, 0, 2), LENGTHS, strict=True)}
    reference = {slot: _reference(name, tokens) for slot, tokens in sequences.items()}
    with program.session() as session:
        at = dict(zip(sequences, LENGTHS, strict=True))
        for slot, tokens in sequences.items():
            logits = prefill(session, program.table, tokens[: at[slot]], slot)
            np.testing.assert_allclose(logits, reference[slot][at[slot] - 1], atol=ATOL, rtol=0)
        for step in range(DECODED):
            live = {slot: (tokens[at[slot] + step], at[slot] + step) for slot, tokens in sequences.items()}
            for slot, logits in decode(session, program.table, live).items():
                np.testing.assert_allclose(logits, reference[slot][at[slot] + step], atol=ATOL, rtol=0)
    if target == "cpu":
        assert program.manifest.batch_invariant


def _reference(name: str, tokens: list[int]) -> np.ndarray:
    model = make_model(SUPPORTED[name])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_architecture_that_bypasses_the_interface_is_refused(name: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_model(UNSUPPORTED[name], tmp_path / "model"))
    with pytest.raises(UnsupportedModelError, match="AttentionInterface"):
        model.compile(tmp_path / "out.poly", target="eager", ctx_len=32, prefill_seq_len=8)
    assert not (tmp_path / "out.poly").exists()
