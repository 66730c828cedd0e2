"""Pools of a planned configuration, each with what starts one of its servers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from blis_py.config.engine import load_engine
from blis_py.config.loader import pool_configs
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.planning import serving
from blis_py.planning.result import Candidate
from blis_py.planning.trtllm_script import trtllm_command, trtllm_text

_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_SERVER_ROLES = {"prefill": "CONTEXT", "decode": "GENERATION"}
_IMAGES = {
    "vllm": "vllm/vllm-openai:v{}",
    "sglang": "lmsysorg/sglang:v{}",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:{}",
}


@dataclass(frozen=True)
class PlannedPool:
    """Alike servers of a planned configuration.

    Attributes:
        name: of the pool; `server` where there are no pools.
        role: `prefill`, `decode`, or `both`.
        count: number of servers.
        engine: `vllm`, `sglang` or `trtllm`.
        side: the candidate with the settings of this pool.
    """

    name: str
    role: str
    count: int
    engine: str
    side: Candidate

    @property
    def config(self) -> RunConfig:
        """The configuration of one of its servers."""
        return self.side.config

    @property
    def model(self) -> str:
        """Name of the model on the hub."""
        return serving.model_of(self.side)

    @property
    def options_file(self) -> str:
        """Name of its file of options."""
        return f"trtllm-options-{self.name}.yaml"

    @property
    def options(self) -> Mapping[str, str]:
        """Texts of the files that its servers read, by name."""
        if self.engine != "trtllm":
            return {}
        return {self.options_file: trtllm_text(self.config, serving.caches(self.side))}

    def command(self, options: str = "", *, port: bool = True) -> list[str]:
        """The words that start a server.

        Args:
            options: path of its file of options; empty = in the folder where it is started.
            port: whether it listens on `PORT` of all interfaces, rather than where its engine does.
        """
        if self.engine == "trtllm":
            role = _SERVER_ROLES.get(self.role, "")
            words = trtllm_command(self.config, self.model, options or self.options_file, role)
        elif self.engine == "sglang":
            words = ["python3", "-m", "sglang.launch_server", "--model-path", self.model]
            words += serving.sglang_arguments(self.side)
            words += ["--disaggregation-mode", self.role] if self.role != "both" else []
        else:
            words = ["vllm", "serve", self.model, *self.vllm_arguments()]
        return [*words, "--host", "0.0.0.0", "--port", str(PORT)] if port else words

    def vllm_arguments(self) -> list[str]:
        """Arguments of `vllm serve`, with the transfer of KV between prefill and decode."""
        words = serving.vllm_arguments(self.side)
        if self.role != "both":
            transfer = {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES[self.role]}
            words += ["--kv-transfer-config", json.dumps(transfer)]
        return words

    @property
    def image(self) -> str:
        """The image of its engine's release; the newest that its preset describes where it names none."""
        return _IMAGES[self.engine].format(release_of(self.config.engine, self.engine))


PORT = 8000
"""Port of the servers in containers."""


def planned_pools(best: Candidate) -> list[PlannedPool]:
    """The pools that have servers; alike instances are one pool."""
    facts = best.outcome.facts
    if not best.config.all_pools:
        engine = serving.engine_of(best.config)
        return [PlannedPool("server", "both", best.instances, engine, best)]
    found = []
    for pool, own in pool_configs(best.config):
        if not pool.count:
            continue
        outcome = replace(best.outcome, facts={**facts, "scheduler": facts["schedulers"][pool.name]})
        side = replace(best, config=own, instances=pool.count, outcome=outcome)
        found.append(PlannedPool(pool.name, pool.role, pool.count, serving.engine_of(own), side))
    return found


def one_engine(pools: list[PlannedPool]) -> str:
    """The engine of all pools; empty where they have several."""
    engines = {pool.engine for pool in pools}
    return engines.pop() if len(engines) == 1 else ""


def release_of(preset: str, engine: str) -> str:
    """The release of an engine that a preset stands for, with three numbers."""
    named = preset.removeprefix(f"{engine}-") if preset.startswith(f"{engine}-") else ""
    if not re.match(r"\d", named):
        try:
            spans = load_engine(preset if preset.startswith(engine) else engine).releases
        except InputError:
            spans = load_engine(engine).releases
        named = spans[-1] if spans else "latest"
    return f"{named}.0" if re.fullmatch(r"\d+\.\d+", named) else named
