"""From a program directory to a model that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polybatch.engine import DraftModel, Engine, PromptLookup
from polybatch.errors import ProgramCorruptError, ProgramError
from polybatch.program import Program
from polybatch.server.config import ServerConfig
from polybatch.server.model import ServedModel


def load_model(
    program: Program,
    config: ServerConfig,
    *,
    speculation: PromptLookup | DraftModel | None = None,
    fixed_k: int | None = None,
    threads: int | None = None,
    prefix_cache: bool = True,
) -> ServedModel:
    """Open an engine on the program, with the limits of the server. Raises what Program and Engine raise."""
    engine = Engine(
        program,
        speculation,
        fixed_k=fixed_k,
        threads=threads,
        max_queue=config.max_queue,
        prefix_cache=prefix_cache,
    )
    return ServedModel(
        config.model_name,
        engine,
        _tokenizer(program),
        max_prompt_len=min(program.max_prompt_len, program.ctx_len - 1),
        ctx_len=program.ctx_len,
        vocab_size=program.vocab_size,
        slots=program.full_batch_size,
        about=_about(program, speculation),
    )


def _tokenizer(program: Program) -> Any:
    try:
        return program.tokenizer()
    except ProgramCorruptError:
        raise
    except ProgramError:  # token-id prompts still work
        return None


def _about(program: Program, speculation: PromptLookup | DraftModel | None) -> dict[str, Any]:
    return {
        "target": program.target,
        "slots": program.full_batch_size,
        "ctx_len": program.ctx_len,
        "max_prompt_len": program.max_prompt_len,
        "specializations": [row.name for row in program.specializations],
        "speculation": None if speculation is None else type(speculation).__name__,
    }


def default_name(path: Path) -> str:
    """A program's folder without its suffix."""
    return path.resolve().name.removesuffix(".poly") or "polybatch"
