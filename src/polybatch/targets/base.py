"""What a target must be able to do: build its files into a program, and run steps from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polybatch.kv_layout import CacheSpec

if TYPE_CHECKING:
    from torch import Tensor

    from polybatch.specialization import Specialization, SpecializationTable
    from polybatch.targets.qaic.options import QaicOptions

Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]

StepArrays = tuple[Int64Array, Int64Array, Int64Array, Int64Array]
"""What a runner takes: input_ids [b, s], position_ids [b, s], batch_index [b, 1], logits_index [b, n]."""

Progress = Callable[[str], None]
"""Called with the name of each stage of a compile as it starts."""


@dataclass(frozen=True)
class SlotKV:
    """A copy of one slot: per layer, keys [kv_heads, ctx_len, key_dim] and values [kv_heads, ctx_len, value_dim]."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class StepRunner(Protocol):
    """Runs validated steps over one retained KV cache; not thread-safe. Its caller checks the inputs."""

    skips_padding: bool
    """Whether a step costs what its live rows and tokens cost, however much padding its shapes have."""

    copies_slots: bool
    """Whether ``copy_slot`` works."""

    def run(
        self, input_ids: Int64Array, position_ids: Int64Array, batch_index: Int64Array, logits_index: Int64Array
    ) -> Float32Array:
        """One step: ids and positions [b, s] (-1 = padding), slots [b, 1], wanted columns [b, n]; [b, n, vocab]."""
        ...

    def read_slot(self, slot: int) -> SlotKV:
        """A copy of what one slot holds."""
        ...

    def copy_slot(self, source: int, target: int, positions: int) -> None:
        """Make the first ``positions`` positions of slot ``target`` those of ``source``; what follows means nothing."""
        ...

    def reset(self) -> None:
        """Forget every sequence."""
        ...

    def close(self) -> None:
        """Release the cache and whatever else the runner holds; safe to call twice."""
        ...


@runtime_checkable
class FixedShapeRunner(Protocol):
    """A StepRunner that runs the very shapes of a specialization, which its arrays alone do not give away."""

    def select(self, row: Specialization) -> None:
        """Say which specialization the next step runs."""
        ...


@runtime_checkable
class LiveRunner(Protocol):
    """A StepRunner that computes the logits of live tokens only and can leave them where they are."""

    def run_live(
        self, input_ids: Int64Array, position_ids: Int64Array, batch_index: Int64Array, logits_index: Int64Array
    ) -> Float32Array:
        """``run``; returns float32 [live, vocab], of the wanted columns those of live tokens, row after row."""
        ...


@dataclass(frozen=True)
class BuildRequest:
    """What a target compiles: a loaded Hugging Face model and the cache it will have."""

    model: Any
    cache: CacheSpec
    weights: str | None
    """The format to store weights in; None: the model's dtype. Checked by ``check_weights``."""
    text: Tensor | None
    """Token ids [sequences, tokens] to choose by how to round; given where ``weights`` is."""
    isa: str
    progress: Progress
    table: SpecializationTable
    qaic: QaicOptions | None = None
    """Of target qaic; None: its defaults."""


@dataclass(frozen=True)
class InputChange:
    """The program multiplies (x - shift) / scale, and adds to the result what the original weight makes of shift."""

    shift: Tensor
    """float32 [k]"""
    scale: Tensor
    """float32 [k], powers of two"""


@dataclass(frozen=True)
class RoundedWeight:
    """A weight of the model that the program holds with less precision."""

    source: Tensor
    """The model's own, [n, k] or [experts, n, k]: a view of one of its parameters."""
    value: Callable[[], Tensor]
    """What it has become, in float32, made anew by each call; scaled if the inputs are."""
    rounds_inputs: bool
    """Whether each row that it is multiplied with is rounded too, to 8 bits."""
    change: InputChange | None = None


@dataclass(frozen=True)
class BuildResult:
    """What a target tells the manifest about the files it has written."""

    isa: str | None
    cpu_features: tuple[str, ...]
    compiler: str | None
    batch_invariant: bool
    bytes_per_slot: int
    rounded: tuple[RoundedWeight, ...] = ()
    notes: tuple[str, ...] = ()
    """What the user has to know or do before the program can run; shown as warnings."""


class Target(Protocol):
    """A way to run programs. ``build`` writes files into a folder; ``open`` runs from such a folder."""

    def build(self, request: BuildRequest, folder: Path) -> BuildResult:
        """Write the target's files. Raises CompilerError or UnsupportedModelError."""
        ...

    def open(self, folder: Path, cache: CacheSpec, threads: int) -> StepRunner:
        """A runner with an empty cache. Raises ProgramError when the files cannot be used."""
        ...


@runtime_checkable
class CrossTarget(Protocol):
    """A target whose programs run on other machines than those that compile them."""

    def open_for_check(self, folder: Path, cache: CacheSpec, threads: int) -> StepRunner:
        """A runner on this machine's CPU that does what the program's machine would do, for the check of a compile."""
        ...

    def finish(self, request: BuildRequest, folder: Path, built: BuildResult) -> BuildResult:
        """What is left to do once the check has passed, because it takes long. Raises CompilerError."""
        ...


@runtime_checkable
class DeviceTarget(Protocol):
    """A target that runs on devices of which a machine may have several."""

    def on_devices(self, device_ids: tuple[int, ...]) -> Target:
        """The same on these devices."""
        ...
