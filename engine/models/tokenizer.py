"""Text to token ids and back: the checkpoint's tokenizer.json, or plain bytes where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from blis_py.errors import InputError
from blis_py.models.hf_config import ConfigFile
from engine.models.config import find_config

REPLACEMENT = "\ufffd"
"""What bytes that are not UTF-8 decode to, among them a character whose last bytes are yet to come."""

_PATIENCE_TOKENS = 16
"""So many tokens without a valid end, and the text is not merely incomplete but not UTF-8."""
_CONTEXT_TOKENS = 8
"""Tokens are decoded together with those before them as long as they are no more."""
_CHARACTER_TOKENS = 3
"""An incomplete character has at most three bytes, so at most three tokens."""


class Tokenizer(Protocol):
    """What the engine asks of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a sequence; empty when the checkpoint names none."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Ids, with whatever the tokenizer puts around a text (a beginning-of-sequence token)."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text, without special tokens; U+FFFD for bytes that are not UTF-8."""


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8; the others are special and have no text."""

    def __init__(self, vocab_size: int, eos_ids: Iterable[int] = ()) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(eos_ids)

    def encode(self, text: str) -> list[int]:
        """
        Raises:
            InputError: a byte is no token of a vocabulary below 256.
        """
        ids = list(text.encode())
        if self.vocab_size < 256 and ids and max(ids) >= self.vocab_size:
            problem = f"byte {max(ids)} is outside the vocabulary of {self.vocab_size} tokens"
            raise InputError(problem, key="prompt", fix="give token ids, or a model with a tokenizer.json")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")


class JsonTokenizer:
    """A HuggingFace tokenizer.json, run by the `tokenizers` package."""

    def __init__(self, file: Path, eos_ids: Iterable[int] = ()) -> None:
        try:
            import tokenizers
        except ImportError:
            fix = "install the package `tokenizers`"
            raise InputError("needs a package that is not installed", file=file, fix=fix) from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises nothing more specific
            fix = "download the checkpoint again"
            raise InputError("not a tokenizer", file=file, value=str(error), fix=fix) from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.eos_ids = frozenset(eos_ids)

    def vocabulary(self) -> dict[str, int]:
        """Ids by the texts that name the tokens, which are not what they decode to."""
        return dict(self._tokenizer.get_vocab())

    def described(self) -> str:
        """The tokenizer.json."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))


def load_tokenizer(model: Path | str) -> Tokenizer:
    """The tokenizer of a checkpoint folder, its config.json, or a bundled model.

    End-of-sequence tokens are those of generation_config.json, else of config.json.

    Raises:
        InputError: no such model; a damaged file.
    """
    file = find_config(model)
    config = ConfigFile.read(file)
    eos_ids = _eos_ids(file.parent / "generation_config.json") if file.name == "config.json" else frozenset()
    eos_ids = eos_ids or _ids(config)
    tokenizer = file.parent / "tokenizer.json"
    if tokenizer.is_file():
        return JsonTokenizer(tokenizer, eos_ids)
    return ByteTokenizer(config.count("vocab_size"), eos_ids)


def _eos_ids(file: Path) -> frozenset[int]:
    return _ids(ConfigFile.read(file)) if file.is_file() else frozenset()


def _ids(config: ConfigFile) -> frozenset[int]:
    """`eos_token_id`: a number, a list of them, or absent."""
    value = config.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise config.error("eos_token_id", "must be a token id or a list of them", value)
    return frozenset(ids)


class Detokenizer:
    """The text of a sequence that grows token by token.

    Text is given out once it can no longer change: a character whose bytes are spread over several tokens
    comes whole or not at all. Only the last few tokens are decoded again, so the cost per token is constant.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        """From where decoding starts: what was shown last, which gives the next tokens their left neighbour,
        on which leading spaces depend, and what follows."""
        self._shown = 0
        """So many of them have been given out."""
        self._before = ""
        """Their text."""
        self.text = ""
        """All that was given out."""

    def add(self, token: int) -> str:
        """The text this token completes, often empty or more than its own."""
        ids = self._ids
        ids.append(token)
        whole = self._tokenizer.decode(ids)
        new = whole[len(self._before) :]
        if new and not new.endswith(REPLACEMENT):
            if len(ids) > _CONTEXT_TOKENS:
                return self._show(new, len(ids))
            self._shown, self._before = len(ids), whole
            self.text += new
            return new
        if len(ids) - self._shown > _PATIENCE_TOKENS:
            end = len(ids) - _CHARACTER_TOKENS
            return self._show(self._pending(end), end)
        return ""

    def finish(self) -> str:
        """The rest; an unfinished character comes out as U+FFFD."""
        return self._show(self._pending(len(self._ids)), len(self._ids))

    def _pending(self, end: int) -> str:
        """Text of the tokens from `_shown` to `end`."""
        return self._tokenizer.decode(self._ids[:end])[len(self._before) :]

    def _show(self, new: str, end: int) -> str:
        """Give out the tokens up to `end`; what was shown before them is not needed any more."""
        del self._ids[: self._shown]
        self._shown = end - self._shown
        self._before = self._tokenizer.decode(self._ids[: self._shown])
        self.text += new
        return new
