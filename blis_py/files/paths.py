"""Paths as users write them, which may be none at all: too long, with a NUL, of a user who does not exist."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from blis_py.errors import InputError


def is_file(path: str | Path) -> bool:
    """Whether a file is there; no path is too odd to ask."""
    return os.path.isfile(path)


def is_folder(path: str | Path) -> bool:
    return os.path.isdir(path)


def exists(path: str | Path) -> bool:
    return os.path.exists(path)


def check_text(text: str, *, key: str | None = None, file: str | Path | None = None) -> str:
    """The text, if it can be written to any file and named in any message.

    Raises:
        InputError: it has a NUL, or half a pair of surrogates: bytes that are no UTF-8.
    """
    if "\0" in text:
        raise InputError("must not contain a NUL", file=file, key=key, value=text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("is not valid UTF-8 text", file=file, key=key, value=text) from None
    return text


def check_name(text: str, *, key: str | None = None) -> str:
    """The text, if something of that name can be written.

    Raises:
        InputError: it is empty or longer than the file system permits, or see `check_text`.
    """
    if not check_text(text, key=key):
        raise InputError("must not be empty", key=key, fix="write . for the folder you are in")
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError("is too long a name", key=key, value=text, fix="shorten it") from None
    return text


def expanded(text: str | Path, *, key: str | None = None) -> Path:
    """The path, with `~` resolved.

    Raises:
        InputError: it cannot be a path.
    """
    try:
        return Path(check_text(str(text), key=key)).expanduser()
    except RuntimeError as error:
        raise InputError(str(error), key=key, value=str(text), fix="write the path in full") from None


def full_path(text: str | Path, *, key: str | None = None) -> Path:
    """The same from the root of the file system; nothing need be there.

    Raises:
        InputError: it cannot be a path.
    """
    try:
        return expanded(text, key=key).resolve()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(reason, key=key, value=str(text), fix="check the path") from None
