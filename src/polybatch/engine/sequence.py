"""One request while it runs: its tokens so far, its sampler, its text, and the rule for when it ends."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from polybatch.engine.adjustments import Adjustments
from polybatch.engine.detokenizer import Detokenizer
from polybatch.engine.logprobs import token_logprobs
from polybatch.engine.protocols import Logits
from polybatch.engine.request import Completion, Delta, FinishReason, Request, TokenLogprobs
from polybatch.engine.sampler import Sampler
from polybatch.engine.speculation.proposal import NOTHING, Proposal
from polybatch.engine.speculation.stats import SpeculationStats
from polybatch.engine.stop import StopMatcher


class Sequence:
    """Prompt plus generated tokens; ends at EOS, a stop string, ``max_tokens`` or ``ctx_len`` tokens in all."""

    def __init__(
        self, request: Request, *, ctx_len: int, eos_token_ids: Seq[int], detokenizer: Detokenizer | None
    ) -> None:
        params = request.params
        room = ctx_len - len(request.prompt_token_ids)
        self.request = request
        self.token_ids: list[int] = []
        self.first_token_s: float | None = None  # on the engine's clock
        self.reused_tokens: int | None = None  # of the prompt; known when its first chunk has run
        self._max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        self._eos = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._adjustments = Adjustments(params, sorted(eos_token_ids), request.prompt_token_ids, request.constraint)
        self._sampler = Sampler(params, self._adjustments)
        self._detokenizer = detokenizer
        self._stop = StopMatcher(params.stop_strings)
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []

    def tokens(self, start: int, count: int) -> tuple[int, ...]:
        """Token ids at positions ``start .. start+count-1``."""
        prompt = self.request.prompt_token_ids
        start, stop = start - len(prompt), start - len(prompt) + count
        if start >= 0:
            return tuple(self.token_ids[start:stop])
        return (*prompt[start : min(stop, 0) or None], *self.token_ids[: max(stop, 0)])

    @property
    def remaining_tokens(self) -> int:
        """How many more tokens the sequence may get."""
        return self._max_tokens - len(self.token_ids)

    def allowed(self, proposal: Proposal) -> Proposal:
        """The part of a proposal that is worth verifying: the grammar's next tokens.

        Of tokens that were drawn, the first that the grammar refuses stays: what comes in its place makes up for the
        probability that it was drawn with (``acceptance.residual``).
        """
        valid = self._adjustments.valid_prefix(proposal.token_ids)
        return proposal.trimmed(valid if proposal.distributions is None else valid + 1)

    def extend(self, logits: Logits, best: Seq[int | None], proposal: Proposal = NOTHING) -> Delta:
        """Append the proposed tokens that the logits agree with and the one chosen after them, or up to the end.

        logits: float32 [1 + len(proposal), vocab]; row i follows the first i proposed tokens.
        best: the most probable token of each, None where it is not finite.
        """
        deltas = []
        for column, proposed in enumerate((*proposal.token_ids, None)):
            delta = self.accept(self._choose(logits[column], best[column], proposal, column), logits[column])
            deltas.append(delta)
            if delta.finish_reason is not None or delta.token_ids[0] != proposed:
                break
        return _joined(deltas)

    def accept(self, token_id: int, logits: Logits) -> Delta:
        """Append a token chosen after float32 [vocab]; the delta's ``finish_reason`` says whether it was the last."""
        self.token_ids.append(token_id)
        self._adjustments.accept(token_id)
        reason: FinishReason | None = None
        if token_id in self._eos:
            reason, text = "stop", self._rest()
        else:
            text = self._stop.feed(self._detokenizer.add(token_id) if self._detokenizer else "")
            if not self._stop.stopped and (self._adjustments.complete or self.remaining_tokens <= 0):
                reason = "stop" if self._adjustments.complete else "length"
                text += self._rest()
        if self._stop.stopped:
            reason = "stop"
        return self._delta(text, (token_id,), reason, self._measure(token_id, logits))

    def cut(self, reason: FinishReason) -> Delta:
        """The last delta of a request that ends without a token, early; releases the text held back so far."""
        return self._delta(self._rest(), (), reason, () if self._logprobs is not None else None)

    def completion(self, reason: FinishReason, speculation: SpeculationStats | None = None) -> Completion:
        """The whole result."""
        request = self.request
        return Completion(
            request.request_id,
            "".join(self._text),
            tuple(self.token_ids),
            reason,
            request.prompt_token_ids,
            speculation,
            None if self._logprobs is None else tuple(self._logprobs),
            self.reused_tokens or 0,
        )

    def _choose(self, logits: Logits, best: int | None, proposal: Proposal, column: int) -> int:
        if proposal.distributions is None or column == len(proposal):
            return self._sampler.sample(logits, best)
        return self._sampler.verify(logits, proposal.token_ids[column], proposal.distributions[column])

    def _measure(self, token_id: int, logits: Logits) -> tuple[TokenLogprobs, ...] | None:
        if self._logprobs is None:
            return None
        self._logprobs.append(token_logprobs(logits, token_id, self.request.params.logprobs or 0))
        return (self._logprobs[-1],)

    def _rest(self) -> str:
        text = self._stop.feed(self._detokenizer.finish() if self._detokenizer else "")
        return text if self._stop.stopped else text + self._stop.finish()

    def _delta(
        self,
        text: str,
        token_ids: tuple[int, ...],
        reason: FinishReason | None,
        logprobs: tuple[TokenLogprobs, ...] | None,
    ) -> Delta:
        self._text.append(text)
        return Delta(self.request.request_id, text, token_ids, reason, logprobs)


def _joined(deltas: Seq[Delta]) -> Delta:
    last = deltas[-1]
    if len(deltas) == 1:
        return last
    tokens = tuple(token for delta in deltas for token in delta.token_ids)
    logprobs = None if last.logprobs is None else tuple(item for delta in deltas for item in delta.logprobs or ())
    return Delta(last.request_id, "".join(delta.text for delta in deltas), tokens, last.finish_reason, logprobs)
