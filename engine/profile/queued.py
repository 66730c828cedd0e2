"""Steps with waiting requests under a policy that looks them up in the prefix cache.

The host time of the look-ups grows with the queue, and no batch composition shows it. It is measured in short
runs with several queue depths, on a second engine with another scheduler over the same executor and pages.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from blis_py.core.config import SchedulerConfig
from blis_py.core.policies import CACHE_AWARE
from blis_py.core.scheduler import Scheduler
from blis_py.traces.samples import StepSamples, joined, samples_of
from engine.engine import LLMEngine
from engine.profile.prompts import ProfilePrompts
from engine.profile.served import MAX_STEPS, of_length
from engine.profile.shapes import SLACK_STEPS, ShapeLimits
from engine.steplog import StepRecorder
from engine.timing import StepTimer

DEPTHS = (4, 16, 48, 112)
"""Queue depths at the start of a run."""
STEPS = 6
"""Steps of a run. Requests still waiting then are released."""
_SEATS = 4
"""Most running sequences; few, so that few change per step, as under a load that queues."""
_PREFIXES = 4
_PREFIX_TOKENS = 64
_OWN_TOKENS = 16
_ANSWERS = (1, 3)
"""Least and most output tokens, so that in most steps a sequence leaves and another is chosen."""


def queueing(config: SchedulerConfig) -> SchedulerConfig:
    """Scheduler settings that create a queue: a policy with a cache look-up per waiting request, and few
    places.

    Limits that would suppress the look-up (waiting time, queue length) are off.
    """
    return replace(
        config,
        scheduler=config.scheduler if config.scheduler in CACHE_AWARE else "lpm",
        max_num_seqs=min(_SEATS, config.max_num_seqs),
        lpm_max_queue=max(DEPTHS),
        fairness_ms=None,
        fairness_tokens=None,
        sjf_aging_ms=None,
    )


def waiting_requests(limits: ShapeLimits, rng: Random, depth: int) -> list[tuple[int, int, int]]:
    """For each request: its prefix index, its own prompt tokens, and its output tokens."""
    own = max(min(_OWN_TOKENS, _room(limits) - prefix_tokens(limits)), 1)
    return [(rng.randrange(_PREFIXES), rng.randint(1, own), rng.randint(*_ANSWERS)) for _ in range(depth)]


def prefix_tokens(limits: ShapeLimits) -> int:
    """Tokens of each prefix, whole blocks, bounded to leave room for a request's own tokens."""
    tokens = max(_PREFIX_TOKENS, limits.block_size)
    return max(min(tokens, _room(limits) - 1), 0) // limits.block_size * limits.block_size


def _room(limits: ShapeLimits) -> int:
    """Length of the longest prompt that fits as often as requests run."""
    pages = limits.num_kv_blocks // min(_SEATS, limits.max_num_seqs) * limits.block_size
    return min(limits.max_model_len, pages) - SLACK_STEPS


class QueueBench:
    """Measurement of steps with waiting requests.

    Args:
        engine: an engine whose page content may be overwritten between its visits.
    """

    def __init__(self, engine: LLMEngine, limits: ShapeLimits, prompts: ProfilePrompts) -> None:
        self._limits, self._prompts = limits, prompts
        self.engine = LLMEngine(
            scheduler=Scheduler(queueing(engine.scheduler.config), track_longest=True),
            executor=engine.executor,
            sampler=engine.sampler,
            recorder=StepRecorder(engine.recorder.meta),
            clock=engine.clock,
            timer=StepTimer(engine.clock, engine.sampler.device),
            vocab_size=engine.vocab_size,
        )

    def measure(self, number: int) -> StepSamples:
        """Run each depth, with other requests for every number.

        Raises:
            RuntimeError: a forward failed.
        """
        rng = Random(number)
        samples = joined([self._run(waiting_requests(self._limits, rng, depth)) for depth in DEPTHS])
        samples.table["shape"][:] = number * MAX_STEPS + np.arange(len(samples))
        return samples

    def _run(self, requests: list[tuple[int, int, int]]) -> StepSamples:
        engine, take = self.engine, self._prompts.take
        engine.recorder = StepRecorder(engine.recorder.meta)
        prefixes = [take(prefix_tokens(self._limits)) for _ in range(_PREFIXES)]
        for prefix, own, answer in requests:
            engine.add_request(prefixes[prefix] + take(own), of_length(answer))
        for _ in range(STEPS):
            engine.step()
        log = engine.recorder.log()
        for request in log.requests["id"]:
            engine.abort_request(request)
        engine.let_go()
        samples = samples_of(log, "queued")
        if len(samples) != len(log):
            raise RuntimeError("a forward broke")
        return samples
