"""Which combinations to look at where there are too many to look at all: what Optuna suggests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from blis_py.errors import InputError
from blis_py.planning.axes import Axis
from blis_py.planning.search import Search
from blis_py.setup.demand import DEFAULT_SEED

if TYPE_CHECKING:
    from optuna.trial import Trial

MOST_AXES = 3
"""Up to so many axes everything is looked at."""
_TOGETHER = 8
"""Combinations between two looks at what the others came to, however many workers there are."""


def suggested(axes: Sequence[Axis], search: Search, trials: int, sizes: int) -> list[int]:
    """The lines of a grid that were looked at, in order; the search knows what became of them.

    A tree-structured Parzen estimator is told what the cheapest number of instances costs that holds. Of a
    line that was given up, since it cannot be the cheapest, it is told what was tried last, and how far
    that was from holding.
    """
    try:
        import optuna
    except ImportError:
        fix = "pip install 'blis-py[plan]', take fewer axes, or raise --trials to look at all"
        raise InputError(
            f"Optuna, which searches more than {MOST_AXES} axes, is not installed", fix=fix
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=DEFAULT_SEED))
    where = {indices: line for line, indices in enumerate(product(*(range(len(a.values)) for a in axes)))}
    looked: dict[int, None] = {}
    asked = 0
    while len(looked) < trials and asked < 4 * trials:
        batch: list[tuple[Trial, int]] = []
        for _ in range(_TOGETHER):
            trial = study.ask()
            batch.append((trial, where[tuple(_choice(trial, each) for each in axes)]))
        asked += len(batch)
        for _, line in batch:
            if len(looked) < trials:
                looked[line] = None
        search.best(looked)
        for trial, line in batch:
            value = _value(search, line, sizes) if line in looked else None
            if value is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, value)
    return sorted(looked)


def _choice(trial: Trial, axis: Axis) -> int:
    """The index of a value; those of numbers are in order."""
    last = len(axis.values) - 1
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values):
        return int(trial.suggest_int(axis.name, 0, last))
    chosen: int = trial.suggest_categorical(axis.name, list(range(last + 1)))
    return chosen


def _value(search: Search, line: int, sizes: int) -> float | None:
    """What to tell of a line; None where it cannot be run."""
    least, failing = search.least(line), search.most_failing(line)
    if least is not None:
        return search.cost((line, least))
    if failing is None or search.known[line, failing].refused is not None:
        return None
    far = min(max(-search.known[line, failing].slack, 0.0), 1.0)
    return search.cost((line, min(failing + 1, sizes - 1))) * (1 + far)
