"""Show one answer as it is generated, while another request shares the steps.

python examples/streaming.py PROGRAM [PROMPT]
"""

import sys

from polybatch import Engine, Program, SamplingParams

program_path, prompt = [*sys.argv[1:], "Once upon a time"][:2]

with Engine(Program.load(program_path)) as engine:
    other = engine.add_request("The capital of France is", SamplingParams(max_tokens=16))
    for delta in engine.stream(prompt, SamplingParams(max_tokens=64)):
        print(delta.text, end="", flush=True)
    print(f"\n[{delta.finish_reason}]")
    print("meanwhile:", other.result().text)
