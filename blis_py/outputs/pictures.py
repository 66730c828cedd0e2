"""Addition of pictures to an existing result."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from blis_py.files.json_files import load_object
from blis_py.files.paths import exists
from blis_py.outputs.complete import MARKER
from blis_py.outputs.staging import write_text


def belong(folder: Path, pictures: Iterable[Path]) -> None:
    """Register files as part of the result, so that it can be replaced with them.

    A folder that predates the marker gets none.
    """
    marker = folder / MARKER
    if not exists(marker):
        return
    stated = load_object(marker)
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in pictures}
    stated["files"] = dict(sorted({**stated.get("files", {}), **sizes}.items()))
    write_text(marker, json.dumps(stated, indent=1, ensure_ascii=False) + "\n")
