"""Yardstick of the machine's current speed: constant steps of an engine.

Other kinds of work are no measure: the speed of arithmetic alone, or of memory reads, varies differently from
that of an engine's steps. So the yardstick is an engine of the same model that serves the same few requests
repeatedly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from blis_py.core.blocks import block_count
from engine.clock import Clock, CpuClock, SteadyClock, make_clock
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.executor import Model
    from engine.kinds import Engine

_SEQS, _OUTPUT_TOKENS = 4, 16
_CYCLES = 15
"""Cycles that determine the reference times, after two for warm-up."""


class Yardstick:
    """Callable that runs the next step of the yardstick: one with all prompts, some without any, in a cycle.

    Steps without prompts differ slightly; each is reported normalised to their mean.

    Args:
        block_tokens: tokens computed per sequence in a step without prompts.
    """

    def __init__(self, engine: Engine, block_tokens: int = 1) -> None:
        self._engine, self._at = engine, 0
        rng = Random(0)
        self._prompts = [
            [rng.randrange(engine.vocab_size) for _ in range(_prompt_tokens(block_tokens))]
            for _ in range(_SEQS)
        ]
        cycles = [self._cycle() for _ in range(2 + _CYCLES)][2:]
        with_prompts, *without = np.median(cycles, axis=0).tolist()
        self.mean_ns = (float(np.mean(without)), float(with_prompts))
        """Reference times in ns of steps without prompts, and with them."""
        self.tokens = (_SEQS * block_tokens, _SEQS * _prompt_tokens(block_tokens))
        """Tokens computed by each."""
        self._shares = [1.0, *(spent_ns / self.mean_ns[0] for spent_ns in without)]

    def __call__(self) -> tuple[int, float]:
        """Index of the step's kind, and its CPU time in ns."""
        at, spent_ns = self._at, self._step()
        return int(at == 0), spent_ns / self._shares[at]

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
                limits = SamplingParams(
                    temperature=0, max_tokens=_OUTPUT_TOKENS, ignore_eos=True, detokenize=False
                )
                engine.add_request(prompt, limits)
        began_ns = time.thread_time_ns()
        engine.step()
        spent_ns = time.thread_time_ns() - began_ns
        self._at = self._at + 1 if engine.has_unfinished else 0
        return spent_ns


def clock_for(
    config: EngineConfig,
    model: Model,
    twin: Callable[[EngineConfig, Model | None], Engine],
    block_tokens: int = 1,
) -> Clock:
    """The clock for an engine of this configuration.

    Args:
        model: the engine's model. A mixture of experts is not shared, since forwards count its experts.
        twin: builds another engine, around a given model or one of its own.
        block_tokens: tokens computed per sequence in a step without prompts.
    """
    if config.clock != SteadyClock.name:
        return make_clock(config.clock)
    small = _small(config, block_tokens)
    yardstick = Yardstick(twin(small, None if model.config.experts else model), block_tokens)
    reference_ns = yardstick.mean_ns
    if config.yardstick_us is not None:
        reference_ns = (config.yardstick_us[0] * 1000, config.yardstick_us[1] * 1000)
    return SteadyClock(yardstick, yardstick.tokens, reference_ns)


def _prompt_tokens(block_tokens: int) -> int:
    return max(64, 2 * block_tokens)


def _small(config: EngineConfig, block_tokens: int) -> EngineConfig:
    """A configuration of the size the yardstick needs, without the settings under comparison."""
    tokens = _prompt_tokens(block_tokens) + max(_OUTPUT_TOKENS, block_tokens)
    return EngineConfig(
        model=config.model,
        tokenizer=config.tokenizer,
        device=config.device,
        dtype=config.dtype,
        load_format=config.load_format,
        clock=CpuClock.name,
        block_size=config.block_size,
        num_kv_blocks=_SEQS * (1 + block_count(tokens, config.block_size)),
        max_num_seqs=_SEQS,
        max_num_batched_tokens=_SEQS * tokens,
        enable_prefix_caching=False,
    )
