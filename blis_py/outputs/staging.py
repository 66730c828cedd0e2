"""Atomic output of files and folders.

with Outputs() as outputs:
    folder = outputs.folder("out/chat", force=True)   # to be filled
    file = outputs.file("results.json")               # to be written
# Now both are in their places. After an error neither is, and nothing is left behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from blis_py.outputs.complete import MARKER, write_marker
from blis_py.outputs.exchange import fill_folder, replace_file, replace_folder, undisturbed
from blis_py.outputs.places import is_stream, must_stay, writable
from blis_py.outputs.unfinished import is_unfinished, make, new_name, sweep

_open: list[Outputs] = []


def abandon() -> None:
    """Remove all unfinished output, before the process ends."""
    for outputs in reversed(_open.copy()):
        outputs.clear()


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Path for writing a single file, moved into place when the block ends without an error."""
    with Outputs() as outputs:
        yield outputs.file(path)


def write_text(path: str | Path, text: str) -> None:
    """Write a whole text file, as UTF-8."""
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Staged:
    """A file or folder being written."""

    path: Path
    target: Path
    is_folder: bool
    force: bool = False

    def put(self) -> None:
        """Move it into place."""
        if not self.is_folder:
            replace_file(self.path, self.target)
        elif self.target in self.path.parents:
            fill_folder(self.path, self.target, last=MARKER)
        else:
            replace_folder(self.path, self.target)


class Outputs:
    """Context manager for atomic output; see the module."""

    def __init__(self) -> None:
        self._staged: list[_Staged] = []
        self._unfinished: list[Path] = []
        self._locks: list[int] = []
        self._made: list[Path] = []
        """Folders created by this output."""
        self._latest = ""
        """The file requested last."""

    def __enter__(self) -> Outputs:
        _open.append(self)
        return self

    def folder(self, path: str | Path, *, force: bool = False) -> Path:
        """An empty folder to fill with a result.

        Raises:
            InputError: see `writable`.
        """
        target = writable(path, force=force)
        home = target if must_stay(target) else target.parent
        staged = _Staged(self._stand(home) / target.name, target, True, force)
        staged.path.mkdir()
        self._staged.append(staged)
        return staged.path

    def file(self, path: str | Path) -> Path:
        """Path for writing a file, once.

        That is the path itself for a device or a pipe, or within a folder that is staged as a whole.
        """
        self._latest = str(path)
        target = Path(os.path.realpath(path))
        if is_stream(path) or is_unfinished(target):
            return Path(path)
        for staged in self._staged:
            if staged.is_folder and staged.target in target.parents:
                inside = staged.path / target.relative_to(staged.target)
                inside.parent.mkdir(parents=True, exist_ok=True)
                return inside
        staged = _Staged(self._stand(target.parent) / target.name, target, False)
        self._staged.append(staged)
        return staged.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except OSError as late:
            self._name_file(late)
            raise
        finally:
            self.clear()
        if isinstance(error, OSError):
            self._name_file(error)

    def _finish(self) -> None:
        for staged in self._staged:
            if staged.is_folder:
                write_marker(staged.path)
                writable(staged.target, force=staged.force)  # conditions may have changed
        with undisturbed():
            for staged in self._staged:
                staged.put()

    def _stand(self, home: Path) -> Path:
        """A new temporary folder in `home`."""
        for folder in (home, *home.parents):
            if folder.exists():
                break
            self._made.append(folder)
        home.mkdir(parents=True, exist_ok=True)
        sweep(home)
        path = new_name(home)
        self._unfinished.append(path)  # registered first: termination may happen at any time
        self._locks.append(make(path))
        return path

    def _name_file(self, error: OSError) -> None:
        """Attribute an error to the final name of the file."""
        name = str(error.filename or self._latest)
        for staged in self._staged:
            if name.startswith(str(staged.path)):
                name = f"{staged.target}{name.removeprefix(str(staged.path))}"
        error.filename = name

    def clear(self) -> None:
        """Remove unfinished output, and folders created for it."""
        for path in self._unfinished:
            shutil.rmtree(path, ignore_errors=True)
        for lock in self._locks:
            with suppress(OSError):
                os.close(lock)
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()  # fails if it is not empty
        with suppress(ValueError):
            _open.remove(self)
