"""Regular expressions as Python means them, for a compiler that takes some of it differently."""

from __future__ import annotations

from blis_py.errors import InputError

_NOT_A_NEWLINE = r"[^\n]"
_SPACES = r" \t\n\r\f\v"
_OPENINGS = {"[^]": r"[^\]", "[]": r"[\]", "[^": "[^", "[": "["}
"""Of a class of characters; a bracket that closes nothing belongs to it."""
_ESCAPED = frozenset("dDwWsStnrfvxu0")
"""Letters and digits that mean something behind a backslash; others would stand for themselves."""


def as_compiled(regex: str, key: str = "structured_outputs.regex") -> str:
    """The same for xgrammar: there a dot would also match a newline, and `\\s` more than ASCII.

    Args:
        key: what errors call it.

    Raises:
        InputError: an anchor inside or an unknown escape, which would be overlooked.
    """
    parts, i, in_class = [], 0, False
    while i < len(regex):
        one = regex[i : i + 2] if regex[i] == "\\" else regex[i]
        if one == "[" and not in_class:
            one = next(opening for opening in _OPENINGS if regex.startswith(opening, i))
            in_class = True
            parts.append(_OPENINGS[one])
        else:
            if not in_class:
                _check_anchor(one, i, regex, key)
            if one[0] == "\\" and one[1:].isalnum() and one[1] not in _ESCAPED:
                raise InputError(
                    f"has {one}, which would be overlooked", key=key, value=regex, fix="spell it out"
                )
            parts.append(_meant(one, in_class))
            in_class = in_class and one != "]"
        i += len(one)
    return "".join(parts)


def _check_anchor(one: str, place: int, regex: str, key: str) -> None:
    if (one == "^" and place > 0) or (one == "$" and place < len(regex) - 1):
        fix = "write it only at the very beginning (^) or end ($); a whole output has to match anyway"
        raise InputError(f"has {one} in the middle", key=key, value=regex, fix=fix)


def _meant(one: str, in_class: bool) -> str:
    if one == r"\s":
        return _SPACES if in_class else f"[{_SPACES}]"
    return _NOT_A_NEWLINE if one == "." and not in_class else one
