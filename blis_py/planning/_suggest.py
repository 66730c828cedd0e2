"""Combinations suggested by Optuna where there are too many to try them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from blis_py.errors import InputError
from blis_py.planning.axes import Axis
from blis_py.planning.search import Search
from blis_py.setup.from_config import DEFAULT_SEED

if TYPE_CHECKING:
    from optuna.trial import Trial

MAX_AXES = 3
"""Most axes for which all combinations are tried."""
_TOGETHER = 8
"""Combinations suggested per batch, independent of the number of workers."""


def suggested(
    axes: Sequence[Axis], search: Search, trials: int, sizes: int, lines: Mapping[int, int]
) -> list[int]:
    """Search lines of a grid as Optuna suggests them; return the lines tried, in order.

    Args:
        lines: the line of each combination of the grid that is one.

    The objective of the tree-structured Parzen estimator is the cost of the smallest passing size. For a line
    that was abandoned as too expensive it is the last size tried, with the extent of the failure.

    Raises:
        InputError: Optuna is needed and not installed.
    """
    try:
        import optuna
    except ImportError:
        fix = "pip install 'blis-py[plan]', take fewer axes, or raise --trials to try all"
        raise InputError(
            f"Optuna, which searches more than {MAX_AXES} axes, is not installed", fix=fix
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=DEFAULT_SEED))
    looked: dict[int, None] = {}
    proposed = 0
    while len(looked) < trials and proposed < 4 * trials:
        batch: list[tuple[Trial, int | None]] = []
        for _ in range(_TOGETHER):
            trial = study.ask()
            batch.append((trial, lines.get(_line(trial, axes))))
        proposed += len(batch)
        for _, line in batch:
            if line is not None and len(looked) < trials:
                looked[line] = None
        search.best(looked)
        for trial, line in batch:
            value = _value(search, line, sizes) if line is not None and line in looked else None
            if value is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, value)
    return sorted(looked)


def _line(trial: Trial, axes: Sequence[Axis]) -> int:
    """Index of a combination in the grid, whose last axis varies fastest."""
    line = 0
    for axis in axes:
        line = line * len(axis.values) + _choice(trial, axis)
    return line


def _choice(trial: Trial, axis: Axis) -> int:
    """Index of an axis value; numeric values are ordered."""
    last = len(axis.values) - 1
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values):
        return int(trial.suggest_int(axis.name, 0, last))
    chosen: int = trial.suggest_categorical(axis.name, list(range(last + 1)))
    return chosen


def _value(search: Search, line: int, sizes: int) -> float | None:
    """Objective value of a line; None if it cannot be run."""
    least, failing = search.least(line), search.most_failing(line)
    if least is not None:
        return search.cost((line, least))
    if failing is None or search.known[line, failing].refused is not None:
        return None
    far = min(max(-search.known[line, failing].slack, 0.0), 1.0)
    return search.cost((line, min(failing + 1, sizes - 1))) * (1 + far)
