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
from engine.config import BLOCK_SIZES, EngineConfig
from engine.diffusion.blocks import Algorithm
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.settings import DllmSettings, mask_token
from engine.graphs import default_buckets
from engine.models import Decoder, Tokenizer, build_model, load_model_config, load_tokenizer
from engine.profile.campaign import Bench, Progress, measure, no_progress
from engine.profile.diffusion import ONE_BY_ONE, RoundBench
from engine.profile.diffusion_plan import plan_rounds, sentinel_round
from engine.profile.experts import ForcedExperts, has_experts
from engine.profile.measure import StepBench
from engine.profile.plan import plan, sentinel
from engine.profile.prompts import Prompts
from engine.profile.provenance import device_name, machine, model_facts
from engine.profile.rounds import count_rounds, write_rounds
from engine.profile.shapes import GRIDS, Grid, Limits
from engine.profile.store import Store, found_meta

ROUNDS = "rounds.csv"
TOLERATED_DRIFT = 0.05
_SMALL_CACHE: dict[str, Any] = {
    "num_kv_blocks": None,
    "max_model_len": None,
    "kv_cache_memory_bytes": 64 << 20,
}
"""KV cache settings for answering prompts beside the measured engine."""


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
class Outcome:
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

    On the CPU: one thread, and its CPU time. Block diffusion needs pages of whole blocks, and a token budget
    for every position of every block.

    Raises:
        InputError: unknown model.
    """
    chosen: dict[str, Any] = {"clock": "cpu"} if device.type == "cpu" else {}
    block = load_model_config(model).mask_block
    if device.type == "cpu" or block > 1:
        chosen["max_num_seqs"] = 64
    if block > 1:
        chosen["block_size"] = next((size for size in BLOCK_SIZES if size % block == 0), block)
        chosen["max_num_batched_tokens"] = max(2048, (max_num_seqs or 64) * block)
    return chosen


def profile(
    config: EngineConfig,
    effort: Effort,
    folder: Path | None = None,
    *,
    budget_s: float | None = None,
    progress: Progress = no_progress,
) -> Outcome:
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
    loaded = _Loaded.of(_as_before(config, found_meta(folder, settings)), device)
    meta = {"schema": SCHEMA, **known, **facts, **loaded.facts(), "settings": settings}
    bench, shapes, unchanging = _bench(loaded, GRIDS[effort.grid])
    store = Store(folder, _planned({**meta, **clock_facts(bench.engine.clock)}, bench.limits, shapes))
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
    if loaded.diffusion and config.load_format == "safetensors":  # random weights have no meaningful answers
        _count_rounds(loaded, effort.prompts, folder / ROUNDS, progress)
    write_meta(folder, store.samples.meta)
    return Outcome(folder, store.samples, complete)


def _bench(loaded: _Loaded, grid: Grid) -> tuple[Bench[Any], list[Any], Any]:
    """The bench, the shapes, and the sentinel."""
    if loaded.diffusion:
        rounds = RoundBench(loaded.diffusion_engine(ONE_BY_ONE), loaded.prompts(), loaded.experts)
        planned = plan_rounds(rounds.limits, rounds.block, grid)
        return rounds, planned, sentinel_round(planned)
    engine = build_engine(loaded.config, model=loaded.model, tokenizer=loaded.tokenizer)
    steps = StepBench(engine, loaded.prompts(), loaded.experts)
    shapes = plan(steps.limits, grid, loaded.config.seed)
    return steps, shapes, sentinel(shapes)


def _count_rounds(loaded: _Loaded, prompts: int, path: Path, tell: Progress) -> None:
    """Count denoise rounds once: the same weights give the same answers."""
    if path.exists():
        return
    small = replace(loaded, config=replace(loaded.config, enforce_eager=True, **_SMALL_CACHE))

    def counted(done: int, total: int) -> None:
        tell("answering", done, total)

    seed = loaded.config.seed
    write_rounds(count_rounds(small.diffusion_engine, prompts, seed=seed, progress=counted), path)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A loaded model, from which engines are built."""

    config: EngineConfig
    model: Decoder
    tokenizer: Tokenizer
    experts: ForcedExperts | None
    mask_id: int | None

    @classmethod
    def of(cls, config: EngineConfig, device: torch.device) -> _Loaded:
        architecture = load_model_config(config.model)
        block = architecture.mask_block
        model = build_model(
            architecture,
            device=device,
            dtype=getattr(torch, config.dtype_on(device.type)),
            load_format=config.load_format,
            path=config.model,
            seed=config.seed,
            max_positions=config.max_model_len,
        )
        experts = None
        if has_experts(model):
            buckets = config.cudagraph_capture_sizes or default_buckets(config.max_num_seqs)
            rows = max(config.max_num_batched_tokens, max(*buckets, config.max_num_seqs) * block)
            experts = ForcedExperts(model, rows, config.seed)
        mask_id = mask_token(config.model) if block > 1 else None
        return cls(config, model, load_tokenizer(config.tokenizer or config.model), experts, mask_id)

    @property
    def diffusion(self) -> bool:
        return self.mask_id is not None

    def prompts(self) -> Prompts:
        """Prompts of the tiny tasks if the weights are meaningful."""
        config = self.config
        readable = self.tokenizer if config.load_format == "safetensors" else None
        return Prompts(self.model.config.vocab_size, readable, config.seed)

    def diffusion_engine(self, algorithm: Algorithm) -> DiffusionEngine:
        return build_diffusion_engine(
            self.config,
            DllmSettings(algorithm),
            model=self.model,
            tokenizer=self.tokenizer,
            mask_id=self.mask_id,
        )

    def facts(self) -> dict[str, Any]:
        """Metadata of the model for the samples."""
        dtype = str(self.model.embedding.dtype).removeprefix("torch.")
        forced = {"routing": "forced"} if self.experts is not None else {}
        return {"dtype": dtype, "tp": 1, **forced}


def _as_before(config: EngineConfig, before: dict[str, Any]) -> EngineConfig:
    """The configuration with values taken from the measurement to be continued.

    These are the reference pace of its clock, and its KV cache, since the free memory may differ slightly.
    """
    if config.yardstick_us is None and (told := before.get("yardstick_us")):
        config = replace(config, yardstick_us=(told[0], told[1]))
    if config.num_kv_blocks or config.kv_cache_memory_bytes:
        return config
    return replace(config, num_kv_blocks=before.get("num_kv_blocks"))


def _settings(config: EngineConfig, effort: Effort, known: dict[str, Any]) -> dict[str, Any]:
    """Settings that must be equal to continue a measurement."""
    chosen = {"device": known["device"], "torch": known["torch"], "grid": effort.grid}
    settings: dict[str, Any] = json.loads(json.dumps({**asdict(config), **chosen}))
    return settings


def _planned(meta: dict[str, Any], limits: Limits, shapes: list[Any]) -> dict[str, Any]:
    """Metadata known once the engine is built."""
    names = ("block_size", "num_kv_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    found = {name: getattr(limits, name) for name in names}
    digest = sha256(repr(shapes).encode()).hexdigest()[:16]
    settings = {**meta["settings"], "plan": digest}
    return {**meta, **found, "graph_buckets": list(limits.buckets), "settings": settings}
