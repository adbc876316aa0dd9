"""What callers ask for, checked before anything is queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polybatch.engine.prompts import Prompt, PromptEncoder, prompt_list
from polybatch.engine.protocols import ProgramLike, TokenizerLike
from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.structured.constraint import Constraint
from polybatch.engine.structured.grammar import GrammarCompiler
from polybatch.engine.structured.output import StructuredOutput


@dataclass(frozen=True)
class CheckedRequest:
    """Everything of a request but its handle."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    constraint: Constraint | None = None


class Intake:
    """Turns prompts and their parameters into requests that the program can run. Safe from any thread."""

    def __init__(self, program: ProgramLike, eos_token_ids: Sequence[int]) -> None:
        """eos_token_ids: those that a step can choose."""
        self._prompts = PromptEncoder(program)
        self._vocab_size = program.vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._grammars: GrammarCompiler | None = None

    @property
    def tokenizer(self) -> TokenizerLike | None:
        """The program's tokenizer, if it has one."""
        return self._prompts.tokenizer

    def check_all(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[CheckedRequest]:
        """Every prompt with its parameters: one for all, or one per prompt. Raises as ``check`` does."""
        listed = prompt_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            return [self.check(prompt, params) for prompt in listed]
        if len(params) != len(listed):
            raise ValueError(f"{len(listed)} prompts but {len(params)} params; give one for all, or one per prompt")
        return [self.check(prompt, one) for prompt, one in zip(listed, params, strict=True)]

    def check(self, prompt: Prompt, params: SamplingParams | None) -> CheckedRequest:
        """One request. Raises what ``Engine`` says its methods raise."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params is a {type(params).__name__}; give SamplingParams")
        if params.stop_strings and self._prompts.tokenizer is None:
            raise ValueError(f"stop={params.stop!r} needs a tokenizer, and the program has none")
        self._check_bias(params)
        token_ids = self._prompts.encode(prompt)
        return CheckedRequest(token_ids, params, self._constraint(params.structured))

    def _check_bias(self, params: SamplingParams) -> None:
        size = self._vocab_size
        for token_id in params.logit_bias:
            if size is not None and token_id >= size:
                raise ValueError(f"logit_bias names token id {token_id}; this program has ids 0 to {size - 1}")

    def _constraint(self, wanted: StructuredOutput | None) -> Constraint | None:
        if wanted is None:
            return None
        if self._grammars is None:
            tokenizer = self._prompts.require_tokenizer()
            self._grammars = GrammarCompiler(tokenizer, self._vocab_size, self._eos_token_ids)
        return self._grammars.compile(wanted)
