"""Several workload specs as one: the clients of all of them, each at the rate it has by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.workload.spec import load_spec

_OWN = ("aggregate_rate", "clients", "num_requests", "seed", "version", "goodput_slo_targets")
"""Keys that are merged; any other has to say the same in every spec that has it."""

Tell = Callable[[str], None]


def composed(
    paths: Sequence[Path], names: Sequence[str], scales: Sequence[float], tell: Tell
) -> dict[str, Any]:
    """The spec that has the clients of all of them.

    Rates add up; each client keeps its own, times the scale of its spec. Clients and prefix groups get the
    name of their spec in front. Requests are counted only if all specs do.

    Args:
        names: of the specs, distinct.
        tell: told what could not be kept.

    Raises:
        InputError: one of them is wrong, or two of them contradict one another.
    """
    specs = []
    for path in paths:
        load_spec(path)
        specs.append(load_mapping(path))
    clients: list[dict[str, Any]] = []
    for spec, name, scale in zip(specs, names, scales, strict=True):
        clients += _clients(spec, name, spec["aggregate_rate"] * scale)
    rate = sum(client["rate_fraction"] for client in clients)
    for client in clients:
        client["rate_fraction"] /= rate
    whole = {"version": "2", "seed": specs[0].get("seed", 42), "aggregate_rate": rate}
    whole |= _count(specs, scales, tell) | _common(specs, paths) | _targets(specs, paths)
    return whole | {"clients": clients}


def _clients(spec: dict[str, Any], name: str, rate: float) -> list[dict[str, Any]]:
    """Its clients, with requests per second in the place of shares."""
    total = sum(client.get("rate_fraction", 0) for client in spec["clients"])
    own = []
    for index, client in enumerate(spec["clients"]):
        client = dict(client)
        client["id"] = f"{name}/{client.get('id', f'client-{index}')}"
        if client.get("prefix_group"):
            client["prefix_group"] = f"{name}/{client['prefix_group']}"
        own.append(client | {"rate_fraction": rate * client.get("rate_fraction", 0) / total})
    return own


def _count(specs: Sequence[dict[str, Any]], scales: Sequence[float], tell: Tell) -> dict[str, Any]:
    counts = [spec.get("num_requests") or 0 for spec in specs]
    if all(counts):
        # for as long as the first to run out lasts, every client has its rate
        rates = [spec["aggregate_rate"] * scale for spec, scale in zip(specs, scales, strict=True)]
        lasts_s = [count / rate for count, rate in zip(counts, rates, strict=True)]
        shortest_s = min(lasts_s)
        if max(lasts_s) > shortest_s * 1.001:
            each = ", ".join(f"{seconds:.0f} s" for seconds in lasts_s)
            tell(f"by their num_requests the specs last {each}; together they last {shortest_s:.0f} s")
        return {"num_requests": max(round(shortest_s * sum(rates)), 1)}
    if any(counts):
        tell("num_requests is left out: not every spec has it")
    return {}


def _common(specs: Sequence[dict[str, Any]], paths: Sequence[Path]) -> dict[str, Any]:
    """What all of them say alike."""
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
