"""Runs on one pool of alike instances: settings of the cluster and of the run in one call."""

from __future__ import annotations

from inspect import signature
from typing import Any

from blis_py.cluster.ingress.source import Source
from blis_py.cluster.simulation import ClusterSimulation
from blis_py.cluster.simulation import simulate as simulate_cluster
from blis_py.cluster.topology import Cluster
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

OF_THE_RUN = set(signature(ClusterSimulation).parameters)


def simulate(demand: RequestTable | Source, **settings: Any) -> RunRecord:
    """
    Args:
        settings: keywords of `ClusterSimulation`; all others are those of `Cluster.of`.
    """
    run = {name: settings.pop(name) for name in OF_THE_RUN & set(settings)}
    return simulate_cluster(demand, Cluster.of(**settings), **run)
