"""A light dataclass behaves as a generated one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any

import pytest

from blis_py.core import light_dataclass

BOTH = pytest.mark.parametrize("decorator", [dataclasses.dataclass, light_dataclass.dataclass])


@light_dataclass.dataclass(frozen=True, slots=True)
class Slotted:
    """Pickled by name, so at the top of the module."""

    a: int
    b: list[int] = field(default_factory=list, compare=False)


def point(decorator: Callable[..., Any], **options: Any) -> Any:
    @decorator(frozen=True, **options)
    class Point:
        """A point."""

        x: int
        y: int = 2
        label: str = field(default="p", repr=False, compare=False)
        twice: int = field(default=0, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.x)

    return Point


@BOTH
@pytest.mark.parametrize("slots", [False, True])
def test_values_defaults_and_comparison(decorator: Callable[..., Any], slots: bool) -> None:
    cls = point(decorator, slots=slots)
    one = cls(1, label="q")
    assert (one.x, one.y, one.label, one.twice) == (1, 2, "q", 2)
    assert repr(one).endswith("Point(x=1, y=2, twice=2)")
    assert one == cls(x=1)
    assert hash(one) == hash(cls(1))
    assert one != cls(1, 3)
    assert one != (1, 2, 2)
    assert replace(one, y=5).y == 5
    assert asdict(one) == {"x": 1, "y": 2, "label": "q", "twice": 2}
    assert [each.name for each in fields(one)] == ["x", "y", "label", "twice"]
    assert hasattr(one, "__dict__") is not slots


@BOTH
def test_a_frozen_object_does_not_change(decorator: Callable[..., Any]) -> None:
    one = point(decorator)(1)
    with pytest.raises(FrozenInstanceError):
        one.x = 2
    with pytest.raises(FrozenInstanceError):
        del one.x


@BOTH
@pytest.mark.parametrize(
    ("arguments", "given", "problem"),
    [
        ((), {}, "missing"),
        ((1, 2, "p", 4), {}, "positional arguments"),
        ((1,), {"x": 1}, "multiple values for argument 'x'"),
        ((1,), {"z": 1}, "unexpected keyword argument 'z'"),
        ((1,), {"twice": 1}, "unexpected keyword argument 'twice'"),
    ],
)
def test_wrong_arguments_are_refused(
    decorator: Callable[..., Any], arguments: tuple[Any, ...], given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        point(decorator)(*arguments, **given)


@BOTH
def test_a_family_of_keyword_only_classes(decorator: Callable[..., Any]) -> None:
    @decorator(frozen=True, kw_only=True, init=False, repr=False, eq=False)
    class Part:
        """A part."""

        b: int = 1

    @decorator(frozen=True, kw_only=True)
    class Whole(Part):
        """A whole."""

        a: int

    assert repr(Whole(a=3)).endswith("Whole(b=1, a=3)")
    assert Whole(a=3) == Whole(a=3, b=1)
    with pytest.raises(TypeError, match="positional"):
        Whole(3)


@BOTH
def test_methods_of_the_class_itself_stay(decorator: Callable[..., Any]) -> None:
    @decorator(frozen=True)
    class Own:
        """Own repr."""

        a: int = 1

        def __repr__(self) -> str:
            return "own"

    assert repr(Own()) == "own"


@BOTH
def test_an_object_that_may_change(decorator: Callable[..., Any]) -> None:
    @decorator(slots=True, eq=False, repr=False)
    class Log:
        """A log."""

        rows: list[int] = field(default_factory=list)
        end: int = 0

    log = Log()
    log.end = 4
    log.rows.append(1)
    assert (log.rows, log.end, Log().rows) == ([1], 4, [])
    assert log != Log([1], 4)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_and_pickles(copied: Callable[[Slotted], Slotted]) -> None:
    one = Slotted(1, [2])
    again = copied(one)
    assert again == one
    assert again.b == [2]
