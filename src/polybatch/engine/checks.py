"""Plain values from a caller's arguments: each function converts, or raises an error that names the argument."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from numbers import Real
from typing import Any


def as_int(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """A whole number of any type (numpy's too, but no bool) as an int from ``minimum`` to ``maximum``."""
    allowed = f"an int >= {minimum}" if maximum is None else f"an int from {minimum} to {maximum}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give {allowed}") from None
    if number < minimum or (maximum is not None and number > maximum):
        raise ValueError(f"{name}={number} is not allowed; give {allowed}")
    return number


def as_float(name: str, value: Any) -> float:
    """A real number of any type (Fraction, Decimal, numpy's; no bool) as a finite float."""
    if isinstance(value, bool) or not isinstance(value, (Real, Decimal)):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; give a number")
    try:
        number = float(value)
    except OverflowError:  # the value itself may be too long to print
        raise ValueError(f"{name} is too large for a float; give a smaller number") from None
    except ValueError:  # Decimal("sNaN")
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name}={value} is not allowed; give a finite number")
    return number


def as_number(name: str, value: Any, minimum: float, maximum: float = math.inf) -> float:
    """A real number of any type as a float from ``minimum`` to ``maximum``."""
    number = as_float(name, value)
    if not minimum <= number <= maximum:
        allowed = f">= {minimum}" if maximum == math.inf else f"from {minimum} to {maximum}"
        raise ValueError(f"{name}={number} is not allowed; give a number {allowed}")
    return number


def check_text(what: str, text: str) -> None:
    """Refuse a str that no UTF-8 text decodes to, such as an argument of other bytes (Python keeps those as "\\udcff").

    what: the start of the message, such as "the prompt".
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} is not valid text: character {error.start} is the lone surrogate {text[error.start]!a}, which "
            "UTF-8 cannot encode; give UTF-8 text (bytes in another encoding must be decoded with that encoding)"
        ) from None
