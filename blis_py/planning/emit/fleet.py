"""Common parts of manifests of every form: pools, names, images, requests for GPUs."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from blis_py.cluster.handoff_settings import GPUS_PER_NODE
from blis_py.errors import InputError
from blis_py.files.profiles import stem_of
from blis_py.files.yaml_files import dump_manifest
from blis_py.launch.gpu_labels import gpu_of
from blis_py.planning import serving
from blis_py.planning.planned_pools import PlannedPool, one_engine, planned_pools
from blis_py.planning.result import Candidate

_PRODUCTS = {
    "h100": "NVIDIA-H100-80GB-HBM3",
    "a100-40": "NVIDIA-A100-SXM4-40GB",
    "a100-80": "NVIDIA-A100-SXM4-80GB",
    "a100-pcie": "NVIDIA-A100-80GB-PCIe",
    "h100-pcie": "NVIDIA-H100-PCIe",
    "h100-nvl": "NVIDIA-H100-NVL",
}
"""Values of the label `nvidia.com/gpu.product` by bundled GPU, where they are not its name in capitals."""
_LONGEST_NAME = 40
_GPUS_OF_A_NODE = {"gb200": 4, "gb300": 4}
"""GPUs of the trays that NVLink joins; else as many as a usual server has."""


class PlannedFleet(NamedTuple):
    """Pools of one engine, and the candidate that they are of."""

    best: Candidate
    engine: str
    pools: list[PlannedPool]

    @property
    def name(self) -> str:
        """Name of its resources: that of the model, as Kubernetes takes it."""
        short = self.pools[0].model.rstrip("/").rpartition("/")[2].lower()
        return re.sub(r"[^a-z0-9]+", "-", short)[:_LONGEST_NAME].strip("-") or "server"

    @property
    def apart(self) -> bool:
        """Whether prefill and decode have servers of their own."""
        return any(pool.role != "both" for pool in self.pools)

    def name_of(self, pool: PlannedPool) -> str:
        """Name of the resources of a pool."""
        own = re.sub(r"[^a-z0-9]+", "-", pool.name.lower()).strip("-")
        return f"{self.name}-{own or 'server'}"

    def text(self, *documents: Any, notes: tuple[str, ...] = ()) -> str:
        """The file with the servers: what is simulated and not said by a flag stands in its first lines."""
        cannot = [line for pool in self.pools for line in serving.cannot(pool.side, self.engine)]
        lines = [f"# {self.best}", *(f"# {line}" for line in dict.fromkeys([*notes, *cannot]))]
        body = "---\n".join(dump_manifest(each) for each in documents)
        return serving.completed("\n".join([*lines, body]), self.best, self.engine)


def planned_fleet(best: Candidate, form: str, *engines: str) -> PlannedFleet:
    """The fleet of a candidate.

    Args:
        form: for messages.
        engines: those of the form; none = all.

    Raises:
        InputError: pools of several engines, or of one that the form is not for.
    """
    pools = planned_pools(best)
    engine = one_engine(pools)
    if not engine:
        raise InputError("needs pools of one engine", key="--emit", value=form, fix="plan them one by one")
    if engines and engine not in engines:
        fix = "use k8s, dynamo or compose"
        raise InputError(f"is for {' and '.join(engines)}, not {engine}", key="--emit", value=form, fix=fix)
    return PlannedFleet(best, engine, pools)


def one_node(fleet: PlannedFleet, form: str) -> None:
    """
    Raises:
        InputError: a server that spans nodes.
    """
    for pool in fleet.pools:
        if nodes_of(pool) > 1:
            problem = f"has servers of {pool.config.tp} GPUs, which span nodes"
            raise InputError(problem, key="--emit", value=form, fix="use dynamo")


def nodes_of(pool: PlannedPool) -> int:
    """Nodes of a server."""
    return -(-pool.config.tp // _GPUS_OF_A_NODE.get(_gpu(pool), GPUS_PER_NODE))


def gpu_resource(pool: PlannedPool) -> str:
    """The resource by which Kubernetes counts its GPUs."""
    return "amd.com/gpu" if _gpu(pool).startswith("mi") else "nvidia.com/gpu"


def node_selector(pool: PlannedPool) -> dict[str, str]:
    """Labels of the nodes with its GPU, as NVIDIA's GPU feature discovery sets them; none where it has no
    label that is known."""
    gpu = _gpu(pool)
    product = _PRODUCTS.get(gpu, f"NVIDIA-{gpu.upper()}")
    return {"nvidia.com/gpu.product": product} if gpu_of(product) == gpu else {}


def _gpu(pool: PlannedPool) -> str:
    return stem_of("gpus", pool.config.gpu) or ""
