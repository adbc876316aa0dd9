"""What a running step hands to code deep inside the model's forward pass, past all signatures in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Running(Generic[T]):
    """The context of the step that a thread is in."""

    def __init__(self) -> None:
        self._thread = threading.local()

    @contextmanager
    def use(self, context: T) -> Iterator[None]:
        """Make ``context`` the current one of this thread."""
        previous = getattr(self._thread, "context", None)
        self._thread.context = context
        try:
            yield
        finally:
            self._thread.context = previous

    @property
    def context(self) -> T:
        """The current one; RuntimeError outside a step."""
        context: T | None = getattr(self._thread, "context", None)
        if context is None:
            raise RuntimeError("polybatch attention was called outside a step")
        return context
