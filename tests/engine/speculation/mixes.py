"""Any mix of requests, in any speculation, must give the answers of one token at a time."""

from __future__ import annotations

from engine_harness import Harness
from engine_mock import mock_program
from hypothesis import strategies as st
from request_mixes import CTX_LEN, EOS, REQUEST, run_mix

REQUESTS = st.lists(REQUEST, min_size=1, max_size=6)


def check_any_mix(
    requests, batches, speculation, *, lengths=(0, 3, 7), fixed_k=None, spare_slots=0, continuous=True, eos=EOS
) -> Harness:
    program = mock_program(
        batches if continuous else batches[-1],
        full_batch_size=batches[-1] + spare_slots,
        ctx_len=CTX_LEN,
        prefill_seq_len=9,
        continuous_batching=continuous,
        eos_token_ids=eos,
        table_options={"num_speculative_tokens": list(lengths)},
    )
    harness = Harness(program, speculation, fixed_k)
    run_mix(harness, requests, eos)
    generated = sum(len(events[-1].token_ids) for events in harness.events)
    assert harness.stats.snapshot().generated_tokens == generated
    return harness
