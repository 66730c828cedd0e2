"""Tokenizers of a simulated fleet: a model's own, or one that counts about four characters a token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from blis_py.errors import InputError
from blis_py.traces.tokens import load_tokenizer

_PIECE = re.compile(r"\s?[^\s]{1,6}|\s")
_BYTES = 256
_VOCABULARY = 1 << 20
"""Most pieces that get an id of their own; further ones are spelt in bytes."""


class FleetTokenizer(Protocol):
    """Text to ids and back."""

    longest: int
    """Most characters of a token."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_text(self, token: int) -> str: ...


class PieceTokenizer:
    """Words of up to six characters, with the space before them; ids in the order of first use.

    Every text is restored exactly by `decode`.
    """

    longest = 7

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        for piece in _PIECE.findall(text):
            known = self._ids.get(piece)
            if known is not None:
                ids.append(known)
            elif len(self._pieces) < _VOCABULARY:
                self._ids[piece] = number = _BYTES + len(self._pieces)
                self._pieces.append(piece)
                ids.append(number)
            else:
                ids += piece.encode("utf-8", "surrogatepass")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.token_text(token) for token in ids)

    def token_text(self, token: int) -> str:
        """The text of one token; unknown ones are named."""
        number = token - _BYTES
        if number < 0:
            return chr(token)
        return self._pieces[number] if number < len(self._pieces) else f"<{token}>"


class ModelTokenizer:
    """The `tokenizer.json` of a model.

    Args:
        path: the file, or its folder.

    Raises:
        InputError: no such file, or the package tokenizers is missing.
    """

    def __init__(self, path: str | Path) -> None:
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        if not file.is_file():
            raise InputError("no such file", key="--tokenizer", value=str(path), fix="give a tokenizer.json")
        self._of = load_tokenizer(file, "--tokenizer")
        self.longest = max(map(len, self._of.get_vocab()), default=1)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._of.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._of.decode(list(ids), skip_special_tokens=False))

    def token_text(self, token: int) -> str:
        return str(self._of.id_to_token(token) or "")
