"""Suggestions by Optuna: parameters with and without an order, and the value of an abandoned line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.planning import _suggest
from blis_py.planning.axes import Axis
from blis_py.planning.goal import Judgement, Requirement


def test_optuna_suggests_as_many_lines_as_may_be_tried() -> None:
    pytest.importorskip("optuna")
    axes = [Axis(f"a{number}", "", (0, 1)) for number in range(5)]
    requested: list[int] = []
    search: Any = SimpleNamespace(
        best=lambda looked: requested.append(len(looked)),
        least=lambda line: 0,
        most_failing=lambda line: None,
        cost=lambda probe: float(probe[0]),
    )
    for trials_ in (1, 8, 11):
        lines = _suggest.suggested(axes, search, trials_, 1, {each: each for each in range(32)})
        assert len(lines) == trials_
        assert lines == sorted(set(lines))
        assert set(lines) <= set(range(32))
    same = [Axis("a", "", (0,))]
    assert _suggest.suggested(same, search, 9, 1, {0: 0}) == [0]


def test_combinations_without_a_line_are_not_tried() -> None:
    pytest.importorskip("optuna")
    axes = [Axis(f"a{number}", "", (0, 1)) for number in range(5)]
    search: Any = SimpleNamespace(
        best=lambda looked: None,
        least=lambda line: 0,
        most_failing=lambda line: None,
        cost=lambda probe: float(probe[0]),
    )
    lines = {each: each // 2 for each in range(0, 32, 2)}
    assert set(_suggest.suggested(axes, search, 20, 1, lines)) <= set(range(16))


class Suggestions:
    """In place of a trial of Optuna: which kind of parameter was suggested, within which bounds."""

    def suggest_int(self, name: str, least: int, most: int) -> int:
        self.kind: tuple[Any, ...] = ("int", name, least, most)
        return most

    def suggest_categorical(self, name: str, choices: list[int]) -> int:
        self.kind = ("categorical", name, choices)
        return choices[0]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, 2, 4.5), ("int", "x", 0, 2)),
        (("a", "b"), ("categorical", "x", [0, 1])),
        ((True, False), ("categorical", "x", [0, 1])),
        ((1, "auto"), ("categorical", "x", [0, 1])),
    ],
)
def test_numbers_have_an_order_and_words_and_switches_have_none(
    values: tuple[Any, ...], kind: tuple[Any, ...]
) -> None:
    trial: Any = Suggestions()
    chosen = _suggest._choice(trial, Axis("x", "x", values))
    assert trial.kind == kind
    assert chosen == (len(values) - 1 if kind[0] == "int" else 0)


@pytest.mark.parametrize(
    ("least", "failing", "slack", "value"),
    [
        (2, 1, -0.5, 3.0),  # the cost of the size that holds
        (None, 1, -0.5, 3.0 * 1.5),  # that of the next size, half more as a target is missed by half
        (None, 1, -7.0, 3.0 * 2),
        (None, 1, 0.2, 3.0),
        (None, 3, -0.5, 4.0 * 1.5),  # there is no larger size
        (None, None, 0.0, None),
    ],
)
def test_an_abandoned_combination_costs_the_next_size_and_more_the_farther_it_misses(
    least: int | None, failing: int | None, slack: float, value: float | None
) -> None:
    missed = Judgement(False, (Requirement("ttft.p99", 1.0, 1 - slack, "ms", slack),))
    search: Any = SimpleNamespace(
        least=lambda _: least,
        most_failing=lambda _: failing,
        known={(0, failing): missed},
        cost=lambda probe: float(probe[1] + 1),
    )
    assert _suggest._value(search, 0, 4) == value


def test_a_combination_that_cannot_be_run_has_no_value() -> None:
    search: Any = SimpleNamespace(
        least=lambda _: None, most_failing=lambda _: 0, known={(0, 0): Judgement(False, refused="too large")}
    )
    assert _suggest._value(search, 0, 4) is None
