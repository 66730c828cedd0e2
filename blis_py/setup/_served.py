"""Selection of requests for the served model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_py.config.models import RunConfig
from blis_py.files.profiles import listed_as, squeeze
from blis_py.models.model_shape import config_name
from blis_py.requests.table import RequestTable
from blis_py.setup.demand import Demand


def served_models(demand: Demand, configs: Sequence[RunConfig]) -> frozenset[str] | None:
    """Model names in the requests that mean a model of the pools; None = serve all requests."""
    if not demand.requests_models or configs[0].routing.any_model:
        return None
    return frozenset[str]().union(*(names_of(demand.table, config) for config in configs))


def names_of(table: RequestTable, config: RunConfig) -> frozenset[str]:
    """Model names in the requests that mean the model of a configuration."""
    return frozenset(name for name in table.model.names if name and _is_served(name, config))


def served_notes(demand: Demand, served: frozenset[str] | None, configs: Sequence[RunConfig]) -> list[str]:
    """Notes on requests for other models."""
    model, counts = demand.table.model, np.bincount(demand.table.model.codes, minlength=1).tolist()
    others = {
        name: count
        for name, count in zip(model.names, counts, strict=False)
        if count and name and not any(_is_served(name, config) for config in configs)
    }
    if not others:
        several = len({(one.model, one.model_config) for one in configs}) > 1
        nameless = sum(count for name, count in zip(model.names, counts, strict=False) if not name)
        return [f"{nameless:,} requests name no model and go to any instance"] if several and nameless else []
    names = ", ".join(f"{name} ({count:,})" for name, count in sorted(others.items()))
    own = " and ".join(dict.fromkeys(map(_own_name, configs)))
    if served is None:
        return [f"requests for {names} are served by {own} too"]
    return [
        f"requests for {names} are rejected at routing: the instances serve {own}; "
        "--any-model serves them too"
    ]


def _is_served(name: str, config: RunConfig) -> bool:
    """Whether two model names match, ignoring case, punctuation and the organisation before a slash."""
    own = _own_name(config)
    if squeeze(name.rsplit("/", 1)[-1]) == squeeze(own.rsplit("/", 1)[-1]):
        return True
    listed = None if config.model_config else listed_as("models", own)
    return listed is not None and listed == listed_as("models", name)


def _own_name(config: RunConfig) -> str:
    return config.model or config_name(str(config.model_config))
