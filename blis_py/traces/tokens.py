"""Token counts of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.traces.reading import Reading

CHARACTERS_PER_TOKEN = 4
"""Characters per token of English text, a vendors' rule of thumb used without a tokenizer."""


class Tokens:
    """Token counter: a model's tokenizer or, without one, an estimate from the text length."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._tokenizer = None if reading.tokenizer is None else _load(reading)

    def count(self, text: str) -> int:
        if self._tokenizer is None:
            return -(-len(text) // CHARACTERS_PER_TOKEN)
        return len(self._tokenizer.encode(text).ids)

    def note(self) -> None:
        """Add a note if lengths are estimates."""
        if self._tokenizer is None:
            guess = f"the file holds text: lengths are guessed at {CHARACTERS_PER_TOKEN} characters a token"
            self._reading.note(f"{guess}; count them with --trace-tokenizer FILE")


def _load(reading: Reading) -> Any:
    assert reading.tokenizer is not None
    return load_tokenizer(reading.tokenizer, "--trace-tokenizer")


def load_tokenizer(path: str | Path, flag: str) -> Any:
    """The tokenizer of a `tokenizer.json`.

    Raises:
        InputError: not a tokenizer, or the package is missing.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fix = "pip install tokenizers"
        raise InputError("needs the tokenizers package", key=flag, value=str(path), fix=fix) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        fix = "give the tokenizer.json of a model"
        raise InputError(f"not a tokenizer: {error}", file=path, key=flag, fix=fix) from None
