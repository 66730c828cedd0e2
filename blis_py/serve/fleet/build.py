"""A serving fleet from the configuration of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blis_py.config.loader import as_dict, pool_configs
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.opening import read_text
from blis_py.result import Result
from blis_py.serve.chat import PLAIN_TEMPLATE
from blis_py.serve.fleet._admin import admin_routes
from blis_py.serve.fleet._answers import Answers
from blis_py.serve.fleet._tokens import FleetTokenizer, ModelTokenizer, PieceTokenizer
from blis_py.serve.fleet.backend import FleetBackend, FleetSettings
from blis_py.serve.fleet.failures import FailureSettings
from blis_py.serve.fleet.kv_events import BlockHashes, KVEvents
from blis_py.serve.fleet.live import LiveCluster, check_speedup
from blis_py.serve.fleet.live_source import empty_table
from blis_py.setup import kinds
from blis_py.setup.demand import Demand
from blis_py.setup.diffusion import measured_steps
from blis_py.setup.from_config import DEFAULT_SEED
from blis_py.setup.setup import Setup

if TYPE_CHECKING:
    from blis_py.requests.table import RequestTable
    from blis_py.serve.fleet.diffusion import LiveRounds


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Settings of a served fleet beyond the configuration of its cluster."""

    speedup: float = 1.0
    text: str = "pattern"
    text_file: str | None = None
    answer_tokens: int = 128
    tokenizer: str | None = None
    chat_template: str | None = None
    served_model_names: tuple[str, ...] = ()
    max_requests: int = 100_000
    failures: FailureSettings = field(default_factory=FailureSettings)
    record_steps: bool = False
    kv_events: str | None = None
    """ZMQ endpoint."""
    kv_events_topic: str = "kv-events"
    kv_events_seed: str = "0"


@dataclass(frozen=True)
class ServedFleet:
    """A fleet, and what its result is made of."""

    setup: Setup
    backend: FleetBackend
    rounds: LiveRounds | None = None
    """Rounds of block diffusion."""

    def result(self) -> Result | None:
        """The result of the run once it has been stopped; None if it had no requests, or failed."""
        record = self.backend.record
        if record is None or not len(record.table):
            return None
        record.config = as_dict(self.setup.config)
        notes = (*self.setup.notes, *self.setup.domain_notes())
        return Result(record, self.setup, notes)


def build_fleet(config: RunConfig, options: FleetOptions, pod_prefix: str = "instance-") -> ServedFleet:
    """A fleet of the cluster of a configuration. Its workload has no meaning here.

    Raises:
        InputError: something unknown, contradictory, or impossible.
    """
    check_speedup(options.speedup, "--speedup")
    models = _models(config, options)
    table = empty_table(options.max_requests, models if len(models) > 1 else ())
    demand = kinds.described(Demand(table.take(slice(0, 0)), _seed(config)), config)
    setup = Setup.of(config, lambda _: demand)
    rounds = _live_rounds(setup, demand)
    live = _live(setup, options, table, rounds)
    tokenizer: FleetTokenizer = (
        PieceTokenizer() if options.tokenizer is None else ModelTokenizer(options.tokenizer)
    )
    settings = FleetSettings(
        models=options.served_model_names or models or ("blis",),
        max_model_len=min(pool.scheduler.max_model_len for pool in setup.pools),
        chat_template=_template(options.chat_template),
        seed=_seed(config),
        failures=options.failures,
        pod_prefix=pod_prefix,
    )
    answers = Answers(tokenizer, options.text, options.text_file, options.answer_tokens)
    backend = FleetBackend(live, settings, tokenizer, answers)
    backend.routes = admin_routes
    if options.kv_events is not None:
        _publish(backend, options)
    return ServedFleet(setup, backend, rounds)


def _publish(backend: FleetBackend, options: FleetOptions) -> None:
    """Publish KV events of all instances, those that come later included."""
    assert options.kv_events is not None
    live = backend.live
    hashes = BlockHashes(live.simulation.cluster.block_size, options.kv_events_seed)
    events = backend.kv_events = KVEvents(options.kv_events, options.kv_events_topic, hashes)
    for scheduler in live.schedulers:
        events.follow(scheduler.kv.follow())
    live.on_instance = lambda scheduler: events.follow(scheduler.kv.follow())


def _models(config: RunConfig, options: FleetOptions) -> list[str]:
    """The models of the instances, each once.

    Raises:
        InputError: other names for several models.
    """
    models = list(dict.fromkeys(own.model for _, own in pool_configs(config) if own.model))
    if len(models) > 1 and options.served_model_names:
        names = ", ".join(models)
        raise InputError(f"there are several models: {names}", key="--served-model-name", fix="drop it")
    return models


def _live_rounds(setup: Setup, demand: Demand) -> LiveRounds | None:
    """Rounds that are drawn as requests come, for a model of block diffusion."""
    if setup.kind is None:
        return None
    from blis_py.serve.fleet.diffusion import LiveRounds

    (measured,) = measured_steps(demand, setup.config).values()
    return LiveRounds(measured, setup.kind.block_tokens, demand.seed)


def _live(setup: Setup, options: FleetOptions, table: RequestTable, rounds: LiveRounds | None) -> LiveCluster:
    given = setup.options(options.record_steps)
    if rounds is None:
        return LiveCluster(setup.cluster(), given, table, options.speedup)
    from blis_py.cluster.instances.diffusion import BlockDiffusion
    from blis_py.serve.fleet.diffusion import BlockTap

    assert isinstance(setup.kind, BlockDiffusion)
    given["kind"] = replace(setup.kind, rounds=rounds)
    return LiveCluster(setup.cluster(), given, table, options.speedup, BlockTap, rounds.add)


def _seed(config: RunConfig) -> int:
    return DEFAULT_SEED if config.seed is None else config.seed


def _template(file: str | None) -> str:
    return PLAIN_TEMPLATE if file is None else read_text(Path(file))
