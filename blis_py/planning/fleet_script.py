"""A planned fleet with pools as a start script of its engine, which starts every instance."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace

from blis_py.config.loader import pool_configs
from blis_py.config.pools import PoolSection
from blis_py.planning import serving
from blis_py.planning.result import Candidate
from blis_py.planning.trtllm_script import trtllm_lines

_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_SERVER_ROLES = {"prefill": "CONTEXT", "decode": "GENERATION"}
_FIRST_PORT, _PORTS_OF_A_POOL = 8000, 100


def fleet_script(best: Candidate) -> tuple[str, str] | None:
    """Name and text of the script; None where pools are of several engines."""
    pools = [(pool, own) for pool, own in pool_configs(best.config) if pool.count]
    engines = {serving.engine_of(own) for _, own in pools}
    if len(engines) != 1:
        return None
    (engine,) = engines
    facts = best.outcome.facts
    title = ", ".join(f"{p.count} {p.name} on {own.tp} × {own.gpu}" for p, own in pools)
    lines = ["#!/bin/sh", f"# {title}; a router stands in front of them."]
    for number, (pool, own) in enumerate(pools):
        outcome = replace(best.outcome, facts={**facts, "scheduler": facts["schedulers"][pool.name]})
        side = replace(best, config=own, instances=pool.count, outcome=outcome)
        port = _FIRST_PORT + number * _PORTS_OF_A_POOL
        lines += [f"# {line}" for line in serving.cannot(side, engine)]
        lines += _commands(engine, side, pool, port)
    text = "\n".join([*lines, "wait", ""])
    return f"{engine}.sh", serving.completed(text, best, engine)


def _commands(engine: str, side: Candidate, pool: PoolSection, port: int) -> Iterator[str]:
    """The lines that start the instances of a pool."""
    numbers = " ".join(map(str, range(pool.count)))
    run = f"for number in {numbers}; do {{}} --port $(({port} + number)) & done"
    model = serving.model_of(side)
    if engine == "trtllm":
        file, role = f"trtllm-options-{pool.name}.yaml", _SERVER_ROLES.get(pool.role, "")
        yield from trtllm_lines(side.config, model, serving.caches(side), file=file, role=role, run=run)
        return
    if engine == "sglang":
        command = ["python", "-m", "sglang.launch_server", "--model-path", model]
        command += serving.sglang_arguments(side)
        command += ["--disaggregation-mode", pool.role] if pool.role != "both" else []
    else:
        command = ["vllm", "serve", model, *serving.vllm_arguments(side)]
        transfer = {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES.get(pool.role)}
        command += ["--kv-transfer-config", json.dumps(transfer)] if pool.role != "both" else []
    yield run.replace("{}", shlex.join(command))
