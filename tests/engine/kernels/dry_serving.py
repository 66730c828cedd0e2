"""The real engines serving made-up requests on a GPU that is not there, and what they launch.

Run as a program: `dry_serving.py '[[MODEL, {SETTING: VALUE}]]'` builds engines of these models and settings
dry, lets each serve, and prints as JSON its kernel variants before the first request and those while serving;
beside these what a step launches, and what dry runs leave behind. In a process of its own, as Triton's
interpreter cannot do this, and in one, as most of the time goes to imports.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
import torch
from launches import by_kind
from triton import knobs
from triton.runtime.driver import driver

from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_request import DenoiseBatch as Blocks
from blis_py.core.scheduler import Scheduler
from engine.build import largest_forward
from engine.clock import make_clock
from engine.config import EngineConfig
from engine.diffusion import dry
from engine.diffusion.build import largest_round
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.executor import DiffusionExecutor, RunningBatch, TokensOf
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import DllmSettings
from engine.diffusion.steplog import RoundRecorder
from engine.engine import LLMEngine
from engine.executor import Batch
from engine.kernels.dry_run import Variant, recorded
from engine.kernels.gpu import HOPPER
from engine.kernels.triton.autotune import TUNERS
from engine.models.config import load_model_config
from engine.models.decoder import Decoder
from engine.outcome import StepOutcome, nothing
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.steplog import StepRecorder
from engine.timing import StepTimer
from engine.variants import META, capture_dry, executor, variants, without_weights

VOCAB, PAGES = 1000, 8192


class DryEngine(LLMEngine):
    """Samples what it likes."""

    def sample(self, batch: Batch, logits: torch.Tensor | None, positions: torch.Tensor) -> Any:
        if logits is None and batch.tokens is None:
            return nothing()
        tokens = np.random.default_rng(0).integers(VOCAB, size=len(batch.emitters.sequences))
        self.executor.keep_tokens(batch, torch.empty(len(tokens), dtype=torch.int64, device=META))
        self.executor.note_tokens(batch.emitters, tokens)
        return StepOutcome(torch.from_numpy(tokens))


class DryBatch(RunningBatch):
    """Blocks are done when it likes."""

    rng = Random(0)

    def _step(self, active: list[int]) -> list[int]:
        super_flags = [-1 if self.rng.random() < 0.3 else 1 for _ in active]
        rows = torch.arange(len(active), device=META)
        self._executor.model.logits(self._hidden.index_select(0, rows))  # type: ignore[union-attr]
        return super_flags

    def end(self, in_place: bool) -> list[list[int]]:
        denoise = self.batch.denoise
        if denoise:
            self._slots_of.end(denoise, self._slots, self._blocks, self._state, self.done, in_place)
        return [[7] * self.block_tokens if over else [] for over in self.done]


class DryExecutor(DiffusionExecutor):
    def begin(self, batch: Blocks, tokens_of: TokensOf) -> DryBatch:
        return DryBatch(self, batch, tokens_of)


def autoregressive(decoder: Decoder, config: EngineConfig) -> DryEngine:
    largest_forward(decoder, config, torch.bfloat16, META)
    clock = make_clock("wall")
    length = min(config.max_model_len or math.inf, decoder.config.max_position_embeddings)
    return DryEngine(
        scheduler=Scheduler(config.scheduler_config(PAGES, int(length)), track_longest=True),
        executor=executor(decoder, config),
        sampler=Sampler(torch.device("cpu")),
        recorder=StepRecorder({}),
        clock=clock,
        timer=StepTimer(clock, torch.device("cpu")),
        vocab_size=VOCAB,
    )


def diffusion(decoder: Decoder, config: EngineConfig) -> DiffusionEngine:
    largest_round(decoder, config, torch.bfloat16, META)
    made = dry.executor(decoder, config, LowConfidence(), PAGES, capture_dry)
    length = min(config.max_model_len or math.inf, decoder.config.max_position_embeddings)
    core = DllmSettings(LowConfidence()).core(decoder.config.mask_block)
    return DiffusionEngine(
        scheduler=DiffusionScheduler(config.scheduler_config(PAGES, int(length)), core),
        executor=DryExecutor(made.model, made.kv, made.slots, made.page_tokens, made.graphs),
        clock=make_clock("wall"),
        recorder=RoundRecorder({}),
        vocab_size=VOCAB,
    )


def serve(engine: DryEngine | DiffusionEngine, rng: Random) -> None:
    """Requests one at a time, many at a time, and as many as there can be."""
    config = engine.scheduler.config
    prompts = [_prompt_tokens(config, rng) for _ in range(40)]
    short = [rng.randint(1, 4) for _ in range(config.max_num_seqs)]
    for together in (*([tokens] for tokens in prompts), prompts, short):
        for tokens in together:
            prompt, outputs = [rng.randrange(VOCAB) for _ in range(tokens)], rng.randint(4, 8)
            engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=outputs, ignore_eos=True))
        while engine.has_unfinished:
            for sequence in engine.step().finished:
                assert sequence.finish_reason == "length", sequence.error


def _prompt_tokens(config: SchedulerConfig, rng: Random) -> int:
    """Up to a chunk, often behind whole ones."""
    chunk = config.max_num_batched_tokens
    tokens = rng.choice((0, 0, chunk)) + int(2 ** rng.uniform(0, math.log2(chunk)))
    return min(tokens, config.max_model_len - 20)


def labels(of: Iterable[Variant]) -> list[str]:
    return sorted(f"{variant} 16|{','.join(variant.multiples_of_16)}" for variant in of)


def launched(name: str, settings: dict[str, Any]) -> dict[str, list[str]]:
    """Kernel variants before the first request, and of the requests."""
    model = load_model_config(name)
    config = EngineConfig(model=name, **settings).on("cuda", model.mask_block)
    decoder = without_weights(model, torch.bfloat16)
    build = autoregressive if model.mask_block == 1 else diffusion
    with recorded(HOPPER) as noted:
        for tuner in TUNERS:  # of those that are timed take the first: which is the fastest is not known here
            tuner.configs = tuner.configs[:1]
        engine = build(decoder, config)
        ready = list(noted)
        noted.clear()
        serve(engine, Random(0))
        return {"ready": labels(ready), "served": labels(noted)}


def traces() -> dict[str, Any]:
    """What a dry run leaves behind, and whether it depends on the length that memory allows."""

    def state() -> Any:
        return knobs.runtime.jit_cache_hook, driver._active, [dict(vars(tuner)) for tuner in TUNERS]

    def launches(**settings: Any) -> list[Variant]:
        config = EngineConfig(model="", max_num_seqs=8, **settings)
        return variants(load_model_config("engine/tiny/checkpoints/ar"), config, HOPPER)

    before, first = state(), launches()
    return {
        "tuners": len(TUNERS),
        "state kept": state() == before,
        "repeats": launches() == first,
        "any length": launches(max_model_len=480) == first,
        "any page": launches(block_size=32) == first,
    }


if __name__ == "__main__":
    made = [launched(name, settings) for name, settings in json.loads(sys.argv[1])]
    print(json.dumps({"traces": traces(), "launches": by_kind(), "engines": made}))
