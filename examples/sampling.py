"""Sample instead of taking the most probable token; the same seed gives the same answer, whatever else runs.

python examples/sampling.py PROGRAM [PROMPT]
"""

import sys

from polybatch import Engine, Program, SamplingParams

program_path, prompt = [*sys.argv[1:], "My favourite food is"][:2]

greedy = SamplingParams(max_tokens=24)
seeded = SamplingParams(max_tokens=24, temperature=0.8, top_p=0.95, top_k=50, seed=42)
until_full_stop = SamplingParams(max_tokens=24, temperature=0.8, seed=7, stop=".")

with Engine(Program.load(program_path)) as engine:
    together = engine.generate([prompt] * 3, [greedy, seeded, until_full_stop])
    alone = engine.generate(prompt, seeded)[0]

for name, output in zip(["greedy", "seed 42", "until a full stop"], together, strict=True):
    print(f"{name}: {output.text!r}")
print("seed 42 alone gives the same tokens:", alone.token_ids == together[1].token_ids)
