"""Text to token ids and back: the checkpoint's tokenizer.json, or plain bytes without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from blis_py.errors import InputError
from blis_py.models.hf_config import ConfigFile
from engine.models.config import find_config

REPLACEMENT = "\ufffd"
"""Decoding of bytes that are not UTF-8, including an incomplete character."""

_PATIENCE_TOKENS = 16
"""Number of undecodable tokens after which the text is considered invalid rather than incomplete."""
_CONTEXT_TOKENS = 8
"""Most tokens decoded together with their predecessors."""
_CHARACTER_TOKENS = 3
"""An incomplete character has at most three bytes, so at most three tokens."""


class Tokenizer(Protocol):
    """The tokenizer interface of the engine."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a sequence; empty when the checkpoint names none."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids, including (with `special`) any special tokens the tokenizer adds, such as a beginning of
        sequence."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text, without special tokens; U+FFFD for bytes that are not UTF-8."""


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8; the others are special and have no text."""

    def __init__(self, vocab_size: int, eos_ids: Iterable[int] = ()) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frozenset(eos_ids)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The bytes of a text as ids.

        Raises:
            InputError: a byte that is not in a vocabulary below 256.
        """
        ids = list(text.encode())
        if self.vocab_size < 256 and ids and max(ids) >= self.vocab_size:
            problem = f"byte {max(ids)} is outside the vocabulary of {self.vocab_size} tokens"
            raise InputError(problem, key="prompt", fix="give token ids, or a model with a tokenizer.json")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")


class JsonTokenizer:
    """A HuggingFace tokenizer.json, run by the `tokenizers` package.

    Raises:
        InputError: the package is not installed, or the file is no tokenizer.
    """

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
        """Ids by token name, which differs from the decoded text."""
        return dict(self._tokenizer.get_vocab())

    def described(self) -> str:
        """Content of tokenizer.json."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

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

    Text is emitted once it can no longer change: a character spread over several tokens is emitted whole or
    not at all. Only the last few tokens are decoded again, so the cost per token is constant.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        """Decoding window: the tokens emitted last, as left context, which leading spaces depend on, and
        those pending."""
        self._shown = 0
        """Number of tokens in the window whose text was emitted."""
        self._before = ""
        """Text of those tokens."""
        self.text = ""
        """All text emitted so far."""

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
        """The remaining text; an incomplete character becomes U+FFFD."""
        return self._show(self._pending(len(self._ids)), len(self._ids))

    def _pending(self, end: int) -> str:
        """Text of the tokens from `_shown` to `end`."""
        return self._tokenizer.decode(self._ids[:end])[len(self._before) :]

    def _show(self, new: str, end: int) -> str:
        """Emit the tokens up to `end` and drop the earlier ones from the window."""
        del self._ids[: self._shown]
        self._shown = end - self._shown
        self._before = self._tokenizer.decode(self._ids[: self._shown])
        self.text += new
        return new
