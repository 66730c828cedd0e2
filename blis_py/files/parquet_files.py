"""Parquet, which needs an optional package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blis_py.errors import InputError


def pyarrow() -> Any:
    """The pyarrow package, with its Parquet reader and writer.

    Raises:
        InputError: not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        fix = "pip install pyarrow, or use .csv"
        raise InputError("Parquet needs a package that is not installed", value="pyarrow", fix=fix) from None
    return pyarrow


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its first bytes; False if unreadable."""
    try:
        with path.open("rb") as raw:
            return raw.read(4) == b"PAR1"
    except (OSError, ValueError):
        return False  # the text reader reports the reason


def open_parquet(path: Path) -> Any:
    """An open Parquet file, to be read in batches.

    Raises:
        InputError: a damaged file, or a missing package.
    """
    pa = pyarrow()
    try:
        return pa.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"not a Parquet file: {error}", file=path, fix="copy it again") from None
