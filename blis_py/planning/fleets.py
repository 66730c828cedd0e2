"""GPUs and prices of a configuration: alike instances, or pools with GPUs of their own."""

from __future__ import annotations

from typing import NamedTuple

from blis_py.config.disaggregation import ROLES
from blis_py.config.models import RunConfig
from blis_py.config.pools import PoolSection
from blis_py.latency.fitted_profile import read_profile
from blis_py.latency.fitted_shape import datasheet_of
from blis_py.planning.prices import Price, Prices

LAYOUT = ("disaggregation.xpyd", *(f"disaggregation.{count}" for count in ROLES.values()))
"""Keys that set the number of instances of each side."""
LAYOUT_NAMES = ("xpyd", *ROLES.values())
"""The same as axes are named."""


def is_count_of_pool(key: str) -> bool:
    """Whether a setting is the number of instances of a pool: `pools.NAME.count`."""
    return key.startswith("pools.") and key.endswith(".count")


class Part(NamedTuple):
    """The instances of a pool."""

    name: str
    instances: int
    gpu: str
    tp: int
    dollars_per_hour: float | None
    price_source: str | None = None

    @property
    def gpus(self) -> int:
        return self.instances * self.tp

    def __str__(self) -> str:
        return f"{self.instances} {self.name} on {self.gpu} TP{self.tp}"


def parts_of(config: RunConfig, prices: Prices) -> tuple[Part, ...]:
    """The pools of a fleet that have instances; empty if there are no pools."""
    return tuple(_part(pool, config, prices) for pool in config.all_pools if pool.count)


def _part(pool: PoolSection, config: RunConfig, prices: Prices) -> Part:
    gpu, tp = pool.gpu or device_of(config), pool.tp or config.tp
    if pool.price_per_hour is not None:
        return Part(pool.name, pool.count, gpu, tp, pool.count * pool.price_per_hour, "as given")
    price = prices.of(gpu)
    if price is None:
        return Part(pool.name, pool.count, gpu, tp, None)
    return Part(pool.name, pool.count, gpu, tp, pool.count * tp * price.per_hour, price.source)


def price_of(config: RunConfig, prices: Prices) -> Price | None:
    """Dollars per GPU and hour, on average over the pools; None if that of a pool is unknown."""
    parts = parts_of(config, prices)
    if not parts:
        return prices.of(_only_device(config))
    hourly = [part.dollars_per_hour for part in parts if part.dollars_per_hour is not None]
    if len(hourly) < len(parts):
        return None
    sources = dict.fromkeys(str(part.price_source) for part in parts)
    return Price(sum(hourly) / gpus_of(config), "; ".join(sources))


def unpriced(config: RunConfig, prices: Prices) -> list[str]:
    """GPUs of the configuration without a price."""
    parts = parts_of(config, prices)
    if not parts:
        return prices.missing(devices_of(config))
    return list(dict.fromkeys(part.gpu for part in parts if part.dollars_per_hour is None))


def devices_of(config: RunConfig) -> list[str]:
    """The GPUs of all pools."""
    pools = [pool for pool in config.all_pools if pool.count]
    return list(dict.fromkeys(pool.gpu or device_of(config) for pool in pools)) or [device_of(config)]


def device_of(config: RunConfig) -> str:
    """The device; with a profile of measured steps, the device they were measured on."""
    if config.latency.profile is None:
        return config.gpu
    meta = read_profile(config.latency.profile).meta
    known = datasheet_of(meta)
    return str(meta.get("device") or "an unnamed device") if known is None else known.name


def gpus_of(config: RunConfig) -> int:
    if not config.all_pools:
        return config.num_instances * config.tp
    return sum(pool.count * (pool.tp or config.tp) for pool in config.all_pools)


def _only_device(config: RunConfig) -> str:
    return devices_of(config)[0]
