"""GPUs and dollars of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_py.config.disaggregation import pools_in
from blis_py.planning.prices import Prices


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a cluster."""

    gpus: int
    dollars_per_hour: float | None
    """None if a price is unknown."""
    source: str

    @property
    def text(self) -> str:
        return "no price" if self.dollars_per_hour is None else f"${self.dollars_per_hour:,.2f}"

    @property
    def provenance(self) -> str:
        """Source of the prices in a sentence."""
        if self.dollars_per_hour is None:
            return f"Cost: there is no price for {self.source}."
        return f"Cost: {self.source}"


def cost_of(settings: Mapping[str, Any]) -> Cost:
    """The cost by the bundled prices; step times measured elsewhere (`latency.profile`) have none."""
    pools = pools_in(settings) or [{"count": settings.get("num_instances") or 1}]
    gpus, dollars, sources = 0, 0.0, dict[str, None]()
    unknown = (settings.get("latency") or {}).get("profile") is not None
    for pool in pools:
        own = {**settings, **{key: value for key, value in pool.items() if value is not None}}
        instances = int(own.get("count", 1))
        gpus += instances * int(own.get("tp") or 1)
        if own.get("price_per_hour") is not None:
            dollars += instances * own["price_per_hour"]
            sources["price_per_hour of the configuration."] = None
            continue
        price = None if unknown else Prices().of(str(own.get("gpu")))
        if price is None:
            return Cost(_gpus(pools, settings), None, str(own.get("gpu")))
        dollars += price.per_hour * instances * int(own.get("tp") or 1)
        sources[price.source] = None
    return Cost(gpus, dollars, " ".join(sources))


def _gpus(pools: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> int:
    return sum(int(one.get("count", 1)) * int(one.get("tp") or settings.get("tp") or 1) for one in pools)
