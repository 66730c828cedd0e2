"""Hand-over and links between pools, from a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from blis_py.config.disaggregation import DisaggregationSection, LinkSettings
from blis_py.config.layers import did_you_mean
from blis_py.config.link_kinds import LINK_KINDS
from blis_py.config.models import RunConfig
from blis_py.errors import InputError

if TYPE_CHECKING:
    from blis_py.cluster.topology import Disaggregation, Link
    from blis_py.setup.pools import PoolSetup

_OWN = ("blis", "sglang", "trtllm")
"""Engines, and presets of their releases, with a hand-over of that name."""
_TRANSLATED = ("handoff", "decider", "lease_ns")
"""Cluster data of the hand-over that are settings in another form."""
_OF_A_LINK = tuple(each.name for each in fields(LinkSettings))


def handoff_of(config: RunConfig) -> str:
    """Hand-over as given, else that of the engine whose preset the run has."""
    engine = config.engine.partition("-")[0]
    return config.disaggregation.handoff or (engine if engine in _OWN else "vllm")


def disaggregation(config: RunConfig) -> Disaggregation | None:
    """The hand-over as cluster data; None if no pool is for prefill or decode alone."""
    if not config.is_disaggregated:
        return None
    from blis_py.cluster.instances.handoffs import HANDOFFS, handoff
    from blis_py.cluster.routing.deciders import decider
    from blis_py.cluster.topology import Disaggregation

    given, name = config.disaggregation, handoff_of(config)
    data = Disaggregation(
        handoff=name,
        decider=given.decider or ("never" if name == "blis" else "always"),
        lease_ns=None if given.lease_s is None else round(given.lease_s * 1e9),
        **{f.name: getattr(given, f.name) for f in fields(Disaggregation) if f.name not in _TRANSLATED},
    )
    decider(data.decider), handoff(data)  # refuse names that lead nowhere, and orders it does not have
    if name in HANDOFFS:
        _check_effects(config, name)
    return data


def _check_effects(config: RunConfig, name: str) -> None:
    """Refuse settings of another hand-over.

    Raises:
        InputError: a setting has no effect.
    """
    given = config.disaggregation
    if name != "vllm" and given.lease_s is not None:
        _no_effect("lease_s", given.lease_s, name)
    if name != "sglang" and given.overlap in ("chunk", "layer"):
        problem = f"needs blocks of the decode instance during the prefill, and {name} takes them after it"
        fix = "drop it, or use --handoff sglang"
        raise InputError(problem, key="disaggregation.overlap", value=given.overlap, fix=fix)
    if name != "sglang" and given.reserved_decode_tokens != DisaggregationSection.reserved_decode_tokens:
        _no_effect("reserved_decode_tokens", given.reserved_decode_tokens, name)
    if not name.startswith("trtllm") and given.max_tokens_in_buffer is not None:
        _no_effect("max_tokens_in_buffer", given.max_tokens_in_buffer, name)
    if name != "vllm" and given.load_failure_policy != DisaggregationSection.load_failure_policy:
        _no_effect("load_failure_policy", given.load_failure_policy, name)


def _no_effect(key: str, value: Any, name: str) -> None:
    raise InputError(f"has no effect with {name}", key=f"disaggregation.{key}", value=value, fix="drop it")


def links(config: RunConfig, pools: Sequence[PoolSetup]) -> tuple[Link, ...]:
    """A link from every pool that prefills to every pool that decodes the same model.

    Raises:
        InputError: a model has instances of one role only, or a link is given on which no KV goes.
    """
    own = {_ends(link): link for link in config.links}
    ends = [
        (one.name, other.name)
        for one in pools
        for other in pools
        if one.section.role != "decode" and other.section.role != "prefill" and _same_model(one, other)
    ]
    _require_both_sides(pools, ends)
    for pair in own:
        if pair not in ends:
            fix = "use one of " + ", ".join(f"{one} to {other}" for one, other in ends)
            raise InputError("no KV goes this way", key="links", value=" to ".join(pair), fix=fix)
    return tuple(_link(config, pair, own.get(pair, {})) for pair in ends)


def _require_both_sides(pools: Sequence[PoolSetup], ends: Sequence[tuple[str, str]]) -> None:
    served = {name for pair in ends for name in pair}
    for pool in pools:
        if pool.name not in served:
            other = "decode" if pool.section.role == "prefill" else "prefill"
            model = pool.config.model or pool.config.model_config
            problem = f"no instance of {model} serves {other}"
            raise InputError(problem, key="pools", value=pool.name, fix=f"add a pool of role {other}")


def _same_model(one: PoolSetup, other: PoolSetup) -> bool:
    ours, theirs = one.config, other.config
    return (ours.model, ours.model_config) == (theirs.model, theirs.model_config)


def _ends(link: Mapping[str, Any]) -> tuple[str, str]:
    for key in link:
        if key not in (*_OF_A_LINK, "from", "to"):
            fix = did_you_mean(str(key), (*_OF_A_LINK, "from", "to"))
            raise InputError("unknown key", key=f"links.{key}", fix=fix)
    if "from" not in link or "to" not in link:
        raise InputError("must name two pools", key="links", value=dict(link), fix="write from: … to: …")
    return str(link["from"]), str(link["to"])


def _link(config: RunConfig, ends: tuple[str, str], own: Mapping[str, Any]) -> Link:
    from blis_py.cluster.topology import Link

    given, name = config.disaggregation, handoff_of(config)
    stated = {key: own.get(key, getattr(given, key)) for key in _OF_A_LINK}
    kind_name = stated["link"] or ("blis" if name == "blis" else "ndr400")
    if kind_name not in LINK_KINDS:
        fix = did_you_mean(str(kind_name), LINK_KINDS)
        raise InputError("unknown link", key="links.link", value=kind_name, fix=fix)
    kind = LINK_KINDS[kind_name]
    for key in ("bandwidth_gbps", "latency_ms", "efficiency", "node_gbps"):
        value = stated[key]
        if value is not None and (not isinstance(value, int | float) or value < 0):
            raise InputError("must be a number of at least 0", key=f"links.{key}", value=value)
    latency_ms = kind.latency_ms if stated["latency_ms"] is None else stated["latency_ms"]
    usual = kind.efficiency if stated["bandwidth_gbps"] is None else 1.0
    return Link(
        from_pool=ends[0],
        to_pool=ends[1],
        latency_ns=round(latency_ms * 1e6),
        bandwidth_gbps=stated["bandwidth_gbps"] or kind.gbps,
        efficiency=usual if stated["efficiency"] is None else stated["efficiency"],
        node_gbps=stated["node_gbps"],
        gpus_per_node=stated["gpus_per_node"],
        contended=name != "blis" if stated["contended"] is None else bool(stated["contended"]),
    )


def link_notes(config: RunConfig, pools: Sequence[PoolSetup]) -> list[str]:
    """Notes for the user on the hand-over."""
    if not config.is_disaggregated:
        return []
    notes, between = [], links(config, pools)
    for link in between:
        gbps = (link.bandwidth_gbps or 0) * link.efficiency
        line = f"{link.from_pool} to {link.to_pool}: {gbps:g} GB/s per GPU after {link.latency_ns / 1e6:g} ms"
        notes.append(line)
    tp_of = {pool.name: pool.config.tp for pool in pools}
    tps = [{tp_of[link.from_pool], tp_of[link.to_pool]} for link in between]
    unlike = set[int]().union(*(both for both in tps if len(both) > 1))
    if unlike:
        notes.append(
            f"KV goes between TP {' and '.join(map(str, sorted(unlike)))}: priced as the bytes that the "
            "receiving side holds, its conversion as nothing"
        )
    return notes
