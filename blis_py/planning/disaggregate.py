"""Disaggregate or not: all layouts of the same instances, and why the best one is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.metrics.slo import limit_and_measured
from blis_py.planning.axes import Axis, axis
from blis_py.planning.runner import Runner
from blis_py.planning.study import Base
from blis_py.planning.sweep import OK, Row
from blis_py.planning.sweep import sweep as run_sweep

FIGURES = ("ttft_ms.mean", "ttft_ms.p99", "itl_ms.mean", "itl_ms.p99", "e2e_ms.mean", "e2e_ms.p99")
"""What the winner is compared by; smaller is better."""
_NOTABLE = 0.05
"""Relative difference below which a figure is left out of the reasons."""


@dataclass(frozen=True)
class Layouts:
    """The layouts of a number of instances under one load."""

    rows: tuple[Row, ...]
    best_together: Row
    """Instances that do both."""
    best_apart: Row
    """The best of the layouts with prefill and decode apart."""

    @property
    def apart(self) -> bool:
        """Whether prefill and decode apart are better."""
        return _key(self.best_apart) < _key(self.best_together)

    @property
    def winner(self) -> Row:
        return self.best_apart if self.apart else self.best_together

    @property
    def reasons(self) -> list[str]:
        """Figures in which the winner differs from the other kind, gains first."""
        loser = self.best_together if self.apart else self.best_apart
        changes = []
        for name in FIGURES:
            won, lost = (row.outcome.figures.get(name) for row in (self.winner, loser))
            if won and lost and abs(won / lost - 1) >= _NOTABLE:
                changes.append(
                    (won / lost, f"{name.replace('_ms.', ' ')} {won:,.1f} instead of {lost:,.1f} ms")
                )
        return [text for _, text in sorted(changes)]

    def lines(self) -> list[str]:
        """The answer in text."""
        loser = self.best_together if self.apart else self.best_apart
        targets, answer = len(self.winner.outcome.slo), "yes" if self.apart else "no"
        met = f"meets {_met(self.winner)} of {targets} targets, {_name(loser)} {_met(loser)}"
        first = f"disaggregate: {answer}: {_name(self.winner)} against {_name(loser)}: {met}"
        return [first, *(f"  {reason}" for reason in self.reasons)]

    def summary(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "disaggregate": self.apart,
            "best": {"together": _name(self.best_together), "apart": _name(self.best_apart)},
            "reasons": self.reasons,
            "layouts": [row.as_dict() for row in self.rows],
        }


def layouts_of(config: RunConfig, instances: int, runner: Runner) -> Layouts:
    """Run all layouts of `instances` instances, under the load and the targets of a configuration.

    Raises:
        InputError: fewer than two instances, no targets, or no layout of one kind can be run.
    """
    if instances < 2:
        fix = "compare at least 2: one for prefill and one for decode"
        raise InputError("needs more instances", key="--disaggregate", value=instances, fix=fix)
    if not config.slo:
        raise InputError(
            "needs a target to compare by", key="--disaggregate", fix="give --slo ttft.p99=500ms"
        )
    varied: Axis = axis("xpyd", f"auto:{instances}")
    base = Base(overrides=(("num_instances", "num_instances", 1),), start=config)
    rows = run_sweep(base, [varied], runner).rows
    kinds: dict[bool, list[Row]] = {True: [], False: []}
    for row in rows:
        if row.status == OK:
            kinds["p" in _name(row)].append(row)
    for kind, found in kinds.items():
        if not found:
            reason = next((r.outcome.refused or r.outcome.failed for r in rows if r.status != OK), "")
            what = "prefill and decode apart" if kind else "instances that do both"
            raise InputError(f"no layout with {what} can be run: {reason}", key="--disaggregate")
    return Layouts(rows, best_of(kinds[False]), best_of(kinds[True]))


def best_of(rows: Sequence[Row]) -> Row:
    """The row that meets most targets; among those, the one with most room to the tightest."""
    return min(rows, key=_key)


def _key(row: Row) -> tuple[int, float]:
    """Targets missed, and the largest measured value in shares of its limit."""
    shares = []
    for each in row.outcome.slo:
        limit, measured, _ = limit_and_measured(each)
        shares.append(float("inf") if measured is None else measured / limit)
    return len(row.outcome.slo) - _met(row), max(shares, default=0.0)


def _met(row: Row) -> int:
    return sum(bool(each["met"]) for each in row.outcome.slo)


def _name(row: Row) -> str:
    return str(row.point["xpyd"])
