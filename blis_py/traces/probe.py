"""Content summary of a file or folder, for format detection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.csv_files import header_of, separator_of, stripped
from blis_py.files.json_files import parse_json
from blis_py.files.opening import read_text, reading
from blis_py.files.parquet_files import is_parquet, open_parquet
from blis_py.traces._json_rows import places_of

MAX_RESULT_BYTES = 1 << 28
"""Largest benchmark result, which is one JSON document: 256 MiB, a hundred thousand requests with their
gaps."""
_LONGEST_FIRST_LINE = 1 << 20
_KINDS = {
    "csv": "CSV",
    "jsonl": "JSON lines",
    "json": "one JSON object",
    "json list": "a JSON list",
    "parquet": "Parquet",
    "folder": "a folder",
    "text": "neither CSV nor JSON",
}


@dataclass(frozen=True)
class Probe:
    """Content summary of a recording.

    Attributes:
        kind: a key of `_KINDS`.
        names: columns of a table; keys of a JSON document, or of the first object in a list or of lines.
        places: the same with paths to nested values, such as `usage.prompt_tokens`.
        document: a complete JSON document; None for everything else.
        one_line: a JSON document of one line, which may also be JSON lines.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    document: Any = None
    one_line: bool = False
    places: tuple[str, ...] = ()

    @property
    def looks(self) -> str:
        """Description in words, for a file of unknown format."""
        what = _KINDS[self.kind]
        if not self.names:
            return what
        listed = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
        return f"{what} with {listed}"

    def lacks(self, kind: str, *names: str) -> str | None:
        """The column that it lacks of this kind with these names; None if it lacks none."""
        if self.kind != kind and not (kind == "jsonl" and self.one_line):
            return f"is not {_KINDS[kind]}"
        missing = [name for name in names if name not in self.names]
        return f"has no {' and no '.join(missing)}" if missing else None


def probe(path: Path) -> Probe:
    """Inspect the beginning of a file, or all of it for one JSON document.

    Raises:
        InputError: an unreadable or damaged file.
    """
    if path.is_dir():
        return Probe(path, "folder", tuple(sorted(entry.name for entry in path.iterdir())[:64]))
    if is_parquet(path):
        columns = tuple(open_parquet(path).schema_arrow.names)
        return Probe(path, "parquet", columns, places=columns)
    with reading(path) as text:
        start = text.read(_LONGEST_FIRST_LINE).lstrip()
        line, _, rest = start.partition("\n")
        goes_on = bool(rest.strip()) or bool(text.read(1))
    if start[:1] not in ("{", "["):
        return _of_csv(path, line)
    if goes_on and start[0] == "{" and len(line.strip()) > 1:
        first = _first_object(line, path)
        if first is not None:
            return Probe(path, "jsonl", tuple(first), places=tuple(places_of(first)))
    return _of_document(path, start, goes_on)


def _first_object(line: str, path: Path) -> dict[str, Any] | None:
    """The object on the first line; None if a multi-line document begins there."""
    try:
        first = parse_json(line, f"{path}:1", fix="write one object per line")
    except InputError:
        if line.rstrip().endswith("}"):
            raise
        return None
    return first if isinstance(first, dict) else None


def _of_csv(path: Path, line: str) -> Probe:
    names = tuple(stripped(header_of(path))) if separator_of(line) in line else ()
    return Probe(path, "csv" if names else "text", names, places=names)


def _of_document(path: Path, start: str, goes_on: bool) -> Probe:
    one_line = not goes_on and "\n" not in start.strip()
    text = read_text(path, most_bytes=MAX_RESULT_BYTES)
    document = parse_json(text, f"{path}:1" if one_line else path)
    if isinstance(document, list):
        first = document[0] if document and isinstance(document[0], dict) else {}
        return Probe(path, "json list", tuple(first), document, places=tuple(places_of(first)))
    if not isinstance(document, dict):
        return Probe(path, "text", ())
    return Probe(path, "json", tuple(document), document, one_line, tuple(places_of(document)))
