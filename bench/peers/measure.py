"""The interleaved measurements: every round asks every open peer for a little, in random order."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from bench.peers.lease import Lease
from bench.peers.process import PeerError, PeerProcess
from bench.peers.protocol import Cell, Load
from bench.peers.quiet import CpuUse
from bench.peers.results import Measurement

WARMUP_STEPS = 2  # of each turn: the other peers have used the processor's caches
TURN_MS = 150.0
LITTLE_TO_PREPARE = 8  # sequences
MOST_STEPS_PER_TURN = 12
FOREIGN_SHARE = 0.06  # of the machine that other processes may use during a turn
TRIES_FOR_QUIET = 4

Say = Callable[[str], None]


class Interleaver:
    """Measures one model at one precision on several open peers.

    rounds: turns per peer and kind of work. lease: held alone during rounds, and shared while much is prepared.
    """

    def __init__(
        self, peers: Mapping[str, PeerProcess], labels: tuple[str, str], rounds: int, lease: Lease, say: Say
    ) -> None:
        self._peers = peers
        self._labels = labels
        self._rounds = rounds
        self._lease = lease
        self._say = say
        self._random = random.Random(0)

    def decode(self, cell: Cell) -> list[Measurement]:
        """Milliseconds of one decode step."""
        found = self._blank(cell.name, "ms")
        steps: dict[str, int] = {}
        if cell.batch > LITTLE_TO_PREPARE:
            self._lease.shared()
        for name in self._able(found):
            with _noting(found[name]):
                self._peers[name].ask("prepare", cell=asdict(cell))
                first = self._peers[name].ask("step", warmup=WARMUP_STEPS, count=3)["ms"]
                steps[name] = _clamp(TURN_MS / statistics.median(first), 3, MOST_STEPS_PER_TURN)

        def turn(name: str) -> list[float]:
            times: list[float] = self._peers[name].ask("step", warmup=WARMUP_STEPS, count=steps[name])["ms"]
            return times

        return self._interleave(found, turn)

    def prefill(self, tokens: int) -> list[Measurement]:
        """Tokens per second of one prompt of ``tokens``."""
        found = self._blank(f"prefill {tokens}", "tokens/s")

        def turn(name: str) -> list[float]:
            times = self._peers[name].ask("prefill", tokens=tokens, count=3)["ms"][1:]
            return [tokens / ms * 1e3 for ms in times]

        return self._interleave(found, turn)

    def end_to_end(self, load: Load, note: str) -> list[Measurement]:
        """Output tokens per second of the whole load."""
        found = self._blank("end to end", "tokens/s", note)
        self._lease.shared()
        for name in self._able(found):
            with _noting(found[name]):
                self._peers[name].ask("generate", load=asdict(load))

        def turn(name: str) -> list[float]:
            reply = self._peers[name].ask("generate", load=asdict(load))
            wanted = load.requests * load.new_tokens
            if reply["output_tokens"] != wanted:
                raise PeerError(f"made {reply['output_tokens']} tokens instead of {wanted}")
            found[name].first_answer = reply["first"]
            return [wanted / reply["seconds"]]

        return self._interleave(found, turn)

    def _interleave(self, found: dict[str, Measurement], turn: Callable[[str], Sequence[float]]) -> list[Measurement]:
        for _ in range(self._rounds):
            order = self._able(found)
            self._random.shuffle(order)
            self._lease.alone()
            for name in order:
                with _noting(found[name]):
                    values = self._quiet_turn(name, turn, found[name])
                    found[name].values += values
                    found[name].turns.append(statistics.median(values))
        for measurement in found.values():
            self._say(describe(measurement))
        return list(found.values())

    def _quiet_turn(
        self, name: str, turn: Callable[[str], Sequence[float]], measurement: Measurement
    ) -> Sequence[float]:
        """One turn, taken again while other processes get in its way; the last try counts whatever happens."""
        for _ in range(TRIES_FOR_QUIET):
            before, start = CpuUse.read(self._peers[name].pid), time.perf_counter()
            values = turn(name)
            seconds = time.perf_counter() - start
            share = before.foreign_share(CpuUse.read(self._peers[name].pid), seconds)
            if share <= FOREIGN_SHARE:
                return values
            time.sleep(seconds)
        measurement.disturbed_turns += 1
        return values

    def _blank(self, work: str, unit: str, note: str = "") -> dict[str, Measurement]:
        model, precision = self._labels
        return {name: Measurement(model, precision, work, name, unit, note=note) for name in self._peers}

    @staticmethod
    def _able(found: Mapping[str, Measurement]) -> list[str]:
        return [name for name, measurement in found.items() if not measurement.reason]


def describe(measurement: Measurement) -> str:
    """One line for the terminal."""
    head = f"{measurement.model} {measurement.precision} {measurement.work:12s} {measurement.peer:15s}"
    if measurement.median is None:
        return f"{head} - {measurement.reason[:110]}"
    spread = "" if measurement.spread is None else f" (turns differ by {measurement.spread:.0%})"
    if measurement.disturbed_turns:
        spread += f" ({measurement.disturbed_turns} turns disturbed by other processes)"
    return f"{head} {measurement.median:9.2f} {measurement.unit}{spread}"


@contextlib.contextmanager
def _noting(measurement: Measurement) -> Iterator[None]:
    """A peer that fails is reported with its reason, and the others go on."""
    try:
        yield
    except PeerError as error:
        measurement.reason = str(error)


def _clamp(value: float, low: int, high: int) -> int:
    return max(low, min(high, math.ceil(value)))
