"""Text files of traces: plain, or gzip by their name. (`blis_py.files` reads them.)"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from blis_py.files.cells import all_harmless
from blis_py.outputs.staging import replacing
from blis_py.requests.table import Labels

ROWS_AT_ONCE = 1 << 15


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """Context of a text file to write, gzip if its name ends in .gz; the same text gives the same bytes.

    The file is moved into place when complete.
    """
    with ExitStack() as stack:
        target: Any = stack.enter_context(stack.enter_context(replacing(path)).open("wb"))
        if path.suffix == ".gz":
            target = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(target, encoding="utf-8", newline=""))


Cells = Callable[[slice], Iterable[Any]]
"""The values of a column in some rows."""


def text_cells(labels: Labels) -> Cells:
    """Texts of a column that no spreadsheet takes for formulas."""
    written = Labels(labels.codes, tuple(all_harmless(labels.names)))
    return lambda piece: written.take(piece).to_list()
