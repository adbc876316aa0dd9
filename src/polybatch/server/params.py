"""From the fields of a request to the engine's sampling parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polybatch.engine import SamplingParams, StructuredOutput
from polybatch.server.errors import bad_request, refused_value
from polybatch.server.model import ServedModel
from polybatch.server.schemas.sampling import SamplingBody, StructuredOutputs

DEFAULT_TEMPERATURE = 1.0
_SEEDS = 2**64


def sampling_params(
    body: SamplingBody,
    model: ServedModel,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    structured: StructuredOutput | None = None,
) -> SamplingParams:
    """What the engine is asked for the first choice. Raises ApiError naming the field.

    ``structured`` overrides what the body says of the answer's form.
    """
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(0, body.top_k or 0),
            min_p=body.min_p or 0.0,
            seed=None if body.seed is None else body.seed % _SEEDS,
            stop=body.stop or (),
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
            logit_bias=_logit_bias(body, model),
            min_tokens=body.min_tokens or 0,
            ignore_eos=bool(body.ignore_eos),
            logprobs=logprobs,
            structured=structured or _structured(body),
        )
    except (ValueError, TypeError) as error:
        raise refused_value(error) from error


def for_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """The parameters of the n-th choice of a prompt: with a seed, each choice has its own, or all would be equal."""
    if choice == 0 or params.seed is None:
        return params
    return replace(params, seed=(params.seed + choice) % _SEEDS)


def _logit_bias(body: SamplingBody, model: ServedModel) -> dict[int, float]:
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    model.check_ids(list(bias), "logit_bias")
    return bias


def _structured(body: SamplingBody) -> StructuredOutput | None:
    if body.structured_outputs is not None:
        return _from_structured_outputs(body.structured_outputs)
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if form.json_schema is None or form.json_schema.schema_ is None:
        return StructuredOutput("json_object")
    return _checked("json_schema", form.json_schema.schema_, "response_format")


def _from_structured_outputs(given: StructuredOutputs) -> StructuredOutput:
    ((name, value),) = given.given.items()
    kinds: dict[str, Any] = {"json": "json_schema"}
    return _checked(kinds.get(name, name), None if name == "json_object" else value, "structured_outputs")


def _checked(kind: Any, value: Any, param: str) -> StructuredOutput:
    try:
        return StructuredOutput(kind, value)
    except (ValueError, TypeError) as error:
        raise bad_request(f"{param}: {error}", param) from error
