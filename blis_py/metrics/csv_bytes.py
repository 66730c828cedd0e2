"""CSV text from columns without a Python object per field.

Each column becomes a matrix of characters, one row per line and 0 for no character; the matrices are placed
side by side and the zeros removed. Printing a million requests field by field would take longer than
simulating them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.requests.table import Ints, Labels

Characters = NDArray[np.uint8]

_SPECIAL = (",", '"', "\n", "\r")


def lines(columns: Sequence[Characters]) -> bytes:
    """The CSV lines of these columns, in order."""
    rows = len(columns[0])
    pieces = []
    for index, column in enumerate(columns):
        end = "," if index < len(columns) - 1 else "\n"
        pieces += [column, np.full((rows, 1), ord(end), dtype=np.uint8)]
    page = np.concatenate(pieces, axis=1)
    text: Characters = page[page != 0]
    return bytes(text)


def header(names: Iterable[str]) -> bytes:
    """The header line."""
    return (",".join(names) + "\n").encode()


def numbers(values: NDArray[Any]) -> Characters:
    """Whole numbers, empty where negative; or floats as Python prints them."""
    if values.dtype.kind == "f":
        return texts([repr(value) for value in values.tolist()])
    digits = _digits(values, len(str(int(values.max(initial=0)))))
    leading = ~np.logical_or.accumulate(digits > 0, axis=1)
    leading[:, -1] = False
    digits += ord("0")
    digits[leading | (values < 0)[:, None]] = 0
    return digits


def fixed_point(values: Ints, decimals: int) -> Characters:
    """`values / 10**decimals` with all decimals, empty where negative."""
    point = np.full((len(values), 1), ord("."), dtype=np.uint8)
    whole, rest = np.divmod(values, 10**decimals)
    text = np.concatenate((numbers(whole), point, _digits(rest, decimals) + ord("0")), axis=1)
    text[values < 0] = 0
    return text.astype(np.uint8, copy=False)


def labels(column: Labels) -> Characters:
    """The label of every row."""
    return texts(column.names)[column.codes]


def texts(values: Sequence[str]) -> Characters:
    """Arbitrary strings, quoted where CSV requires it."""
    together = "".join(values)
    if any(mark in together for mark in _SPECIAL):
        values = [_quoted(value) for value in values]
    packed = np.array([value.encode() for value in values], dtype="S")
    return packed.view(np.uint8).reshape(len(values), packed.dtype.itemsize)


def _quoted(value: str) -> str:
    doubled = value.replace('"', '""')
    return f'"{doubled}"' if any(mark in value for mark in _SPECIAL) else value


def _digits(values: Ints, width: int) -> Characters:
    digits = np.empty((len(values), width), dtype=np.uint8)
    for place in reversed(range(width)):
        values, digits[:, place] = np.divmod(values, 10)
    return digits
