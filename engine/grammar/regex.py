"""Regular expressions as Python means them, for a compiler that takes some of it differently."""

from __future__ import annotations

from blis_py.errors import InputError

_NOT_A_NEWLINE = r"[^\n]"
_OPENINGS = {"[^]": r"[^\]", "[]": r"[\]", "[^": "[^", "[": "["}
"""Of a class of characters; a bracket that closes nothing belongs to it."""


def as_compiled(regex: str) -> str:
    """The same for xgrammar: there a dot would also match a newline.

    Raises:
        InputError: an anchor inside, which would be overlooked.
    """
    parts, i, in_class = [], 0, False
    while i < len(regex):
        one = regex[i : i + 2] if regex[i] == "\\" else regex[i]
        if one == "[" and not in_class:
            in_class = True
            opening = next(text for text in _OPENINGS if regex.startswith(text, i))
            parts.append(_OPENINGS[opening])
            i += len(opening)
            continue
        if in_class:
            in_class = one != "]"
        elif one in "^$" and i != (0 if one == "^" else len(regex) - 1):
            fix = "write it only at the very beginning (^) or end ($); a whole output has to match anyway"
            raise InputError(f"has {one} in the middle", key="structured_outputs.regex", value=regex, fix=fix)
        parts.append(_NOT_A_NEWLINE if one == "." and not in_class else one)
        i += len(one)
    return "".join(parts)
