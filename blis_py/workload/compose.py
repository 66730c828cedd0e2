"""Merge of several workload specs: all their clients, each at its own rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.workload.spec import load_spec, spec_values

_OWN = ("aggregate_rate", "clients", "cohorts", "num_requests", "seed", "version", "goodput_slo_targets")
"""Merged keys; any other must be equal in all specs that have it."""

AddNote = Callable[[str], None]


def composed(
    paths: Sequence[Path], names: Sequence[str], scales: Sequence[float], add_note: AddNote
) -> dict[str, Any]:
    """The spec with the clients of all specs.

    Rates add up; each client keeps its own, multiplied by the scale of its spec. Names of clients and prefix
    groups are prefixed with that of their spec. The result has a number of requests only if all specs have
    one.

    Args:
        names: distinct names of the specs.
        add_note: callback for notes on what could not be preserved.

    Raises:
        InputError: an invalid spec, or contradictory ones.
    """
    specs = []
    for path in paths:
        load_spec(path)
        specs.append(spec_values(path))
        _require_shares(specs[-1], path)
    sources: dict[str, list[dict[str, Any]]] = {"clients": [], "cohorts": []}
    for spec, name, scale in zip(specs, names, scales, strict=True):
        for kind, own in _sources(spec, name, spec["aggregate_rate"] * scale).items():
            sources[kind] += own
    all_sources = [source for own in sources.values() for source in own]
    rate = sum(source["rate_fraction"] for source in all_sources)
    for source in all_sources:
        source["rate_fraction"] /= rate
    whole = {"version": "2", "seed": specs[0].get("seed", 42), "aggregate_rate": rate}
    whole |= _count(specs, scales, add_note) | _common(specs, paths) | _targets(specs, paths)
    return whole | {kind: own for kind, own in sources.items() if own}


def _require_shares(spec: dict[str, Any], path: Path) -> None:
    """Require a single, constant rate, without which the shares of several specs cannot be combined."""

    def refuse(key: str, problem: str) -> InputError:
        fix = "simulate it by itself, or write it as shares of an aggregate_rate"
        return InputError(f"cannot be composed: {problem}", file=path, key=key, fix=fix)

    if not spec.get("aggregate_rate"):
        raise refuse("aggregate_rate", "it has no rate to add to that of others")
    for kind, index, source in _each(spec):
        key = f"{kind}[{index}]"
        if not source.get("rate_fraction"):
            raise refuse(f"{key}.rate_fraction", "it has no share of the rate")
        if source.get("lifecycle") or source.get("spike"):
            raise refuse(key, "its share is among the clients active at the same time")


def _each(spec: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    kinds = ("clients", "cohorts")
    return [(kind, index, each) for kind in kinds for index, each in enumerate(spec.get(kind) or ())]


def _sources(spec: dict[str, Any], name: str, rate: float) -> dict[str, list[dict[str, Any]]]:
    """Clients and cohorts of a spec, with requests per second in place of shares."""
    total = sum(source["rate_fraction"] for _, _, source in _each(spec))
    own: dict[str, list[dict[str, Any]]] = {"clients": [], "cohorts": []}
    for kind, index, source in _each(spec):
        source = source | {"rate_fraction": rate * source["rate_fraction"] / total}
        source["id"] = f"{name}/{source.get('id', f'{kind[:-1]}-{index}')}"
        if source.get("prefix_group"):
            source["prefix_group"] = f"{name}/{source['prefix_group']}"
        own[kind].append(source)
    return own


def _count(specs: Sequence[dict[str, Any]], scales: Sequence[float], add_note: AddNote) -> dict[str, Any]:
    counts = [spec.get("num_requests") or 0 for spec in specs]
    if all(counts):
        # Every client keeps its rate until the first spec runs out.
        rates = [spec["aggregate_rate"] * scale for spec, scale in zip(specs, scales, strict=True)]
        lasts_s = [count / rate for count, rate in zip(counts, rates, strict=True)]
        shortest_s = min(lasts_s)
        if max(lasts_s) > shortest_s * 1.001:
            each = ", ".join(f"{seconds:.0f} s" for seconds in lasts_s)
            add_note(f"by their num_requests the specs last {each}; together they last {shortest_s:.0f} s")
        return {"num_requests": max(round(shortest_s * sum(rates)), 1)}
    if any(counts):
        add_note("num_requests is left out: not every spec has it")
    return {}


def _common(specs: Sequence[dict[str, Any]], paths: Sequence[Path]) -> dict[str, Any]:
    """Keys on which all specs agree."""
    common: dict[str, Any] = {}
    for spec, path in zip(specs, paths, strict=True):
        for key, value in spec.items():
            if key in _OWN:
                continue
            if key in common and common[key] != value:
                fix = "make them say the same, or leave it out of all but one"
                raise InputError("the specs contradict one another", file=path, key=key, value=value, fix=fix)
            common[key] = value
    return common


def _targets(specs: Sequence[dict[str, Any]], paths: Sequence[Path]) -> dict[str, Any]:
    targets: dict[str, Any] = {}
    for spec, path in zip(specs, paths, strict=True):
        for slo_class, own in (spec.get("goodput_slo_targets") or {}).items():
            if targets.setdefault(slo_class, own) != own:
                key = f"goodput_slo_targets.{slo_class}"
                fix = "make them say the same"
                raise InputError("the specs contradict one another", file=path, key=key, value=own, fix=fix)
    return {"goodput_slo_targets": targets} if targets else {}
