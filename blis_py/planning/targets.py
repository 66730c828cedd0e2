"""Targets that apply to no request of a workload, refused before anything is simulated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.metrics.groups import classes_of, rows_by_name
from blis_py.metrics.slo import limits_of, parse_slos
from blis_py.planning.goal import ALL_REQUESTS, Goal, without_requests, without_targets
from blis_py.planning.worker import cached_demand
from blis_py.setup.demand import Demand
from blis_py.setup.setup import stated_targets, targets_of


def check_targets(goal: Goal, configs: Iterable[RunConfig]) -> None:
    """Check the targets of candidates against their requests, once for each workload.

    Raises:
        InputError: a limit on a class without requests, or a share of requests without goodput targets.
    """
    checked = set()
    for config in configs:
        slos = [(each.text, each.slo_class) for each in parse_slos(config.slo) if each.slo_class]
        load = replace(config.workload, rate=None, concurrency=None)
        alike = repr((load, slos, config.goodput, config.goodput_by_class))
        if alike in checked or not (slos or goal.attainment):
            continue
        checked.add(alike)
        try:
            requested = cached_demand(config)
        except InputError:
            continue  # the reason why this candidate cannot be run
        _check(goal, config, requested, slos)


def _check(goal: Goal, config: RunConfig, requested: Demand, slos: Iterable[tuple[str, str]]) -> None:
    targets, rows = (
        targets_of(config, requested, stated_targets(config)),
        rows_by_name(classes_of(requested.table)),
    )
    for text, slo_class in slos:
        if slo_class not in rows:
            raise without_requests(text)
    rows[ALL_REQUESTS] = np.arange(len(requested.table))
    limits = limits_of(requested.table, targets).values()
    for name in goal.attainment:
        if not any(limit[rows.get(name, [])].any() for limit in limits):
            raise without_targets(name)
