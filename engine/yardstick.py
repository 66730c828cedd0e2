"""How fast the machine is just now: steps of an engine that are always the same.

Work of another kind does not tell: the speed of arithmetic alone, or of reading memory, moves differently
from that of an engine's steps. So the yardstick is an engine of the same model, which serves the same few
requests again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from engine.clock import Clock, CpuClock, SteadyClock, make_clock
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.diffusion.engine import DiffusionEngine
    from engine.engine import LLMEngine
    from engine.executor import Model

_SEQS, _PROMPT_TOKENS, _OUTPUT_TOKENS = 4, 64, 32
_CYCLES = 12
"""To find out what its steps take, after one that warms up."""


class Yardstick:
    """Calling it makes the next step of the engine and returns its CPU time, in ns.

    Steps differ a bit; each is told as what the mean step would have taken.
    """

    def __init__(self, engine: LLMEngine | DiffusionEngine) -> None:
        self._engine, self._at = engine, 0
        rng = Random(0)
        self._prompts = [
            [rng.randrange(engine.vocab_size) for _ in range(_PROMPT_TOKENS)] for _ in range(_SEQS)
        ]
        cycles = np.array([self._cycle() for _ in range(1 + _CYCLES)][1:], dtype=float)
        means = cycles.mean(axis=1)
        self.mean_ns = float(np.median(means))
        self._shares = np.median(cycles / means[:, None], axis=0).tolist()

    def __call__(self) -> float:
        at, spent_ns = self._at, self._step()
        return spent_ns / float(self._shares[at])

    def _cycle(self) -> list[int]:
        steps = [self._step()]
        while self._at:
            steps.append(self._step())
        return steps

    def _step(self) -> int:
        engine = self._engine
        if self._at == 0:
            engine.reset()
            for prompt in self._prompts:
                limits = SamplingParams(temperature=0, max_tokens=_OUTPUT_TOKENS, ignore_eos=True)
                engine.add_request(prompt, limits)
        began_ns = time.thread_time_ns()
        engine.step()
        spent_ns = time.thread_time_ns() - began_ns
        self._at = self._at + 1 if engine.has_unfinished else 0
        return spent_ns


def clock_for(
    config: EngineConfig,
    model: Model,
    twin: Callable[[EngineConfig, Model | None], LLMEngine | DiffusionEngine],
) -> Clock:
    """The clock of an engine of this configuration.

    Args:
        model: the engine's. A mixture of experts is not shared: forwards count their experts in it.
        twin: builds another engine, around a model or around one of its own.
    """
    if config.clock != SteadyClock.name:
        return make_clock(config.clock)
    yardstick = Yardstick(twin(_small(config), None if model.config.experts else model))
    reference_us = config.yardstick_us
    return SteadyClock(yardstick, yardstick.mean_ns if reference_us is None else reference_us * 1000)


def _small(config: EngineConfig) -> EngineConfig:
    """As much as the yardstick needs, and none of the settings that one might want to compare."""
    tokens = _PROMPT_TOKENS + _OUTPUT_TOKENS
    return EngineConfig(
        model=config.model,
        tokenizer=config.tokenizer,
        device=config.device,
        dtype=config.dtype,
        load_format=config.load_format,
        clock=CpuClock.name,
        block_size=config.block_size,
        num_kv_blocks=_SEQS * (1 - -tokens // config.block_size),
        max_num_seqs=_SEQS,
        max_num_batched_tokens=_SEQS * tokens,
        enable_prefix_caching=False,
    )
