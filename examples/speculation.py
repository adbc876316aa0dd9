"""Draft tokens from the text so far and verify several per step: the same answer in fewer steps.

python examples/speculation.py MODEL PROGRAM [TARGET]
"""

import sys

from polybatch import AutoModelForCausalLM, Engine, PromptLookup, SamplingParams

model, path, target = [*sys.argv[1:], "cpu"][:3]
prompt = "red, green, blue, red, green, blue, red, green, blue, red,"
params = SamplingParams(max_tokens=48)

# Decode rows of 1, 4 and 8 tokens: each step runs with the K that promises most tokens per millisecond.
program = AutoModelForCausalLM.from_pretrained(model).compile(
    path,
    batch_size=[1, 2],
    continuous_batching=True,
    full_batch_size=2,
    num_speculative_tokens=[0, 3, 7],
    ctx_len=256,
    prefill_seq_len=32,
    target=target,
)
with Engine(program) as engine:
    plain = engine.generate(prompt, params)[0]
with Engine(program, PromptLookup(max_ngram=3)) as engine:  # or DraftModel(Program.load(...)), or fixed_k=7
    drafted = engine.generate(prompt, params)[0]

counts = drafted.speculation
print(f"{drafted.text!r}")
print("the same tokens:", drafted.token_ids == plain.token_ids)
print(f"drafted {counts.drafted}, accepted {counts.accepted}; steps by (batch, K): {counts.steps}")
