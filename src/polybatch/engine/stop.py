"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is complete, holding back any ending that may begin one.

    The stop that is completed first wins (of those completed by the same character, the longest), so the result
    does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The text that may be shown now. Sets ``stopped`` when a stop string is complete; then nothing follows."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        text = self._held + text
        self._held = ""
        cut = self._first_stop(text)
        if cut is not None:
            self.stopped = True
            return text[:cut]
        hold = self._hold_length(text)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def finish(self) -> str:
        """The held-back text, once no more will come."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> int | None:
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _hold_length(self, text: str) -> int:
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
