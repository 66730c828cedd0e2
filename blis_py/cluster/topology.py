"""A cluster as data: pools of identical instances, the links between pools, and their ingress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from math import inf
from typing import TYPE_CHECKING, Any, Self

from blis_py.cluster.handoff_settings import GPUS_PER_NODE, AfterLease, PairChoice, Transfers
from blis_py.core.checks import check_scheduler_config
from blis_py.core.light_dataclass import dataclass
from blis_py.errors import InputError

if TYPE_CHECKING:
    from blis_py.cluster.admission_settings import AdmissionSettings
    from blis_py.cluster.flow_settings import FlowSettings
    from blis_py.core.config import SchedulerConfig
    from blis_py.core.emission import Emission
    from blis_py.core.kv_source import KVSource
    from blis_py.latency.base import FrontendDelays, LatencyModel

DEFAULT_POOL = "default"
ROLES = ("both", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """The configuration of an instance: scheduler and KV blocks, step times, GPUs, and price."""

    scheduler: SchedulerConfig
    """Scheduler and memory: `num_kv_blocks` of `block_size` tokens."""
    latency: LatencyModel
    model: str = ""
    """Name of the model it serves; empty = unnamed."""
    kv_source: KVSource | None = None
    """Source of KV outside the instance; None if there is none."""
    emission: Emission | None = None
    """Supplier of decode steps with several tokens; None = every step emits one."""
    kv_block_bytes: int = 0
    """Keys and values of one block on all of its GPUs, replicated heads included; 0 = unknown."""
    kv_layers: int = 1
    """Layers that have keys and values, computed in equal parts of a step."""
    kernel_compile_ns: int = 0
    """Time of compiling the kernels of prompts that go on, at their first use; 0 = they are there."""
    gpus: int = 1
    price_per_hour: float | None = None
    """Price of the whole instance, in any currency; None = unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool of identical instances."""

    spec: InstanceSpec
    name: str = DEFAULT_POOL
    role: str = "both"
    """Phases of a request that its instances serve: `both`, `prefill` or `decode`."""
    count: int = 1
    """Instances at the beginning of a run."""
    weight: float = 1.0
    """Capacity of an instance in relation to those of other pools, for routing policies that heed load or
    take turns."""
    models: frozenset[str] | None = None
    """Model names that requests may use for the model of its instances; None = one model serves all."""
    routing_policy: str | None = None
    """Routing policy among its instances behind a link; None = that of the ingress."""
    routing_scorers: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A path for KV blocks from the instances of one pool to those of another."""

    from_pool: str
    to_pool: str
    latency_ns: int = 0
    """Set-up of a transfer, before its bytes flow."""
    bandwidth_gbps: float | None = None
    """GB/s of each GPU, in each direction; None = unlimited."""
    efficiency: float = 1.0
    """Share of the bandwidths that a transfer attains."""
    node_gbps: float | None = None
    """GB/s of a node, in each direction; None = as much as its GPUs have together."""
    gpus_per_node: int = GPUS_PER_NODE
    contended: bool = True
    """Whether transfers at the same time share the bandwidth; otherwise each has all of it."""
    one_sided: bool = False
    """Whether only the bandwidth of the sending end counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """The stages before an instance: admission, flow control, routing."""

    admission_policy: str = "always-admit"
    admission: AdmissionSettings | None = None
    """Settings of the admission policy; None = its defaults."""
    flow_control: FlowSettings | None = None
    """Settings of the gateway queue; None if there is none."""
    routing_policy: str = "round-robin"
    routing_scorers: Mapping[str, float] | None = None
    """Weights by name, of the `weighted` policy; None = its default profile."""
    admission_latency_ns: int = 0
    """Time from an arrival to the admission decision."""
    routing_latency_ns: int = 0
    """Time from there, or from the gateway queue, to the dispatch."""
    snapshot_refresh_ns: int = 50_000_000
    """Age up to which the router uses a report of an instance's load."""
    cache_delay_ns: int = 50_000_000
    """The same for the contents of prefix caches."""
    slo_priorities: Mapping[str, int] | None = None
    """Cluster-side priorities of SLO classes that replace the defaults."""
    served_models: Collection[str] | None = None
    """Model names that instances serve: a request for another model is rejected at routing, one without a
    model goes to any instance. None = every name."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _HandoffNames:
    handoff: str = "vllm"
    """Name of the hand-over, see `blis_py.cluster.instances.handoffs.HANDOFFS`."""
    decider: str = "always"
    """Which requests, see `blis_py.cluster.routing.deciders.DECIDERS`."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _LeaseTime:
    lease_ns: int | None = None
    """Time for which a prefill instance keeps KV whose fetch has not begun; None = as long as it takes."""


@dataclass(frozen=True, kw_only=True)
class Disaggregation(AfterLease, _LeaseTime, Transfers, PairChoice, _HandoffNames):
    """Prefill and decode of a request on different instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Pools of instances behind one ingress.

    Raises:
        InputError: no instances, two pools of one name, an unknown role, an invalid setting of a scheduler, a
            link from or to nowhere, pools with different KV block sizes or front-end delays.
    """

    pools: tuple[Pool, ...]
    links: tuple[Link, ...] = ()
    ingress: Ingress = field(default_factory=Ingress)
    disaggregation: Disaggregation | None = None
    """None = an outlet hands requests over, or none are."""

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        for pool in self.pools:
            _check_pool(pool, names)
        if not sum(pool.count for pool in self.pools):
            raise InputError("must be at least 1", key="num_instances", value=0)
        for link in self.links:
            for end in (link.from_pool, link.to_pool):
                if end not in names:
                    raise InputError("no such pool", key="links", value=end, fix=f"use {', '.join(names)}")
        _alike([pool.spec.scheduler.block_size for pool in self.pools], "scheduler.block_size")
        _alike([pool.spec.latency.frontend for pool in self.pools], "frontend_ms")

    @classmethod
    def of(
        cls,
        *,
        scheduler: SchedulerConfig,
        latency: LatencyModel,
        num_instances: int = 1,
        gpus: int = 1,
        **ingress: Any,
    ) -> Self:
        """A cluster with a single pool of identical instances.

        Args:
            ingress: fields of `Ingress`.
        """
        spec = InstanceSpec(scheduler=scheduler, latency=latency, gpus=gpus)
        return cls(pools=(Pool(spec=spec, count=num_instances),), ingress=Ingress(**ingress))

    def pool(self, name: str) -> Pool:
        """The pool of that name.

        Raises:
            InputError: there is no pool of that name.
        """
        for pool in self.pools:
            if pool.name == name:
                return pool
        fix = f"use one of {', '.join(pool.name for pool in self.pools)}"
        raise InputError("no such pool", key="pool", value=name, fix=fix)

    @property
    def groups(self) -> list[tuple[Pool, ...]]:
        """Pools by the model that they serve."""
        pools_of: dict[tuple[str, frozenset[str]], list[Pool]] = {}
        for pool in self.pools:
            key = ("", frozenset[str]()) if pool.models is None else (pool.spec.model, pool.models)
            pools_of.setdefault(key, []).append(pool)
        return [tuple(pools) for pools in pools_of.values()]

    @property
    def pairs(self) -> list[tuple[Pool, ...]]:
        """Those among the groups whose prefill and decode may be apart: with a pool for one of the two, if
        there are several groups."""
        groups = self.groups
        apart = [pools for pools in groups if any(pool.role != "both" for pool in pools)]
        return groups if len(groups) == 1 else apart

    @property
    def block_size(self) -> int:
        """Tokens per KV block, the same on all instances."""
        return self.pools[0].spec.scheduler.block_size

    @property
    def frontend(self) -> FrontendDelays:
        """Delays of the API server, the same in front of all instances."""
        return self.pools[0].spec.latency.frontend

    def require_supported(self, connected: Collection[str] = ()) -> None:
        """Check that every part of the data is supported.

        Args:
            connected: names of pools with an outlet (`Simulation.connect`).

        Raises:
            InputError: a part of the data that is not simulated yet.
        """
        if self.disaggregation is not None:
            return
        for pool in self.pools:
            if connected:
                if pool.role == "prefill" and pool.name not in connected:
                    fix = "connect an outlet to it"
                    raise InputError("a prefill pool has no way on", key="pools", value=pool.name, fix=fix)
                continue
            require_supported_role(pool.name, pool.role)
            if pool.routing_policy is not None or pool.routing_scorers is not None:
                fix = "drop it: the routing of the ingress chooses among all instances"
                raise InputError("not supported yet", key=f"pools.{pool.name}.routing_policy", fix=fix)
        for link in self.links:
            if link.bandwidth_gbps is not None:
                raise InputError("not supported yet", key="links.bandwidth_gbps", fix="drop it")
            if link.from_pool not in connected:
                fix = "drop it, or connect an outlet that uses it"
                raise InputError("nothing goes over this link", key="links", value=link.from_pool, fix=fix)

    def require_pairs(self) -> None:
        """Check that both sides of each model's hand-over exist, and a link between each two of their pools.

        Raises:
            InputError: they do not.
        """
        order = self.disaggregation.pair_order if self.disaggregation else ""
        linked = {(link.from_pool, link.to_pool) for link in self.links}
        for pools in self.pairs:
            _require_sides(pools)
            if order == "prefill-first" and any(pool.role == "both" for pool in pools):
                fix = "use decode-first, or pools of role prefill and decode alone"
                key = "disaggregation.pair_order"
                raise InputError("may choose one instance for both", key=key, value=order, fix=fix)
            for ends in links_between(pools):
                if ends not in linked:
                    raise InputError("no link between two pools", key="links", value=", ".join(ends))


def side_of(pools: Iterable[Pool], role: str) -> list[Pool]:
    """The pools whose instances serve a role."""
    return [pool for pool in pools if pool.role in (role, "both")]


def links_between(pools: Sequence[Pool]) -> list[tuple[str, str]]:
    """Both ends of every hand-over among pools of one model."""
    decode = side_of(pools, "decode")
    return [(one.name, other.name) for one in side_of(pools, "prefill") for other in decode]


def _require_sides(pools: Sequence[Pool]) -> None:
    for role in ("prefill", "decode"):
        if not sum(pool.count for pool in side_of(pools, role)):
            model = f" of {pools[0].spec.model}" if pools[0].models is not None else ""
            fix = f"add a pool of role {role}{model}, or leave disaggregation out"
            raise InputError(f"no instance{model} serves {role}", key="pools", fix=fix)


def require_supported_role(pool: str, role: str) -> None:
    """Check that a role is supported.

    Raises:
        InputError: a role that is not simulated yet.
    """
    if role != "both":
        fix = "use both: each instance serves prefill and decode"
        raise InputError("not supported yet", key=f"pools.{pool}.role", value=role, fix=fix)


def _check_pool(pool: Pool, names: list[str]) -> None:
    check_scheduler_config(pool.spec.scheduler)
    if names.count(pool.name) > 1:
        raise InputError("two pools have this name", key="pools", value=pool.name, fix="rename one")
    if pool.role not in ROLES:
        fix = f"use one of {', '.join(ROLES)}"
        raise InputError("unknown role", key=f"pools.{pool.name}.role", value=pool.role, fix=fix)
    if not 0.0 < pool.weight < inf:
        fix = "use the requests that it can serve in relation to an instance of the others"
        raise InputError("must be positive", key=f"pools.{pool.name}.weight", value=pool.weight, fix=fix)
    if pool.count < (1 if len(names) == 1 else 0):
        key = "num_instances" if len(names) == 1 else f"pools.{pool.name}.count"
        raise InputError(f"must be at least {int(len(names) == 1)}", key=key, value=pool.count)


def _alike(values: list[Any], key: str) -> None:
    """Check that all pools agree on a cluster-wide setting.

    Raises:
        InputError: they do not.
    """
    other = next((value for value in values if value != values[0]), None)
    if other is not None:
        problem = f"must be the same in all pools, and is {values[0]} in the first"
        raise InputError(problem, key=key, value=other, fix=f"set {key} for the whole cluster")
