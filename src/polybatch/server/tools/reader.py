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
        self._started = False

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
        """One part of what is held; False when the rest has to wait, or there is none."""
        held = self._held.lstrip() if not self._started or self._calls else self._held
        if not held or self._is_bare(held):
            return self._take_bare(held, shown, calls) if held and last else self._drop_space(last, shown)
        begin = held.find(OPEN)
        if begin < 0:
            keep = 0 if last else _suffix_that_begins(held, OPEN)
            self._show(held[: len(held) - keep], shown)
            self._held = held[len(held) - keep :]
            return False
        if begin > 0:
            self._show(held[:begin], shown)
            self._held = held[begin:]
            return True
        return self._take_marked(held, shown, calls, last)

    def _is_bare(self, held: str) -> bool:
        return not self._started and held[0] in "{["

    def _take_bare(self, held: str, shown: list[str], calls: list[Call]) -> bool:
        if found := parse_calls(held, self._names):
            calls += found
        else:
            self._show(self._held, shown)
        self._held = ""
        return False

    def _drop_space(self, last: bool, shown: list[str]) -> bool:
        if last and not self._calls:
            self._show(self._held, shown)
            self._held = ""
        return False

    def _take_marked(self, held: str, shown: list[str], calls: list[Call], last: bool) -> bool:
        end = held.find(CLOSE)
        if end < 0 and not last:
            self._held = held
            return False
        whole = held if end < 0 else held[: end + len(CLOSE)]
        found = parse_calls(whole.removeprefix(OPEN).removesuffix(CLOSE), self._names)
        self._held = held[len(whole) :]
        if found:
            calls += found
            self._started = True
        else:
            self._show(whole, shown)
        return bool(self._held)

    def _show(self, text: str, shown: list[str]) -> None:
        if text:
            self._started = True
            shown.append(text)

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
