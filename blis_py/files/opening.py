"""Opening of text files: plain or gzip, of bounded size, without blocking on pipes."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from blis_py.errors import InputError

LONGEST_LINE_BYTES = 1 << 24
"""Longest line of a table, in bytes; the block keys of a prompt of a million tokens take half a MiB."""
MAX_TEXT_BYTES = 1 << 26
"""Largest file read as a whole, YAML and JSON."""
MAX_EXPANSION = 200
"""Largest expansion factor of a gzip file; tables of measurements reach 5 to 30."""
ALWAYS_EXPANDED_BYTES = 1 << 26
"""Expanded size allowed for any gzip file."""
_CHUNK_BYTES = 1 << 16
_NOT_WAITING = getattr(os, "O_NONBLOCK", 0)


@contextmanager
def reading(path: Path) -> Iterator[IO[str]]:
    """A table as text, decompressed if it is gzip (whatever its name).

    Raises:
        InputError: not readable, not a regular file, damaged, not text, a line that is too long, or excessive
        expansion.
    """
    with _input_errors(path), _opened(path) as raw:
        size = os.fstat(raw.fileno())
        if not stat.S_ISREG(size.st_mode) and not stat.S_ISDIR(size.st_mode):
            fix = "write it to a file first: it is read more than once"
            raise InputError("not an ordinary file", file=path, fix=fix)
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        most = max(ALWAYS_EXPANDED_BYTES, MAX_EXPANSION * size.st_size) if packed else None
        lines: Any = _Lines(source, path, most)  # the buffer has no name, which TextIOWrapper accepts
        yield io.TextIOWrapper(lines, encoding="utf-8-sig", newline="")


def read_text(path: Path, *, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """Content of a file, which may be a pipe, and gzip.

    Raises:
        InputError: not readable, damaged, not text, or too large.
    """
    with _input_errors(path), _opened(path) as raw:
        start = raw.read(most_bytes + 1)
        if start[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(start)) as packed:
                start = packed.read(most_bytes + 1)
        if len(start) > most_bytes:
            raise InputError(f"larger than {most_bytes >> 20} MiB", file=path, fix="is it the right file?")
        return io.TextIOWrapper(io.BytesIO(start), encoding="utf-8-sig").read()


def _opened(path: Path) -> IO[bytes]:
    """Open a file without blocking: a named pipe without a writer reads as empty."""

    def without_waiting(name: str, flags: int) -> int:
        opened = os.open(name, flags | _NOT_WAITING)
        if _NOT_WAITING:
            os.set_blocking(opened, True)
        return opened

    try:
        return open(path, "rb", opener=without_waiting)
    except ValueError as error:  # a NUL, or an unpaired surrogate
        raise InputError(f"not a path: {error}", file=path, fix="check the path") from None


@contextmanager
def _input_errors(path: Path) -> Iterator[None]:
    """Translate file errors to InputError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"damaged gzip file: {error}", file=path, fix="copy it again") from error
    except UnicodeDecodeError as error:
        problem, fix = "not a UTF-8 text file", "save it as UTF-8, if it is the right file"
        raise InputError(problem, file=path, fix=fix) from error
    except OSError as error:
        raise InputError(error.strerror or str(error), file=path, fix="check the path") from error


class _Lines(io.BufferedIOBase):
    """Reader that limits the length of lines and of the whole.

    Chunks have a size that suits decompressor and decoder, not the small one that text readers request.
    """

    def __init__(self, source: IO[bytes], path: Path, most_bytes: int | None) -> None:
        super().__init__()
        self._source, self._path = source, path
        self._most_bytes = most_bytes
        self._bytes = self._line_bytes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        return b"".join(iter(self.read1, b""))

    def read1(self, size: int = -1) -> bytes:
        piece = self._source.read(_CHUNK_BYTES)
        count = len(piece)
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        self._line_bytes = self._line_bytes + count if end < 0 else count - end - 1
        self._bytes += count
        if self._line_bytes > LONGEST_LINE_BYTES:
            problem = f"a line of more than {LONGEST_LINE_BYTES >> 20} MiB"
            raise InputError(problem, file=self._path, fix="is it the right file?")
        if self._most_bytes is not None and self._bytes > self._most_bytes:
            problem = f"expands to more than {MAX_EXPANSION} times its size"
            raise InputError(problem, file=self._path, fix="decompress it yourself if it is what you want")
        return piece
