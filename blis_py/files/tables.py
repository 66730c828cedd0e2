"""Tables with arbitrary columns, such as those of sweeps: numeric columns as numbers, others as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.errors import InputError
from blis_py.files.cells import meant
from blis_py.files.csv_files import csv_rows, stripped
from blis_py.files.opening import reading
from blis_py.files.packages import data_frame, extra

if TYPE_CHECKING:
    import pandas as pd

_FIX = "give the table of a sweep, with a row for each run"


def read_table(path: str | Path) -> pd.DataFrame:
    """A CSV or Parquet file as a data frame; empty cells are NaN, or None in a text column.

    Raises:
        InputError: an unreadable file, no rows, or rows of another width than the header.
    """
    path = Path(path)
    frame = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    if not len(frame):
        raise InputError("has no rows", file=path, fix=_FIX)
    return frame


def _csv(path: Path) -> pd.DataFrame:
    cells: list[list[str]] = []
    names: list[str] = []
    with reading(path) as text:
        for line, row in csv_rows(text, path):
            if not names:
                names = stripped(row)
                if len(set(names)) < len(names):
                    raise InputError("column given twice", file=path, fix="keep one")
            elif len(row) != len(names):
                problem = f"a row of {len(row)} cells under {len(names)} columns"
                raise InputError(problem, file=f"{path}:{line}", fix=_FIX)
            else:
                cells.append(row)
    columns = zip(*cells, strict=True) if cells else ([] for _ in names)
    return data_frame({name: _column(list(values)) for name, values in zip(names, columns, strict=True)})


def _column(cells: list[str]) -> list[Any]:
    try:
        return [float(cell) if cell else float("nan") for cell in cells]
    except ValueError:
        return [meant(cell) if cell else None for cell in cells]


def _parquet(path: Path) -> pd.DataFrame:
    with extra("frames", "a table of runs"):
        import pandas as pd

    try:
        return pd.read_parquet(path)
    except ImportError:
        raise InputError("needs pyarrow", file=path, fix="install it, or give the table as CSV") from None
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except (OSError, ValueError) as error:
        raise InputError(f"is no Parquet: {error}", file=path, fix=_FIX) from None
