"""How far the logits of bf16 and int8 programs are from those of the fp32 program, on real text.

    python -m bench.quality --model DIR [--tokens 4096]

The text is the Python language reference that comes with Python (``pydoc_data.topics``): the first 512 tokens of each
of its longest documents, as many as --tokens takes. Every token's logits are compared: how often the most probable next
token is the same, KL(fp32 || other), and the perplexity of the text. Prints a table and writes OUT/quality.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.models import MODELS
from bench.options import add_folders, add_threads, parser_of
from bench.peers.report import machine
from bench.programs import ProgramSpec, compiled
from bench.results import write_results
from polybatch import InferenceSession, Program

WINDOW = 512
CHUNK = 64
PRECISIONS = ("bf16", "int8", "int8-weight-only")
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Quality:
    """Of one precision against fp32, over ``tokens`` positions. Divergence in nats per token."""

    precision: str
    tokens: int
    agreement: float
    mean_divergence: float
    median_divergence: float
    perplexity: float


def main() -> None:
    options = _parser().parse_args()
    model = str(
        MODELS[options.model](options.cache / "models" / options.model) if options.model in MODELS else options.model
    )
    count = -(-options.tokens // WINDOW)
    specs = {
        precision: ProgramSpec(model, precision, (count,), count, (CHUNK - 1,), WINDOW)
        for precision in ("fp32", *options.precisions)
    }
    folders = compiled(
        specs.values(), options.cache / "quality", 1, lambda line: print(line, file=sys.stderr, flush=True)
    )
    programs = {precision: Program.load(folders[spec]) for precision, spec in specs.items()}
    found = measure(programs, windows(programs["fp32"].tokenizer(), count), options.threads)
    lines = markdown(found)
    data = {"machine": machine(), "model": model, "quality": [asdict(quality) for quality in found]}
    write_results(options.out, "quality", data, lines)
    print("\n".join(lines))


def windows(tokenizer: Any, count: int) -> Tokens:
    """[count, WINDOW] token ids: the starts of the longest documents that fill a window."""
    documents = (tokenizer(text)["input_ids"] for text in sorted(topics.values(), key=len, reverse=True))
    starts = [ids[:WINDOW] for ids in documents if len(ids) >= WINDOW][:count]
    if len(starts) < count:
        raise SystemExit(f"the text has {len(starts)} documents of {WINDOW} tokens; ask for fewer --tokens")
    return np.array(starts, dtype=np.int64)


def measure(programs: dict[str, Program], text: Tokens, threads: int) -> list[Quality]:
    """Compare all programs with ``programs["fp32"]``, chunk by chunk."""
    sessions = {precision: program.session(threads) for precision, program in programs.items()}
    same: dict[str, list[Tensor]] = {precision: [] for precision in programs}
    divergence: dict[str, list[Tensor]] = {precision: [] for precision in programs}
    surprise: dict[str, list[Tensor]] = {precision: [] for precision in programs}
    for inputs, following in chunks(text):
        exact: Tensor | None = None
        for precision, session in sessions.items():
            logits = _log_probabilities(session, inputs)
            exact = logits if exact is None else exact
            same[precision].append(logits.argmax(-1) == exact.argmax(-1))
            divergence[precision].append((exact.exp() * (exact - logits)).sum(-1))
            known = torch.from_numpy(following)
            surprise[precision].append(-logits[:, : known.shape[1]].gather(-1, known[..., None]))
    for session in sessions.values():
        session.close()
    return [
        Quality(
            precision,
            text.size,
            float(torch.cat(same[precision], 1).float().mean()),
            float(torch.cat(divergence[precision], 1).mean()),
            float(torch.cat(divergence[precision], 1).median()),
            float(torch.cat(surprise[precision], 1).mean().exp()),
        )
        for precision in programs
    ]


def chunks(text: Tokens) -> Iterator[tuple[dict[str, Tokens], Tokens]]:
    """The inputs of the steps that read all windows side by side, and the tokens that follow each of theirs."""
    rows = np.arange(len(text), dtype=np.int64)[:, None]
    for start in range(0, WINDOW, CHUNK):
        positions = np.tile(np.arange(start, start + CHUNK, dtype=np.int64), (len(text), 1))
        inputs = {
            "input_ids": text[:, start : start + CHUNK],
            "position_ids": positions,
            "batch_index": rows,
        }
        yield inputs, text[:, start + 1 : start + CHUNK + 1]


def _log_probabilities(session: InferenceSession, inputs: dict[str, Tokens]) -> Tensor:
    return torch.log_softmax(torch.from_numpy(session.run(inputs)["logits"]), dim=-1)


def markdown(found: Sequence[Quality]) -> list[str]:
    """The table of docs/benchmarks.md."""
    lines = ["| | same next token | KL, mean | KL, median | perplexity |", "|---|---|---|---|---|"]
    for quality in found:
        compared = [f"{quality.agreement:.4f}", f"{quality.mean_divergence:.5f}", f"{quality.median_divergence:.5f}"]
        cells = ["", "", ""] if quality.precision == "fp32" else compared
        lines.append(f"| {quality.precision} | {' | '.join(cells)} | {quality.perplexity:.3f} |")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("quality", __doc__)
    parser.add_argument("--model", default="B", help="Hugging Face directory with a tokenizer, or B")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--tokens", type=int, default=4096, help="rounded up to whole windows")
    add_threads(parser)
    add_folders(parser, "quality")
    return parser


if __name__ == "__main__":
    main()
