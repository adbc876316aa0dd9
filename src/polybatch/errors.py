"""Every exception that polybatch raises on purpose.

    Exception
    ├── PolybatchError
    │   ├── ModelLoadError                  a model directory, hub id or GGUF file cannot be read
    │   ├── UnsupportedModelError           the architecture cannot be compiled without wrong logits
    │   ├── VerificationError               the compiled program's logits are off; nothing was written
    │   ├── CompilerError                   the C++ or device compiler is missing or failed
    │   ├── ProgramError                    a program directory cannot be used
    │   │   ├── ProgramVersionError         written by another schema version
    │   │   ├── ProgramCorruptError         a file is missing, truncated or edited
    │   │   └── ProgramIncompatibleError    this machine lacks what the program was compiled for
    │   ├── MissingExtraError               a package of one of polybatch's extras is not installed
    │   ├── DeviceRuntimeMissingError       the device's runtime is not installed; also an ImportError
    │   ├── DeviceError                     a call of the device's runtime failed
    │   │   ├── DeviceOpenError             opening, loading or activating a program
    │   │   ├── DeviceBufferError           passing the buffers of a step
    │   │   ├── DeviceQueueError            enqueueing it
    │   │   ├── DeviceExecutionError        running it
    │   │   └── DeviceOutputError           reading its outputs
    │   ├── EngineClosedError               a request reached an engine that has been closed
    │   ├── EngineDrainingError             a request reached an engine that takes no more
    │   ├── QueueFullError                  a request reached an engine whose queue is full
    │   └── RequestFailedError              a step raised while it ran this request; others are not affected
    └── ValueError
        ├── InvalidGrammarError             a structured output that is no JSON schema, regex or grammar
        ├── SpecializationError             the asked table breaks a rule
        └── StepInputError                  a step's inputs break the contract
            └── NoMatchingSpecializationError

Wrong types are plain ``TypeError``. Messages say what was asked, what is allowed and what to do.
"""


class PolybatchError(Exception):
    """Base of the errors that are not plain bad values."""


class ModelLoadError(PolybatchError):
    """A model directory, hub id or GGUF file cannot be read; the message says which part of it."""


class UnsupportedModelError(PolybatchError):
    """The model's architecture cannot be compiled; the message names the class and what is missing."""


class VerificationError(PolybatchError):
    """The compiled program's logits differ from the model's own; nothing was written."""


class CompilerError(PolybatchError):
    """The C++ or device compiler is missing or failed; the message carries its last lines."""


class ProgramError(PolybatchError):
    """A program directory cannot be used."""


class ProgramVersionError(ProgramError):
    """The program was written by another schema version; recompile it."""


class ProgramCorruptError(ProgramError):
    """A file of the program is missing, truncated or edited."""


class ProgramIncompatibleError(ProgramError):
    """This machine lacks a CPU feature or a library version that the program needs."""


class MissingExtraError(PolybatchError):
    """A package is not installed; the message names the extra of polybatch that it comes with."""


class DeviceRuntimeMissingError(PolybatchError, ImportError):
    """The device's runtime is not installed on this machine."""


class DeviceError(PolybatchError):
    """A call of the device's runtime failed; the message has its status."""


class DeviceOpenError(DeviceError):
    """A program could not be loaded onto the device or activated there."""


class DeviceBufferError(DeviceError):
    """The runtime refused the buffers of a step."""


class DeviceQueueError(DeviceError):
    """The runtime could not enqueue a step."""


class DeviceExecutionError(DeviceError):
    """A step failed on the device; what its cache holds is not known."""


class DeviceOutputError(DeviceError):
    """The runtime could not give a step's outputs; what its cache holds is not known."""


class EngineClosedError(PolybatchError):
    """The engine has been closed and takes no more requests."""


class EngineDrainingError(PolybatchError):
    """The engine finishes what it has and takes no more requests."""


class QueueFullError(PolybatchError):
    """As many requests wait as the engine lets wait; try again later."""


class RequestFailedError(PolybatchError):
    """A request ended with an error, which is this one's ``__cause__``; the engine goes on."""


class InvalidGrammarError(ValueError):
    """A structured output whose value is no JSON schema, regular expression or grammar, or an unsupported one.

    Raised when a request is submitted. It is the cause of a RequestFailedError where only the answer shows that a
    grammar takes too long to follow.
    """


class SpecializationError(ValueError):
    """The requested table of specializations breaks a rule; the message names the argument to change."""


class StepInputError(ValueError):
    """A step's inputs break the contract; the KV cache is unchanged."""


class NoMatchingSpecializationError(StepInputError):
    """No compiled specialization has the shapes of the step's inputs."""
