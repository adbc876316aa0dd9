"""Continuous batching on one compiled program: requests in, completions out."""

from polybatch.engine.engine import Engine
from polybatch.engine.handle import AsyncRequestHandle, RequestHandle
from polybatch.engine.prompts import Prompt
from polybatch.engine.request import Completion, Delta, Event, FinishReason, TokenLogprobs
from polybatch.engine.sampling_params import SamplingParams
from polybatch.engine.speculation.draft_model import DraftModel
from polybatch.engine.speculation.prompt_lookup import PromptLookup
from polybatch.engine.speculation.stats import SpeculationStats
from polybatch.engine.stats import EngineStats, SlotState, SpecializationStats
from polybatch.engine.structured import StructuredOutput

__all__ = [
    "AsyncRequestHandle",
    "Completion",
    "Delta",
    "DraftModel",
    "Engine",
    "EngineStats",
    "Event",
    "FinishReason",
    "Prompt",
    "PromptLookup",
    "RequestHandle",
    "SamplingParams",
    "SlotState",
    "SpecializationStats",
    "SpeculationStats",
    "StructuredOutput",
    "TokenLogprobs",
]
