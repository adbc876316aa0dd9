"""Finds the calls in an answer while it is written.

Two forms are read: ``<tool_call>{...}</tool_call>`` anywhere (Hermes, Qwen and models that learned from them), and an
answer that is nothing but the JSON of a call or of a list of calls (Llama 3, and answers that a grammar forces). What
turns out to be no call is text.
"""

from __future__ import annotations

from polybatch.server.schemas.chat import ChatBody
from polybatch.server.tools.syntax import CLOSE, OPEN, Call, parse_calls


class ToolReader:
    """Text goes in by pieces; out comes what is certain to be text, and calls that are complete."""

    def __init__(self, body: ChatBody) -> None:
        self._names = frozenset(tool.function.name for tool in body.tools or ())
        self._most = 1 if body.parallel_tool_calls is False else None
        self._held = ""
        self._calls = 0
        self._shows_text = False  # the last thing shown was text: spaces are part of it
        self._may_be_bare = True

    @property
    def found(self) -> bool:
        """Whether there was a call."""
        return self._calls > 0

    def feed(self, text: str, *, last: bool) -> tuple[str, list[tuple[int, Call]]]:
        """The text that may be shown now, and new calls with their index in the answer."""
        self._held += text
        shown: list[str] = []
        calls: list[Call] = []
        while self._take(shown, calls, last):
            pass
        return "".join(shown), self._count(calls)

    def _take(self, shown: list[str], calls: list[Call], last: bool) -> bool:
        """Deal with one part of what is held; False when the rest has to wait for more, or there is none."""
        held = self._held if self._shows_text else self._held.lstrip()
        spaces = len(self._held) - len(held)
        if not held:  # space before the first text may be part of it; that between calls is not
            if last and self._may_be_bare:
                self._show(spaces, shown)
            return False
        if self._may_be_bare and held[0] in "{[":
            return last and self._take_bare(shown, calls)
        begin = held.find(OPEN)
        if begin == 0:
            return self._take_marked(held, shown, calls, last)
        if begin > 0:
            return self._show(spaces + begin, shown)
        keep = 0 if last else _suffix_that_begins(held, OPEN)
        if keep < len(held):
            self._show(len(self._held) - keep, shown)
        return False

    def _take_bare(self, shown: list[str], calls: list[Call]) -> bool:
        found = parse_calls(self._held, self._names)
        calls += found
        if not found:
            self._show(len(self._held), shown)
        self._held = ""
        return False

    def _take_marked(self, held: str, shown: list[str], calls: list[Call], last: bool) -> bool:
        end = held.find(CLOSE)
        if end < 0 and not last:
            return False
        whole = held if end < 0 else held[: end + len(CLOSE)]
        found = parse_calls(whole.removeprefix(OPEN).removesuffix(CLOSE), self._names)
        if not found:
            return self._show(len(self._held) - len(held) + len(whole), shown)
        calls += found
        self._held = held[len(whole) :]
        self._shows_text = self._may_be_bare = False
        return True

    def _show(self, count: int, shown: list[str]) -> bool:
        """The first ``count`` characters held are text."""
        shown.append(self._held[:count])
        self._held = self._held[count:]
        self._shows_text, self._may_be_bare = True, False
        return True

    def _count(self, calls: list[Call]) -> list[tuple[int, Call]]:
        if self._most is not None:
            calls = calls[: self._most - self._calls]
        numbered = [(self._calls + at, call) for at, call in enumerate(calls)]
        self._calls += len(calls)
        return numbered


def read_all(body: ChatBody, text: str) -> tuple[str, list[Call]]:
    """Text and calls of a whole answer."""
    shown, calls = ToolReader(body).feed(text, last=True)
    return shown, [call for _, call in calls]


def _suffix_that_begins(text: str, marker: str) -> int:
    """Characters at the end of ``text`` that may be the start of ``marker``."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-size:])), 0)
