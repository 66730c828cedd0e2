"""A complete profile: build an engine, measure its shapes, and write the results."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.outputs.profile_file import write_meta
from blis_py.traces.samples import SCHEMA, StepSamples
from engine.build import build_engine, pick_device
from engine.clock import clock_facts
from engine.config import EngineConfig
from engine.models import load_model_config
from engine.profile import kinds
from engine.profile._loaded import Loaded
from engine.profile.campaign import Bench, Progress, measure, no_progress
from engine.profile.measure import StepBench
from engine.profile.plan import plan, sentinel
from engine.profile.provenance import device_name, machine, model_facts
from engine.profile.shapes import GRIDS, Grid, ShapeLimits
from engine.profile.store import ProfileStore, recorded_meta

ROUNDS = "rounds.csv"
TOLERATED_DRIFT = 0.05
MAX_SEQS, MAX_TOKENS = 512, 8192
"""Sequences and tokens of the largest measured steps on a GPU."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Extent of a measurement."""

    grid: str
    rounds: int
    """Repetitions of every shape."""
    prompts: int
    """Prompts for counting denoise rounds, per algorithm and threshold."""


EFFORTS = {"full": Effort("full", 20, 256), "quick": Effort("quick", 2, 8)}


@dataclass(frozen=True, slots=True)
class ProfileOutcome:
    """Result of a measurement."""

    folder: Path
    samples: StepSamples
    complete: bool
    """Whether every shape has all its repetitions."""

    @property
    def drift(self) -> float:
        """See `engine.profile.store.drift`."""
        return float(self.samples.meta["drift"])


def suitable(model: str, device: torch.device, max_num_seqs: int | None = None) -> dict[str, Any]:
    """Default engine settings for measurements.

    On a GPU, steps as large as servers run. On the CPU one thread and its CPU time count. Answers in blocks
    need a token for every position of every block.

    Raises:
        InputError: unknown model.
    """
    chosen: dict[str, Any] = {"clock": "cpu"} if device.type == "cpu" else {}
    block = load_model_config(model).mask_block
    if device.type == "cuda" and block == 1:
        chosen |= {"max_num_seqs": MAX_SEQS, "max_num_batched_tokens": MAX_TOKENS}
    if device.type == "cpu" or block > 1:
        chosen["max_num_seqs"] = 64
    if block > 1:
        chosen["max_num_batched_tokens"] = max(2048, (max_num_seqs or 64) * block)
    return chosen


def profile(
    config: EngineConfig,
    effort: Effort,
    folder: Path | None = None,
    *,
    budget_s: float | None = None,
    progress: Progress = no_progress,
) -> ProfileOutcome:
    """Measure step times of a model on this machine, or continue a measurement.

    On the CPU torch is limited to one thread from here on.

    Args:
        folder: output folder; `None` = by device and model under `profiles/fits`.
        budget_s: time limit, loading and warm-up included; one visit is always made.

    Raises:
        InputError: an unusable model or settings; the folder holds another measurement.
    """
    began_s = time.monotonic()
    device = pick_device(config.device)
    pages = config.on(device.type, load_model_config(config.model).mask_block).block_size
    config = replace(config, block_size=pages)
    if device.type == "cpu":
        torch.set_num_threads(1)
    if not config.enable_prefix_caching or config.prefix_cache == "none":
        fix = "leave it on: it does not serve any measured token"
        raise InputError("puts tokens before prompts here", key="enable_prefix_caching", fix=fix)
    known = machine(device)
    facts = model_facts(config.model)
    if folder is None:
        folder = root("profiles") / "fits" / device_name(known) / facts["model"]
    settings = _settings(config, effort, known)
    loaded = Loaded.of(_as_before(config, recorded_meta(folder, settings)), device, kinds.mask_token)
    meta = {"schema": SCHEMA, **known, **facts, **loaded.facts(), "settings": settings}
    bench, shapes, unchanging = _bench(loaded, GRIDS[effort.grid])
    store = ProfileStore(folder, _planned({**meta, **clock_facts(bench.engine.clock)}, bench.limits, shapes))
    left_s = None if budget_s is None else budget_s - (time.monotonic() - began_s)
    try:
        complete = measure(
            bench,
            shapes,
            unchanging,
            store,
            rounds=effort.rounds,
            seed=config.seed,
            budget_s=left_s,
            progress=progress,
        )
    finally:
        store.fold()
    if loaded.in_blocks and config.load_format == "safetensors":  # random weights have no answers to give
        kinds.count_rounds(loaded, effort.prompts, folder / ROUNDS, progress)
    write_meta(folder, store.samples.meta)
    return ProfileOutcome(folder, store.samples, complete)


def _bench(loaded: Loaded, grid: Grid) -> tuple[Bench[Any], list[Any], Any]:
    """Bench, shapes, and sentinel."""
    if loaded.in_blocks:
        return kinds.bench(loaded, grid)
    engine = build_engine(loaded.config, model=loaded.model, tokenizer=loaded.tokenizer)
    steps = StepBench(engine, loaded.prompts(), loaded.experts)
    shapes = plan(steps.limits, grid, loaded.config.seed)
    return steps, shapes, sentinel(shapes)


def _as_before(config: EngineConfig, before: dict[str, Any]) -> EngineConfig:
    """The configuration with values taken from the measurement to be continued.

    These are the reference pace of its clock, and its KV cache, since the free memory may differ slightly.
    """
    if config.yardstick_us is None and (pace := before.get("yardstick_us")):
        config = replace(config, yardstick_us=(pace[0], pace[1]))
    if config.num_kv_blocks or config.kv_cache_memory_bytes:
        return config
    return replace(config, num_kv_blocks=before.get("num_kv_blocks"))


def _settings(config: EngineConfig, effort: Effort, known: dict[str, Any]) -> dict[str, Any]:
    """Settings that must be equal to continue a measurement."""
    chosen = {"device": known["device"], "torch": known["torch"], "grid": effort.grid}
    settings: dict[str, Any] = json.loads(json.dumps({**asdict(config), **chosen}))
    return settings


def _planned(meta: dict[str, Any], limits: ShapeLimits, shapes: list[Any]) -> dict[str, Any]:
    """Metadata known once the engine is built."""
    names = ("block_size", "num_kv_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    planned = {name: getattr(limits, name) for name in names}
    digest = sha256(repr(shapes).encode()).hexdigest()[:16]
    settings = {**meta["settings"], "plan": digest}
    graphs: dict[str, Any] = {"graph_buckets": list(limits.buckets)}
    if limits.mixed_buckets:
        graphs |= {"mixed_buckets": list(limits.mixed_buckets), "mixed_prompts": limits.mixed_prompts}
    return {**meta, **planned, **graphs, "settings": settings}
