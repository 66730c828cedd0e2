"""What-if runs: the same requests simulated again, each time with one setting changed.

Nothing is estimated from the ledger. A ledger states where time went, not where it would have gone: a request
admitted earlier delays other requests. So every what-if is a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blis_py.api import Simulation
from blis_py.cluster.instances.kinds import KindOfRequests
from blis_py.config.disaggregation import ROLES
from blis_py.config.layers import did_you_mean
from blis_py.config.loader import as_dict, load_config
from blis_py.config.models import NAMES, RunConfig
from blis_py.config.spelled import as_typed
from blis_py.errors import InputError
from blis_py.files.yaml_files import parse_yaml
from blis_py.ledger.kinds import KINDS
from blis_py.ledger.question import Question, find
from blis_py.metrics.bootstrap import Change, Floats, change_at
from blis_py.metrics.distribution import Distribution
from blis_py.metrics.latencies import completed_mask, latencies
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import shown_in
from blis_py.setup.setup import Progress

_MIN_BUDGET_TOKENS = 64


@dataclass(frozen=True, slots=True)
class WhatIfChange:
    """A setting and an alternative value for it."""

    title: str
    settings: tuple[tuple[str, Any], ...]
    """Dotted keys and values."""

    def of(self, config: RunConfig) -> RunConfig:
        return load_config(overrides=[(key, key, value) for key, value in self.settings], base=config)


@dataclass(frozen=True, slots=True)
class MeasuredEffect:
    """Figures of a run: the one in question, and those that a change may worsen."""

    value_ns: float | None
    """The figure in question; None if undefined."""
    figures: dict[str, float | None] = field(default_factory=dict)
    values: Floats | None = None
    """The metric in question of every request, by row; None if a single request is in question."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change and its effect."""

    change: WhatIfChange
    measured: MeasuredEffect | None
    refused: str | None = None
    """Reason why the run is impossible."""
    figure_change: Change | None = None
    """Change of the figure in question over the requests that have it in both runs, with its interval."""

    @property
    def noise(self) -> bool:
        """Whether other requests of the same kind could turn the change around."""
        return self.figure_change is not None and self.figure_change.sure is False

    def gain(self, before: MeasuredEffect) -> float | None:
        """Relative change of the figure in question; negative = less."""
        if self.measured is None:
            return None
        return relative(before.value_ns, self.measured.value_ns)


def relative(before: float | None, after: float | None) -> float | None:
    """(after - before) / before, if defined."""
    if before is None or after is None:
        return None
    if before == 0:
        return 0.0 if after == 0 else None
    return after / before - 1


def run_all(
    simulation: Simulation,
    changes: Sequence[WhatIfChange],
    question: Question,
    before: MeasuredEffect,
    progress: Progress | None = None,
) -> list[WhatIf]:
    """Run every change separately; the best first, then those without a figure, then impossible ones."""
    tried = [
        _run(simulation.config, change, question, before, _part(progress, index, len(changes)))
        for index, change in enumerate(changes)
    ]

    def order(one: WhatIf) -> tuple[int, float]:
        gain = one.gain(before)
        return (2 if one.refused else 1 if gain is None else 0, gain or 0.0)

    return sorted(tried, key=order)


def _run(
    config: RunConfig,
    change: WhatIfChange,
    question: Question,
    before: MeasuredEffect,
    progress: Progress | None,
) -> WhatIf:
    try:
        other = Simulation.of(change.of(config))
    except InputError as error:
        return WhatIf(change, None, str(error))
    measured = measure(other.simulate(False, progress)[0], question)
    return WhatIf(change, measured, figure_change=_figure_change(before, measured, question.rank))


def _figure_change(before: MeasuredEffect, after: MeasuredEffect, rank: float) -> Change | None:
    """The change over the requests that have the metric in both runs; None if there are none."""
    if before.values is None or after.values is None or len(before.values) != len(after.values):
        return None
    both = ~np.isnan(before.values) & ~np.isnan(after.values)
    return change_at(before.values[both], after.values[both], rank) if both.any() else None


def _part(progress: Progress | None, index: int, count: int) -> Progress | None:
    """Progress of one run as a part of the whole."""
    if progress is None:
        return None
    report = progress
    return lambda ended, total: report(index * total + ended, count * total)


def measure(record: RunRecord, question: Question) -> MeasuredEffect:
    """The figures of a run."""
    columns = latencies(record)
    done = completed_mask(record)
    figures: dict[str, float | None] = {}
    for metric, statistic in shown_in("what_ifs"):
        values = columns.column(metric.name)
        distribution = Distribution.of(values[~np.isnan(values)])
        figures[metric.unit.key(f"{metric.name}_{statistic}")] = (
            distribution.stat(statistic) / metric.unit.scale if distribution.count else None
        )
    figures["completed"] = float(done.sum())
    last_ns = int(record.finish_ns[done].max()) if done.any() else 0
    first_ns = int(record.table.arrival_ns[0]) if len(record.table) else 0
    span_s = (last_ns - first_ns) / 1e9
    figures["output_tokens_per_s"] = float(record.emitted_tokens[done].sum()) / span_s if span_s > 0 else None
    metric_values = None if question.request is not None else question.values(record)
    return MeasuredEffect(_value_ns(record, question), figures, metric_values)


def _value_ns(record: RunRecord, question: Question) -> float | None:
    if question.request is None:
        return find(record, question).value_ns
    names = list(record.table.ids())
    if question.request not in names:
        return None
    value = float(latencies(record).e2e_ns[names.index(question.request)])
    return None if np.isnan(value) else value


# -- what to try -------------------------------------------------------------------------------------


def candidates(simulation: Simulation) -> list[WhatIfChange]:
    """Changes worth a run, regardless of the ledger: its largest line need not be the remedy."""
    if len(simulation.pools) > 1:
        return [*_pools(simulation.config), *_routers(simulation.config), *_orders(simulation)]
    if simulation.config.disaggregation.instances:
        return [*_sides(simulation.config), *_routers(simulation.config), *_orders(simulation)]
    common = [*_instances(simulation), *_sizes(simulation), *_orders(simulation)]
    return [
        *common,
        *(_of_kind(simulation.config, simulation.kind) if simulation.kind else _of_steps(simulation)),
    ]


def _change(config: RunConfig, key: str, value: Any) -> WhatIfChange:
    """A change, titled by the flag that makes it and the value it replaces."""
    before = value_at(config, key)
    typed = as_typed(key, value)
    if isinstance(value, bool):
        return WhatIfChange(typed, ((key, value),))
    return WhatIfChange(f"{typed} instead of {_in_words(before)}", ((key, value),))


def _sizes(simulation: Simulation) -> Iterator[WhatIfChange]:
    config, scheduler = simulation.config, simulation.scheduler
    tokens, slots = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    block = simulation.kind.block_tokens if simulation.kind else 0
    for budget in (tokens // 4, tokens * 4):
        if budget >= max(_MIN_BUDGET_TOKENS, slots * block):  # each block of a round needs its tokens
            yield _change(config, "scheduler.max_num_batched_tokens", budget)
    for many in (slots // 2, slots * 2):
        if many and many * block <= tokens:
            yield _change(config, "scheduler.max_num_seqs", many)
    if config.scheduler.num_kv_blocks is not None:
        more = config.scheduler.num_kv_blocks * 2
        yield _change(config, "scheduler.num_kv_blocks", more)


def _instances(simulation: Simulation) -> Iterator[WhatIfChange]:
    config = simulation.config
    more = config.num_instances + 1
    yield _change(config, "num_instances", more)
    yield _change(config, "tp", 2 * config.tp)
    yield from _routers(config)


def _pools(config: RunConfig) -> Iterator[WhatIfChange]:
    """One more instance in each pool."""
    for index, pool in enumerate(config.all_pools):
        title = f"{pool.count + 1} instances in pool {pool.name} instead of {pool.count}"
        if config.pools:
            more = as_dict(config)["pools"]
            more[index]["count"] = pool.count + 1
            yield WhatIfChange(title, (("pools", more),))
        else:
            side = (f"disaggregation.{ROLES[pool.name]}", pool.count + 1)
            yield WhatIfChange(title, (("num_instances", config.instances + 1), side))


def _sides(config: RunConfig) -> Iterator[WhatIfChange]:
    """One more instance on each side, all of them doing both, and a faster link."""
    counts = config.disaggregation.counts
    for name in [name for name, count in counts.items() if count]:
        more = counts | {name: counts[name] + 1}
        total = (("num_instances", sum(more.values())),) if config.num_instances > 1 else ()
        changes = tuple((f"disaggregation.{key}", more[side]) for side, key in ROLES.items())
        title = f"{more[name]} {name} instances instead of {counts[name]}"
        yield WhatIfChange(title, (("disaggregation.xpyd", None), *changes, *total))
    if config.disaggregation.bandwidth_gbps is None and config.disaggregation.link != "nvlink":
        yield _change(config, "disaggregation.link", "nvlink")


def _routers(config: RunConfig) -> Iterator[WhatIfChange]:
    if config.instances > 1 and config.routing.policy != "least-loaded":
        yield _change(config, "routing.policy", "least-loaded")


def _orders(simulation: Simulation) -> Iterator[WhatIfChange]:
    config, table = simulation.config, simulation.table
    if any("policy" in pool.scheduler for pool in config.all_pools):
        return
    policies = ["fcfs", "sjf"]
    if len(set(table.slo_class.codes.tolist())) > 1:
        policies.append("priority-fcfs")
    if (table.content >= 0).any() and config.scheduler.prefix_cache != "none":
        policies.append("lpm")
    for policy in policies:
        if policy != config.scheduler.policy:
            yield _change(config, "scheduler.policy", policy)


def _of_steps(simulation: Simulation) -> Iterator[WhatIfChange]:
    config, scheduler = simulation.config, simulation.scheduler
    chunk = 0 if scheduler.long_prefill_token_threshold else scheduler.max_num_batched_tokens // 4
    if chunk != scheduler.long_prefill_token_threshold:
        yield _change(config, "scheduler.long_prefill_token_threshold", chunk)
    yield _change(config, "scheduler.async_scheduling", not scheduler.async_scheduling)


def _of_kind(config: RunConfig, kind: KindOfRequests) -> Iterator[WhatIfChange]:
    for key, value in KINDS[kind.name].changes(kind):
        yield _change(config, key, value)


def parse_changes(texts: Sequence[str], config: RunConfig) -> list[WhatIfChange]:
    """Changes from user input: `KEY=VALUE`, several at a time with commas.

    Raises:
        InputError: not KEY=VALUE, an unknown key, or an invalid value.
    """
    changes = []
    for text in texts:
        settings = []
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            key = NAMES.get(name, NAMES.get(name.replace("-", "_"), name))
            if not equals:
                fix = "write KEY=VALUE, such as scheduler=sjf or max_num_batched_tokens=512"
                raise InputError("not a change", key="--what-if", value=text, fix=fix)
            if "." not in key and key not in as_dict(config):
                raise InputError(
                    "unknown setting", key="--what-if", value=name, fix=did_you_mean(name, NAMES)
                )
            settings.append((key, parse_yaml(value)))
        words = " ".join(as_typed(key, value) for key, value in settings)
        before = ", ".join(_in_words(value_at(config, key)) for key, _ in settings)
        change = WhatIfChange(f"{words} instead of {before}", tuple(settings))
        change.of(config)
        changes.append(change)
    return changes


def value_at(config: RunConfig, key: str) -> Any:
    """A configured value by dotted key; None if unset."""
    value: Any = as_dict(config)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _in_words(value: Any) -> str:
    if value is None:
        return "the default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
