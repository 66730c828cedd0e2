"""Translation of Python regular expressions for a compiler with different semantics."""

from __future__ import annotations

import re

from blis_py.errors import InputError

_NOT_A_NEWLINE = r"[^\n]"
_SPACES = r" \t\n\r\f\v"
_OPENINGS = {"[^]": r"[^\]", "[]": r"[\]", "[^": "[^", "[": "["}
"""Openings of a character class; an unmatched closing bracket belongs to it."""
_ESCAPED = frozenset("dDwWsStnrfvxu0")
"""Letters and digits with a meaning behind a backslash; others would stand for themselves."""
_NO_ATOM = frozenset("()|^$*+?{}")
_AT_LEAST = re.compile(r"\+|\{(\d+)(,?)\}")
_MOST_COPIES = 64


def as_compiled(regex: str, key: str = "structured_outputs.regex") -> str:
    """The equivalent expression for xgrammar.

    There a dot also matches a newline, and `\\s` more than ASCII. Repetitions of a character class are
    expanded, `a+` to `aa*`: masks for the short form take milliseconds with a large vocabulary, for the long
    one microseconds.

    Args:
        key: the configuration key named in errors.

    Raises:
        InputError: an anchor inside or an unknown escape, which xgrammar would ignore.
    """
    parts: list[str] = []
    i, is_atom = 0, False
    """Whether the latest part is one character or a class of them."""
    while i < len(regex):
        repeated = _AT_LEAST.match(regex, i) if is_atom else None
        if repeated is not None:
            parts[-1] = _spelled_out(parts[-1], repeated)
            i, is_atom = repeated.end(), False
            continue
        if regex[i] == "[":
            part, i = _class(regex, i, key)
        else:
            part, i = _single(regex, i, key)
        is_atom = part not in _NO_ATOM
        parts.append(part)
    return "".join(parts)


def _spelled_out(atom: str, repeated: re.Match[str]) -> str:
    least, open_ended = (1, True) if repeated[0] == "+" else (int(repeated[1]), bool(repeated[2]))
    if not 0 < least <= _MOST_COPIES:
        return atom + repeated[0]
    return atom * least + f"{atom}*" * open_ended


def _class(regex: str, start: int, key: str) -> tuple[str, int]:
    """The character class that begins at `start`, and its end."""
    opening = next(text for text in _OPENINGS if regex.startswith(text, start))
    parts, i = [_OPENINGS[opening]], start + len(opening)
    while i < len(regex):
        one = _escape(regex, i, key) or regex[i]
        parts.append(_SPACES if one == r"\s" else one)
        i += len(one)
        if one == "]":
            break
    return "".join(parts), i


def _single(regex: str, i: int, key: str) -> tuple[str, int]:
    """The element at `i` outside of a class, and its end."""
    one = _escape(regex, i, key) or regex[i]
    end = i + len(one)
    if (one == "^" and i > 0) or (one == "$" and end < len(regex)):
        fix = "write it only at the very beginning (^) or end ($); a whole output has to match anyway"
        raise InputError(f"has {one} in the middle", key=key, value=regex, fix=fix)
    return {r"\s": f"[{_SPACES}]", ".": _NOT_A_NEWLINE}.get(one, one), end


def _escape(regex: str, i: int, key: str) -> str:
    r"""The escape that begins at `i`, such as `\d` or `\x41`; empty if there is none."""
    if regex[i] != "\\":
        return ""
    letter = regex[i + 1 : i + 2]
    if letter.isalnum() and letter not in _ESCAPED:
        problem = f"has \\{letter}, which would be overlooked"
        raise InputError(problem, key=key, value=regex, fix="spell it out")
    return regex[i : i + 2 + {"x": 2, "u": 4}.get(letter, 0)]
