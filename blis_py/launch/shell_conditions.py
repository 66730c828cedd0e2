"""Conditions of shell scripts: `[ … ]`, `[[ … ]]`, `(( … ))`; None = cannot be decided."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from blis_py.launch.open_text import is_open
from blis_py.launch.shell_expand import ShellVariables
from blis_py.launch.shell_lexer import ShellOperator, ShellWord, Token

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_TEXTS = ("=", "==", "!=", "=~")


def both(first: bool | None, second: bool | None) -> bool | None:
    """`and` where None = unknown."""
    return False if first is False or second is False else None if None in (first, second) else True


def opposite(value: bool | None) -> bool | None:
    """`not` where None = unknown."""
    return None if value is None else not value


def of_words(words: Sequence[str], unset: Sequence[bool]) -> bool | None:
    """The outcome of `[ … ]`, of words that are expanded.

    Args:
        unset: of each word, whether it is a variable that is not set.
    """
    words, unset = list(words), list(unset)
    for link in ("-o", "||", "-a", "&&"):
        if link in words:
            at = words.index(link)
            sides = of_words(words[:at], unset[:at]), of_words(words[at + 1 :], unset[at + 1 :])
            if link in ("-a", "&&"):
                return both(*sides)
            return opposite(both(opposite(sides[0]), opposite(sides[1])))
    if words[:1] == ["!"]:
        return opposite(of_words(words[1:], unset[1:]))
    if words[:1] == ["("] and words[-1:] == [")"]:
        return of_words(words[1:-1], unset[1:-1])
    if len(words) == 2 and words[0] in ("-z", "-n", "-v"):
        empty = unset[1] or words[1] == ""
        if words[0] == "-v" or (is_open(words[1]) and not unset[1]):
            return None
        return empty if words[0] == "-z" else not empty
    if len(words) == 1:
        return None if is_open(words[0]) else words[0] != ""
    return _compared(words) if len(words) == 3 else None


def _compared(words: Sequence[str]) -> bool | None:
    left, sign, right = words
    if is_open(left) or is_open(right):
        return None
    if sign in _NUMBERS:
        whole = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)
        if not (whole.fullmatch(left) and whole.fullmatch(right)):
            return None
        return _NUMBERS[sign](int(left), int(right))
    if sign == "=~":
        try:
            return re.search(right, left) is not None
        except (re.error, OverflowError, RecursionError):
            return None
    if sign in _TEXTS:
        same = left == right or fnmatchcase(left, right)
        return same if sign != "!=" else not same
    return None


def of_tokens(tokens: Sequence[Token], variables: ShellVariables) -> bool | None:
    """The outcome of `[[ … ]]` or `(( … ))`."""
    first = tokens[0] if tokens else None
    if isinstance(first, ShellOperator) and first.text.startswith("(("):
        value = variables.number(first.text[2:-2])
        return None if value is None else bool(value)
    words, unset = expanded(tokens, variables)
    return of_words(words, unset)


def expanded(tokens: Sequence[Token], variables: ShellVariables) -> tuple[list[str], list[bool]]:
    """The words of a condition, and of each whether it is a variable that is not set."""
    words, unset = [], []
    for token in tokens:
        if isinstance(token, ShellWord):
            text = variables.joined(token.pieces)
            words.append(text)
            unset.append(re.fullmatch("\ue000\\$\\w+\ue001", text) is not None)
        elif token.text.strip():
            words.append(token.text)
            unset.append(False)
    return words, unset
