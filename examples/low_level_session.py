"""Run steps by hand: prefill two prompts into slots 3 and 1, then decode both in one step of batch size 2.

    python examples/low_level_session.py PROGRAM

PROGRAM was compiled with continuous batching, a batch size of 2, and at least 4 slots.
"""

import sys

import numpy as np

from polybatch import Program

program = Program.load(sys.argv[1])
tokenizer = program.tokenizer()
prompts = {3: "The capital of France is", 1: "Once upon a time"}  # slot: text

with program.session() as session:
    next_tokens, next_positions = [], []
    for slot, text in prompts.items():
        ids = tokenizer.encode(text)
        chunk = program.prefill_seq_len
        if len(ids) > chunk:
            raise SystemExit(f"{text!r} is longer than one prefill chunk of {chunk} tokens")
        input_ids = np.zeros((1, chunk), np.int64)
        position_ids = np.full((1, chunk), -1, np.int64)  # -1 marks padding
        input_ids[0, : len(ids)] = ids
        position_ids[0, : len(ids)] = np.arange(len(ids))
        step = {"input_ids": input_ids, "position_ids": position_ids, "batch_index": np.array([[slot]])}
        logits = session.run(step)["logits"]  # [1, 1, vocab]: of the last token that is not padding
        next_tokens.append(int(logits[0, 0].argmax()))
        next_positions.append(len(ids))

    step = {
        "input_ids": np.array(next_tokens)[:, None],
        "position_ids": np.array(next_positions)[:, None],
        "batch_index": np.array(list(prompts))[:, None],
    }
    logits = session.run(step)["logits"]  # [2, 1, vocab]
    print("the step ran as", session.last_specialization.name)
    for row, (slot, text) in enumerate(prompts.items()):
        answer = tokenizer.decode([next_tokens[row], int(logits[row, 0].argmax())])
        print(f"slot {slot}: {text!r} -> {answer!r}")
