"""Rows of kernels that were compiled and found right, kept in a file, so that a long check goes on where it
ended."""

from __future__ import annotations

import hashlib
import importlib
import json
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.kernels.dry_run import Variant
    from engine.kernels.gpu import Gpu


class CheckedRows:
    """Rows by digest of the variant, of its sources and of the compiler; one JSON object a line.

    Lines that are no rows, such as the last one of a process that was killed, are ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._rows = path, dict[str, str]()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                self._rows[entry["digest"]] = entry["row"]
        if text and not text.endswith("\n"):
            self._write("\n")

    def get(self, digest: str) -> str | None:
        """The row of an earlier check."""
        return self._rows.get(digest)

    def add(self, digest: str, row: str) -> None:
        """Keep a row, at once."""
        self._rows[digest] = row
        self._write(json.dumps({"digest": digest, "row": row}) + "\n")

    def _write(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)


def digest(variant: Variant, gpu: Gpu) -> str:
    """Digest of a variant and of what its machine code and the promise on it follow from.

    Triton's key covers the source of the kernel and of all it calls. Which tiles a launch takes decides only
    whether there is such a variant, so a change of that keeps the rows of the others.
    """
    promised = importlib.import_module(variant.module).promise(variant.kernel, variant.constants)
    facts = (version("triton"), gpu, variant.data, variant.function().cache_key, promised)
    return hashlib.sha256(repr(facts).encode()).hexdigest()
