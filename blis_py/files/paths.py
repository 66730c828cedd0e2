"""Paths given by users, possibly invalid: too long, with a NUL, of an unknown user."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from blis_py.errors import InputError


def is_file(path: str | Path) -> bool:
    """Whether a file exists; False for an invalid path."""
    return os.path.isfile(path)


def is_folder(path: str | Path) -> bool:
    return os.path.isdir(path)


def exists(path: str | Path) -> bool:
    return os.path.exists(path)


def check_text(text: str, *, key: str | None = None) -> str:
    """The text, if it can be written to any file and shown in any message.

    Raises:
        InputError: a NUL, or unpaired surrogates (bytes that are not UTF-8).
    """
    if "\0" in text:
        raise InputError("must not contain a NUL", key=key, value=text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("is not valid UTF-8 text", key=key, value=text) from None
    return text


def check_name(text: str, *, key: str | None = None) -> str:
    """The text, if it is a valid file name.

    Raises:
        InputError: empty, too long for the file system, or see `check_text`.
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
        InputError: not a valid path.
    """
    try:
        return Path(check_text(str(text), key=key)).expanduser()
    except RuntimeError as error:
        raise InputError(str(error), key=key, value=str(text), fix="write the path in full") from None


def full_path(text: str | Path, *, key: str | None = None) -> Path:
    """The absolute path; it need not exist.

    Raises:
        InputError: not a valid path.
    """
    try:
        return expanded(text, key=key).resolve()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(reason, key=key, value=str(text), fix="check the path") from None
