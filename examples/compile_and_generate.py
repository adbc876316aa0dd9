"""Compile a model for three batch sizes, then answer several prompts at once.

    python examples/compile_and_generate.py MODEL PROGRAM [TARGET]

MODEL is a Hugging Face model directory or hub id; PROGRAM is the directory to write.
"""

import sys

from polybatch import AutoModelForCausalLM, Engine, SamplingParams

model_path, program_path, target = [*sys.argv[1:], "cpu"][:3]

model = AutoModelForCausalLM.from_pretrained(model_path)
program = model.compile(
    program_path, batch_size=[1, 2, 4], continuous_batching=True, full_batch_size=4, ctx_len=512, target=target
)

prompts = ["The capital of France is", "Once upon a time", "A cat is", "Water boils at", "The moon"]
with Engine(program) as engine:
    for prompt, output in zip(prompts, engine.generate(prompts, SamplingParams(max_tokens=24)), strict=True):
        print(f"{prompt!r} -> {output.text!r} ({output.finish_reason})")
    for name, row in engine.stats.specializations.items():
        print(f"{name}: {row.steps} steps, {row.padding_rows} padding rows, p50 {row.p50_ms:.2f} ms")
