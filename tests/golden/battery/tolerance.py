"""Texts whose numbers are compared within a tolerance: what a regression leaves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from hashlib import sha256

TOLERANCE = 2e-3
"""Relative. Coefficients of collinear features differ by 1.4e-4 between processors, step times by 1e-8."""
NUMBER = re.compile(r"(?<![\w.#])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


def with_numbers(name: str, text: str) -> Iterator[str]:
    """A line with a digest of the words between numbers, and the numbers in seven digits. Where lines end
    does not count: a number with more digits wraps its line elsewhere."""
    if text:
        words = NUMBER.sub("?", text).split()
        numbers = " ".join(f"{float(number):.7g}" for number in NUMBER.findall(text))
        yield f"{name} {len(words)} words #{sha256(' '.join(words).encode()).hexdigest()[:6]} {numbers}"


def is_near(line: str, pinned: str) -> bool:
    """Whether two such lines have the same words, and the same numbers within the tolerance."""
    words, others = line.split(), pinned.split()
    return len(words) == len(others) and all(map(_agree, words, others))


def _agree(word: str, other: str) -> bool:
    if word == other or not (NUMBER.fullmatch(word) and NUMBER.fullmatch(other)):
        return word == other
    return math.isclose(float(word), float(other), rel_tol=TOLERANCE)
