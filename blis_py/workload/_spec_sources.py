"""Clients and cohorts of a workload spec as sources of requests, with cross-checks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from blis_py.errors import InputError
from blis_py.workload import arrivals
from blis_py.workload._spec_client import ClientSpec, CohortSpec
from blis_py.workload._spec_lifecycle import WindowSpec, changing, check_windows
from blis_py.workload.profile import Profile

SLO_CLASSES = ("critical", "standard", "batch", "sheddable", "background", "")
RENAMED_CLASSES = {"realtime": "critical", "interactive": "standard"}


@dataclass(frozen=True, slots=True)
class SpecSource:
    """A client, or the members of a cohort, which are identical except for names and prefix groups."""

    spec: ClientSpec
    key: str
    """Dotted key in the file."""
    names: tuple[str, ...]
    prefix_groups: tuple[str, ...]
    windows: tuple[WindowSpec, ...] = ()
    profile: Profile | None = None

    @property
    def has_arrivals(self) -> bool:
        return self.spec.arrival is not None or _all_have(self.windows, "arrival")

    @property
    def has_rate(self) -> bool:
        return self.spec.rate_fraction is not None or _all_have(self.windows, "trace_rate")

    @property
    def scale_key(self) -> str | None:
        """Key of the arrivals that fix the source's rate."""
        for number, window in enumerate(self.windows):
            if window.arrival is not None and window.arrival.scale is not None:
                return f"{self.key}.lifecycle.windows[{number}].arrival.scale"
        fixed = self.spec.arrival is not None and self.spec.arrival.scale is not None
        return f"{self.key}.arrival.scale" if fixed else None


def sources_of(clients: Sequence[ClientSpec], cohorts: Sequence[CohortSpec]) -> list[SpecSource]:
    return [
        *(_client(client, index) for index, client in enumerate(clients)),
        *(_cohort(cohort, index) for index, cohort in enumerate(cohorts)),
    ]


def _client(client: ClientSpec, index: int) -> SpecSource:
    windows = client.lifecycle.windows if client.lifecycle else ()
    name = client.id or f"client_{index}"
    return SpecSource(client, f"clients[{index}]", (name,), (client.prefix_group,), windows)


def _cohort(cohort: CohortSpec, index: int) -> SpecSource:
    numbers = range(cohort.population)
    windows, spike = cohort.lifecycle.windows if cohort.lifecycle else (), cohort.spike
    if spike is not None:
        end_us = spike.start_time_us + spike.duration_us
        windows = (WindowSpec(start_us=spike.start_time_us, end_us=end_us, trace_rate=spike.trace_rate),)
    name, group = cohort.id or f"cohort_{index}", cohort.prefix_group
    apart = group and cohort.prefix_sharing == "per_member"
    return SpecSource(
        cohort,
        f"cohorts[{index}]",
        tuple(f"{name}-{number}" for number in numbers),
        tuple(f"{group}-{number}" if apart else group for number in numbers),
        windows,
        changing(cohort.diurnal, cohort.drain),
    )


def _all_have(windows: Sequence[WindowSpec], name: str) -> bool:
    return bool(windows) and all(getattr(window, name) is not None for window in windows)


def check_sources(
    sources: Sequence[SpecSource], path: Path | None, rate: float | None, classes: Collection[str]
) -> None:
    """
    Raises:
        InputError: duplicate names, unknown classes, or contradictory settings.
    """
    if not sources:
        raise InputError("at least one client is needed", file=path, key="clients")
    if rate is not None:
        arrivals.check_rate(rate, key="--rate")
        if not any(source.has_arrivals for source in sources):
            fix = "drop it, or give clients a rate_fraction"
            raise InputError("no client has a rate", file=path, key="--rate", value=rate, fix=fix)
    names: set[str] = set()
    for source in sources:
        for name in source.names:
            if name in names:
                problem, key = "two clients have this id", f"{source.key}.id"
                raise InputError(problem, file=path, key=key, value=name, fix="rename one")
            names.add(name)
        _check_source(source, path, classes)
        if rate is not None and source.scale_key is not None:
            raise InputError(
                "fixes the client's rate, so --rate cannot set it",
                file=path,
                key=source.scale_key,
                fix="use cv instead of shape and scale",
            )


def _check_source(source: SpecSource, path: Path | None, classes: Collection[str]) -> None:
    client, key = source.spec, source.key
    if client.prefixes and client.prefix_group:
        raise InputError(
            "a client has a prefix group or prefixes, not both",
            file=path,
            key=f"{key}.prefix_group",
            value=client.prefix_group,
            fix="make the group's prefix the first of the prefixes",
        )
    _check_class(client.slo_class, f"{key}.slo_class", path, classes)
    _check_loop(source, path)
    _check_times(source, path)
    given = [(client.arrival, f"{key}.arrival")]
    for number, window in enumerate(source.windows):
        given.append((window.arrival, f"{key}.lifecycle.windows[{number}].arrival"))
    for arrival, where in given:
        if arrival is not None:
            law = (arrival.process, arrival.cv, arrival.shape, arrival.scale)
            arrivals.check(*law, key=where, file=path)


def _check_times(source: SpecSource, path: Path | None) -> None:
    """Allow at most one timing of a source; a source without a rate must send at all times."""
    client, key = source.spec, source.key
    names = [name for name in ("lifecycle", "diurnal", "spike", "drain") if getattr(client, name, None)]
    if len(names) > 1:
        problem = f"{names[0]} says already when these clients send"
        raise InputError(problem, file=path, key=f"{key}.{names[1]}", fix="make two cohorts of them")
    if names and not source.has_arrivals:
        problem, fix = "changes a rate, and these clients have none", "give rate_fraction and arrival"
        raise InputError(problem, file=path, key=f"{key}.{names[0]}", fix=fix)
    if client.lifecycle is not None:
        check_windows(source.windows, f"{key}.lifecycle.windows", path)
    if client.concurrency and any(window.overrides for window in source.windows):
        problem = "is one limit, and windows that say more than when are clients by themselves"
        fix = "leave start_us and end_us alone in the windows, or make several clients of them"
        raise InputError(problem, file=path, key=f"{key}.concurrency", value=client.concurrency, fix=fix)


def _check_loop(source: SpecSource, path: Path | None) -> None:
    """Require a rate with its arrival process, or a number of requests in progress, or both."""

    client, key = source.spec, source.key

    def refuse(problem: str, name: str, fix: str) -> InputError:
        return InputError(problem, file=path, key=f"{key}.{name}", fix=fix)

    given = (source.has_rate, source.has_arrivals)
    if given[0] != given[1] or not (given[1] or client.concurrency):
        missing, other = ("arrival", "rate_fraction") if given[0] else ("rate_fraction", "arrival")
        alone = f", or remove {other}: the client has a concurrency" if client.concurrency else ""
        raise refuse("missing key", missing, f"add it{alone}")
    if client.think_time_us and not client.concurrency:
        raise refuse("means a closed loop", "think_time_us", "say how many are under way with concurrency")
    plan = None if client.reasoning is None else client.reasoning.multi_turn
    if client.concurrency and plan is not None and plan.single_session:
        name, fix = "reasoning.multi_turn.single_session", "remove one of the two"
        raise refuse("is one session, and concurrency runs one after another", name, fix)
    if client.concurrency and client.closed_loop is False:
        raise refuse("contradicts concurrency", "closed_loop", "remove one of the two")


def _check_class(name: str, key: str, path: Path | None, classes: Collection[str]) -> None:
    if name in SLO_CLASSES or name in classes:
        return
    known = ", ".join(filter(None, SLO_CLASSES))
    renamed = RENAMED_CLASSES.get(name)
    priority = f"give it a priority: --set admission.slo_priorities.{name}=N"
    fix = f"use one of {known}, leave it out, or {priority}"
    if renamed:
        fix = f"it is called {renamed} since version 2, or {priority}"
    raise InputError("unknown SLO class", file=path, key=key, value=name, fix=fix)


def prefix_lengths(sources: Sequence[SpecSource], path: Path | None) -> dict[str, int]:
    """Prefix length of each group, as given by its clients, which must agree.

    Raises:
        InputError: contradictory lengths, or a length without a group.
    """
    lengths_of: dict[str, int] = {}
    for source in sources:
        key, tokens = f"{source.key}.prefix_length", source.spec.prefix_length
        if tokens and not source.spec.prefix_group:
            raise InputError("a prefix is shared in a group", file=path, key=key, fix="give prefix_group too")
        for group in dict.fromkeys(source.prefix_groups):
            if tokens and lengths_of.setdefault(group, tokens) != tokens:
                problem = f"the group's prefix has {lengths_of[group]} tokens already"
                fix = "use one length, or another group"
                raise InputError(problem, file=path, key=key, value=tokens, fix=fix)
    return lengths_of
