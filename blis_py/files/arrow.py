"""Parquet, which needs a package that not everybody has."""

from __future__ import annotations

from typing import Any

from blis_py.errors import InputError


def pyarrow() -> Any:
    """The package, with its reader and writer of Parquet.

    Raises:
        InputError: it is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        fix = "pip install pyarrow, or use .csv"
        raise InputError("Parquet needs a package that is not installed", value="pyarrow", fix=fix) from None
    return pyarrow
