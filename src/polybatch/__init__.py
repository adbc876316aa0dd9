"""polybatch: one compiled LLM program, many batch sizes, one retained KV cache.

Public names are imported on first use, so that ``import polybatch`` stays fast and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polybatch.compiler.auto import AutoModelForCausalLM as AutoModelForCausalLM
    from polybatch.engine import Completion as Completion
    from polybatch.engine import Delta as Delta
    from polybatch.engine import DraftModel as DraftModel
    from polybatch.engine import Engine as Engine
    from polybatch.engine import PromptLookup as PromptLookup
    from polybatch.engine import SamplingParams as SamplingParams
    from polybatch.engine import StructuredOutput as StructuredOutput
    from polybatch.engine import TokenLogprobs as TokenLogprobs
    from polybatch.errors import CompilerError as CompilerError
    from polybatch.errors import DeviceBufferError as DeviceBufferError
    from polybatch.errors import DeviceError as DeviceError
    from polybatch.errors import DeviceExecutionError as DeviceExecutionError
    from polybatch.errors import DeviceOpenError as DeviceOpenError
    from polybatch.errors import DeviceOutputError as DeviceOutputError
    from polybatch.errors import DeviceQueueError as DeviceQueueError
    from polybatch.errors import DeviceRuntimeMissingError as DeviceRuntimeMissingError
    from polybatch.errors import EngineClosedError as EngineClosedError
    from polybatch.errors import EngineDrainingError as EngineDrainingError
    from polybatch.errors import InvalidGrammarError as InvalidGrammarError
    from polybatch.errors import MissingExtraError as MissingExtraError
    from polybatch.errors import ModelLoadError as ModelLoadError
    from polybatch.errors import NoMatchingSpecializationError as NoMatchingSpecializationError
    from polybatch.errors import PolybatchError as PolybatchError
    from polybatch.errors import ProgramCorruptError as ProgramCorruptError
    from polybatch.errors import ProgramError as ProgramError
    from polybatch.errors import ProgramIncompatibleError as ProgramIncompatibleError
    from polybatch.errors import ProgramVersionError as ProgramVersionError
    from polybatch.errors import QueueFullError as QueueFullError
    from polybatch.errors import RequestFailedError as RequestFailedError
    from polybatch.errors import SpecializationError as SpecializationError
    from polybatch.errors import StepInputError as StepInputError
    from polybatch.errors import UnsupportedModelError as UnsupportedModelError
    from polybatch.errors import VerificationError as VerificationError
    from polybatch.program import Program as Program
    from polybatch.session import InferenceSession as InferenceSession
    from polybatch.specialization import Specialization as Specialization
    from polybatch.targets.qaic.options import QaicOptions as QaicOptions

_ERRORS = (
    "CompilerError",
    "DeviceBufferError",
    "DeviceError",
    "DeviceExecutionError",
    "DeviceOpenError",
    "DeviceOutputError",
    "DeviceQueueError",
    "DeviceRuntimeMissingError",
    "EngineClosedError",
    "EngineDrainingError",
    "InvalidGrammarError",
    "MissingExtraError",
    "ModelLoadError",
    "NoMatchingSpecializationError",
    "PolybatchError",
    "ProgramCorruptError",
    "ProgramError",
    "ProgramIncompatibleError",
    "ProgramVersionError",
    "QueueFullError",
    "RequestFailedError",
    "SpecializationError",
    "StepInputError",
    "UnsupportedModelError",
    "VerificationError",
)
_HOMES = {
    "AutoModelForCausalLM": "polybatch.compiler.auto",
    "Completion": "polybatch.engine",
    "Delta": "polybatch.engine",
    "DraftModel": "polybatch.engine",
    "Engine": "polybatch.engine",
    "InferenceSession": "polybatch.session",
    "Program": "polybatch.program",
    "PromptLookup": "polybatch.engine",
    "SamplingParams": "polybatch.engine",
    "QaicOptions": "polybatch.targets.qaic.options",
    "StructuredOutput": "polybatch.engine",
    "TokenLogprobs": "polybatch.engine",
    "Specialization": "polybatch.specialization",
    **dict.fromkeys(_ERRORS, "polybatch.errors"),
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("polybatch")
    if name not in _HOMES:
        raise AttributeError(f"module 'polybatch' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
