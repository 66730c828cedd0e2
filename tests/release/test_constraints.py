"""`constraints.txt` pins every package that an environment of this repository has."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
NOT_PINNED = re.compile("nvidia-|cuda-")
"""What CUDA needs, which a build of torch for the CPU has not."""


def pinned() -> set[str]:
    """Names of the packages that are pinned."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}


def declared() -> Iterator[str]:
    """Requirements of the package and of all its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield from project["dependencies"]
    for extra in project["optional-dependencies"].values():
        yield from extra


def needed() -> set[str]:
    """Names of what the requirements name, and of what that needs in turn as far as it is installed."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in declared()]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) not in seen and not NOT_PINNED.match(name):
            seen.add((name, extras))
            found.add(name)
            waiting += _in_turn(name, extras)
    return found


def _in_turn(name: str, extras: frozenset[str]) -> list[Requirement]:
    try:
        texts = requires(name) or []
    except PackageNotFoundError:
        return []
    ways = [{"extra": extra} for extra in extras] or [{"extra": ""}]
    all_of_it = map(Requirement, texts)
    return [each for each in all_of_it if not each.marker or any(map(each.marker.evaluate, ways))]


def test_every_package_that_is_needed_directly_or_in_turn_is_pinned() -> None:
    assert not needed() - pinned()
