"""What every command shares: errors and warnings as one readable line, and the exit codes.

0 done; 2 the user can fix it (one line, no traceback); 130 interrupted. Anything else is a fault of ours: a traceback.
"""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from polybatch.errors import PolybatchError

USER_ERROR = 2
INTERRUPTED = 130
_USER_ERRORS = (PolybatchError, ValueError, TypeError, OSError)
_DEVELOPER_WARNINGS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


class OneLineErrors(TyperGroup):
    """A group of commands that reports what the user can fix in one line on stderr."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; in standalone mode (the default) end the process with the exit code."""
        with one_line_warnings():
            code = self._run(args, prog_name, complete_var, windows_expand_args, extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        windows_expand_args: bool,
        extra: dict[str, Any],
    ) -> int:
        try:
            result = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except KeyboardInterrupt:
            result = INTERRUPTED
        except Exception as error:
            if not is_user_error(error):
                raise
            typer.echo(f"error: {_message(error)}", err=True)
            return USER_ERROR
        if result == INTERRUPTED:
            typer.echo("interrupted", err=True)
        return result if isinstance(result, int) else 0


def is_user_error(error: Exception) -> bool:
    """Whether one line is the right answer: a bad option, or an error that our API raises for bad input."""
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return False
    return isinstance(error, _USER_ERRORS) or hasattr(error, "format_message")  # of the option parser's exceptions


def warn(message: str) -> None:
    """Show ``message`` as a warning, once; a Python warning with the same text is then not shown again."""
    warnings.warn(message, stacklevel=2)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show each Python warning once, as ``warning: <text>`` on stderr; those for developers only on request (-W)."""
    seen: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(str(message).split())
        if text not in seen:
            seen.add(text)
            typer.echo(f"warning: {text}", err=True)

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("always")
            for category in _DEVELOPER_WARNINGS:
                warnings.simplefilter("ignore", category)
        warnings.showwarning = show
        yield


def _message(error: Exception) -> str:
    format_message = getattr(error, "format_message", None)
    text = str(format_message() if format_message is not None else error).strip()
    return text or type(error).__name__
