"""Export a model for Cloud AI 100: one program for three batch sizes, ready for the device's compiler.

python examples/cloud_ai_100.py MODEL PROGRAM
"""

import json
import sys
from pathlib import Path

from polybatch import AutoModelForCausalLM, QaicOptions

model, path = sys.argv[1:]
# With the SDK on this machine this also compiles for the device; without it, a warning says how to go on.
program = AutoModelForCausalLM.from_pretrained(model).compile(
    path,
    batch_size=[1, 2, 4],
    continuous_batching=True,
    full_batch_size=4,
    ctx_len=256,
    prefill_seq_len=32,
    target="qaic",
    qaic=QaicOptions(num_cores=14, num_devices=2, mxfp6_matmul=True, mxint8_kv_cache=True),
)
print("files:", ", ".join(sorted(file.name for file in program.path.iterdir())))
print("command:", " ".join(json.loads((Path(path) / "qaic.json").read_text())["argv"]))
print("logits off by", f"{program.manifest.verification.max_relative_error:.1e}", "(ONNX Runtime, relative)")
# On a machine with devices 4 and 5: Engine(program.on_devices([4, 5]))
