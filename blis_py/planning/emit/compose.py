"""A planned configuration as a compose file: a service for every server, and the router."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blis_py.files.yaml_files import dump_manifest
from blis_py.planning.emit.fleet import PlannedFleet, gpu_resource, one_node, planned_fleet
from blis_py.planning.emit.routers import (
    PAIR_FILE,
    pair_options,
    router_command,
    router_image,
    router_notes,
)
from blis_py.planning.planned_pools import PORT, PlannedPool
from blis_py.planning.result import Candidate


def files(best: Candidate) -> dict[str, str]:
    """The compose file, with the files of options that it mounts.

    Raises:
        InputError: pools of several engines, or a server that spans nodes.
    """
    fleet = planned_fleet(best, "compose")
    one_node(fleet, "compose")
    options = {name: text for pool in fleet.pools for name, text in pool.options.items()}
    if fleet.engine == "trtllm" and fleet.apart:
        hosts: dict[str, list[str]] = {"prefill": [], "decode": []}
        for pool in fleet.pools:
            hosts.setdefault(pool.role, []).extend(_hosts(pool))
        options[PAIR_FILE] = dump_manifest(pair_options(fleet, hosts))
    data: dict[str, Any] = {"name": fleet.name, "services": dict(_services(fleet))}
    if options:
        data["configs"] = {name: {"content": text} for name, text in options.items()}
    notes = ("Compose starts them once and has no autoscaler.", *router_notes(fleet))
    return {"compose.yaml": fleet.text(data, notes=notes)}


def _services(fleet: PlannedFleet) -> Iterator[tuple[str, dict[str, Any]]]:
    for pool in fleet.pools:
        for host in _hosts(pool):
            yield host, _server(pool, host)
    if fleet.engine == "trtllm" and not fleet.apart:
        return
    if fleet.apart or sum(pool.count for pool in fleet.pools) > 1:
        router: dict[str, Any] = {
            "image": router_image(fleet),
            "entrypoint": [],
            "command": router_command(fleet, _found(fleet)),
            "ports": [f"{PORT}:{PORT}"],
            "depends_on": [host for pool in fleet.pools for host in _hosts(pool)],
        }
        if fleet.engine == "trtllm":
            router["configs"] = [_mounted(PAIR_FILE)]
        yield "router", router


def _hosts(pool: PlannedPool) -> list[str]:
    """Names of the services of a pool; one of one server has no number."""
    return [pool.name] if pool.count == 1 else [f"{pool.name}-{number}" for number in range(pool.count)]


def _server(pool: PlannedPool, host: str) -> dict[str, Any]:
    device = {
        "driver": gpu_resource(pool).partition(".")[0],
        "count": pool.config.tp,
        "capabilities": ["gpu"],
    }
    words = pool.command(f"/options/{pool.options_file}")
    found: dict[str, Any] = {
        "image": pool.image,
        "entrypoint": words[:1],
        "command": words[1:],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **_side_channel(pool, host)},
        "ipc": "host",
        "expose": [str(PORT)],
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
    }
    if pool.options:
        found["configs"] = [_mounted(name) for name in pool.options]
    return found


def _side_channel(pool: PlannedPool, host: str) -> dict[str, str]:
    """Variable with the address from which the KV of a server is fetched."""
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": host} if pool.engine == "vllm" and pool.role != "both" else {}


def _mounted(name: str) -> dict[str, str]:
    """A file of options where servers read it."""
    return {"source": name, "target": f"/options/{name}"}


def _found(fleet: PlannedFleet) -> list[str]:
    """Flags that say where the servers are."""
    urls = [(pool.role, f"http://{host}:{PORT}") for pool in fleet.pools for host in _hosts(pool)]
    if not fleet.apart:
        return ["--worker-urls", *(url for _, url in urls)]
    return [word for role, url in urls if role != "both" for word in (f"--{role}", url)]
