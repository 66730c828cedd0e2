"""Parquet, which needs a package that not everybody has."""

from __future__ import annotations

from pathlib import Path
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


def is_parquet(path: Path) -> bool:
    """By its first bytes; what cannot be opened is none."""
    try:
        with path.open("rb") as raw:
            return raw.read(4) == b"PAR1"
    except (OSError, ValueError):
        return False  # whoever reads it as text says why


def open_parquet(path: Path) -> Any:
    """The file, to be read piece by piece.

    Raises:
        InputError: it is damaged, or the package is not installed.
    """
    pa = pyarrow()
    try:
        return pa.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"not a Parquet file: {error}", file=path, fix="copy it again") from None
