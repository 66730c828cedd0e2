"""Pools of different instances in the configuration: the overrides of each pool, and its own configuration.

Annotations are evaluated here and no later, as in `blis_py.config.models`.
"""

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from blis_py.config.layers import Layers, did_you_mean, flatten
from blis_py.core.bounds import MAX_INSTANCES
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting
from blis_py.errors import InputError


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _OfPoolsAlone:
    name: str = ""
    """Name of the pool in messages and results."""
    role: str = setting("both", choices=("both", "prefill", "decode"))
    """Phases of a request that its instances serve."""
    count: int = setting(1, least=0, most=MAX_INSTANCES)
    """Number of instances."""
    price_per_hour: float | None = setting(None, least=0, most=1e9)
    """Price of one instance with all its GPUs."""
    weight: float | None = setting(None, above=0, most=1e6)
    """Capacity of an instance in relation to those of other pools, for the router; null = 1, or as modelled
    with `capacity_weights`."""
    routing_policy: str | None = None
    """Routing among the instances of its side, where prefill and decode are apart; null = as configured."""
    routing_scorers: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class PoolSection(_OfPoolsAlone):
    """Alike instances of a cluster. What a pool does not say is as the configuration has it."""

    model: str | None = None
    model_config: str | None = None
    engine: str | None = None
    gpu: str | None = None
    tp: int | None = None
    attention_dp: int | None = None
    ep: int | None = None
    redundant_experts: int | None = None
    kv_cache_dtype: str | None = None
    link_gbps: float | None = None
    memory: str | None = None
    graph_memory_gib: float | None = None
    scheduler: dict[str, Any] = field(default_factory=dict)
    """Keys of the section `scheduler`, `num_kv_blocks` among them."""
    latency: dict[str, Any] = field(default_factory=dict)
    """Keys of the section `latency`."""

    def overrides(self) -> dict[str, Any]:
        """Overrides of the pool, by configuration key."""
        own = {name: getattr(self, name) for name in OVERRIDES}
        return {name: value for name, value in own.items() if value not in (None, {})}


OVERRIDES = tuple(each.name for each in fields(PoolSection)[len(fields(_OfPoolsAlone)) :])
"""Keys of the configuration that a pool may override."""


def read_pools(layers: Layers) -> None:
    """Parse the list of pools, replacing its plain data, and apply the keys `pools.NAME.KEY` to it.

    Raises:
        InputError: not a list of mappings, an unknown pool or key, or a value of the wrong type or out of
            bounds.
    """
    given = layers.values.get("pools")
    changes = {path: value for path, value in layers.values.items() if path.startswith("pools.")}
    layers.forget(changes)
    if given is None:
        for path in changes:
            raise layers.error("there are no pools", path, fix="list them in the configuration, under pools")
        layers.values.pop("pools", None)
        return
    if not isinstance(given, list | tuple):
        raise layers.error("must be a list of pools", "pools", value=given, fix="write - {name: …, count: …}")
    pools = [_pool(layers, number, pool) for number, pool in enumerate(given)]
    for path, value in changes.items():
        name, _, key = path.removeprefix("pools.").partition(".")
        names = [pool.name for pool in pools]
        if name not in names:
            raise layers.error("no such pool", path, value=name, fix=did_you_mean(name, names))
        number = names.index(name)
        pools[number] = _changed(pools[number], key, value)
    layers.values["pools"] = tuple(pools)


def _changed(pool: PoolSection, key: str, value: Any) -> PoolSection:
    own = Layers()
    own.add({each.name: getattr(pool, each.name) for each in fields(PoolSection)}, file=None)
    own.add({key: value}, file=None)
    try:
        return own.build(PoolSection)
    except InputError as error:
        raise of_pool(error, f".{pool.name}") from error


def _pool(layers: Layers, number: int, given: Any) -> PoolSection:
    if isinstance(given, PoolSection):
        return given
    if not isinstance(given, Mapping):
        fix = "write - {name: …, count: …}"
        raise layers.error(f"pools[{number}] must be a mapping", "pools", value=given, fix=fix)
    own = Layers()
    own.add(flatten(given, PoolSection), file=layers.file("pools"))
    try:
        return own.build(PoolSection)
    except InputError as error:
        raise of_pool(error, f"[{number}]") from error


def of_pool(error: InputError, which: str) -> InputError:
    """The error with the name of its pool."""
    key = f"pools{which}" if error.key is None else f"pools{which}.{error.key.removeprefix('--')}"
    return InputError(error.problem, file=error.file, key=key, value=error.value, fix=error.fix)
