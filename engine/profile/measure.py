"""Bring an autoregressive engine to a shape and measure steps there, identical to those of a served run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from blis_py.core.request import Request
from blis_py.core.token_keys import token_keys
from blis_py.traces.samples import StepSamples, samples_of
from engine.engine import LLMEngine
from engine.executor import Forward
from engine.kernels.attention import AttentionMetadata
from engine.profile.ahead import AheadTimer, Leads
from engine.profile.experts import ForcedExperts
from engine.profile.gpu_state import GpuMonitor, GpuState
from engine.profile.prompts import ProfilePrompts
from engine.profile.queued import QueueBench
from engine.profile.served import MAX_STEPS, concurrency, of_length, serve_closed, short_requests
from engine.profile.shapes import Shape, ShapeLimits, limits_of
from engine.sampling_params import SamplingParams
from engine.staging_buffer import Inputs
from engine.steplog import StepRecorder

_FEW = 64
"""Bytes of float8 below this are numbers from 0 to 2."""
_ENDLESS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=None, seed=0, detokenize=False)


def _limits(engine: LLMEngine, experts: ForcedExperts | None) -> ShapeLimits:
    """Limits of the engine."""
    config, mixed = engine.scheduler.config, engine.executor.mixed_graphs
    return replace(
        limits_of(engine, experts),
        mixed_buckets=tuple(mixed.sizes) if mixed is not None else (),
        mixed_prompts=mixed.prompts if mixed is not None else 0,
        shares=config.enable_prefix_caching and config.prefix_cache != "none",
    )


class _NoForward(Forward):
    """Stub of a model: random logits in every row, so that sequences get different tokens."""

    def __init__(self, forward: Forward, vocab_size: int, rows: int) -> None:
        super().__init__(forward.model, forward.kv)
        self._random = torch.randn(rows, vocab_size, device=forward.kv[0][0].device)

    def hidden(self, inputs: Inputs, meta: AttentionMetadata, fresh: Sequence[int] = ()) -> torch.Tensor:
        return inputs.input_ids.view(-1, 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._random[: len(hidden)].clone()


class StepBench:
    """Measurement of shapes on an otherwise unused engine.

    Sequences are placed at their contexts: they get pages whose content is neither computed, scheduled nor
    hashed. The pages are filled with random numbers once, and every visit takes the least recently used ones.
    Measured steps run as in service, after a real step; on a GPU the host launches them ahead of the stream.
    """

    stride = 1
    """Number of compositions in one visit."""

    def __init__(
        self, engine: LLMEngine, prompts: ProfilePrompts, experts: ForcedExperts | None = None
    ) -> None:
        self.engine, self._prompts, self._experts = engine, prompts, experts
        self.limits = _limits(engine, experts)
        self._queues = QueueBench(engine, self.limits, prompts)
        self._no_forward = _NoForward(engine.executor.forward, engine.vocab_size, self.limits.max_num_seqs)
        on_gpu = engine.timer.device.type == "cuda"
        self._timer = AheadTimer(engine.clock) if on_gpu else None
        self._leads, self._monitor = Leads(), GpuMonitor() if on_gpu else None
        for cache in (cache for layer in engine.executor.forward.kv for cache in layer):
            if cache.is_floating_point() and cache.element_size() > 1:
                cache.normal_()
            else:
                cache.view(torch.uint8).random_(0, _FEW)

    def visit(self, shape: Shape) -> StepSamples:
        """The measured steps of one visit to a shape.

        Raises:
            RuntimeError: the engine deviated from the plan.
        """
        engine = self.engine
        engine.recorder = StepRecorder(engine.recorder.meta)
        if self._experts is not None:
            self._experts.force(shape.experts)
        prompts = [self._prompts.take(past + new) for new, past in shape.prefills]
        for prompt, (_, past) in zip(prompts, shape.prefills, strict=True):
            if past:
                self._cache(prompt[:past])
        self._lead(shape)
        first, natural = engine.recorder.steps, engine.timer
        if self._timer is not None:
            engine.timer, self._timer.sleep_ns, self._timer.spared = self._timer, self._leads.of(shape), []
        now_ns = engine.clock.now_ns()
        for prompt in prompts:  # within the step, as in service
            engine.add_request(prompt, _ENDLESS)
        engine.step(now_ns)
        for _ in range(1, shape.steps):
            engine.step()
        next_ns, state = engine.clock.now_ns(), self._monitor.read() if self._monitor else GpuState()
        engine.timer = natural
        samples = self._leave(shape, first, next_ns)
        samples.table["sm_mhz"][:], samples.table["power_w"][:] = state
        return samples if self._timer is None else self._awake(shape, samples, self._timer)

    def _awake(self, shape: Shape, samples: StepSamples, timer: AheadTimer) -> StepSamples:
        """The steps as they would have been with a stream that does not sleep."""
        spared = np.array(timer.spared, dtype=np.int64)
        for name in ("total_ns", "host_ns", "sample_ns"):
            samples.table[name] = samples[name] - spared
        self._leads.record(shape, int(samples["launching_ns"].max()), timer.ahead)
        return samples

    def serve(self, number: int) -> list[StepSamples]:
        """Requests that arrive and leave, and others that wait; see `Bench.serve`."""
        if self._experts is not None:
            self._experts.force(0)
            return [self._queues.measure(number)]
        return [self._served(number), self._queues.measure(number)]

    def _served(self, number: int) -> StepSamples:
        """A closed loop of short requests, at or below the largest concurrency."""
        engine, limits = self.engine, self.limits
        engine.recorder = StepRecorder(engine.recorder.meta)
        serve_closed(engine, short_requests(limits, number), concurrency(limits, number), self._prompts)
        samples = samples_of(engine.recorder.log(), "served")
        samples.table["shape"] += number * MAX_STEPS
        return samples

    def _cache(self, tokens: list[int]) -> None:
        """Put these tokens into the prefix cache as a prefix for others."""
        scheduler = self.engine.scheduler
        keys = token_keys(tokens, self.limits.block_size)
        request = Request("prefix", 0, len(tokens) + 1, block_keys=keys)
        scheduler.place(request, len(tokens))
        scheduler.abort(request)

    def _lead(self, shape: Shape) -> None:
        """Place sequences at their contexts and run one real step; without decodes, that of a short prompt.

        A step without a forward precedes it, in which each sequence computes the last token it was placed
        with. The real step adds another.
        """
        engine = self.engine
        if not shape.decodes:
            engine.add_request(self._prompts.take(1), of_length(1))
        else:
            some, begin = self._prompts.some, np.array(self._prompts.take(shape.shared), dtype=np.int64)
            prompts = [np.concatenate((begin, some(n - 1 - shape.shared))) for n in shape.decodes]
            placed = [engine.place_request(prompt, _ENDLESS, shape.shared) for prompt in prompts]
            self._skip()
            for sequence in placed:
                sequence.table_changed = False  # its pages are those it joined with
        engine.step()

    def _skip(self) -> None:
        """Run a step without its forward."""
        executor = self.engine.executor
        forward, graphs, mixed = executor.forward, executor.graphs, executor.mixed_graphs
        executor.forward, executor.graphs, executor.mixed_graphs = self._no_forward, None, None
        self.engine.step()
        executor.forward, executor.graphs, executor.mixed_graphs = forward, graphs, mixed

    def _leave(self, shape: Shape, first: int, next_ns: int) -> StepSamples:
        """Remove all sequences; return the rows of the measured steps, checked against the plan.

        Args:
            next_ns: time at which another step would have begun.
        """
        engine = self.engine
        log = engine.recorder.log()
        log.steps["end_ns"][-1] = next_ns  # no idle time until then
        for number in log.requests["id"]:
            engine.abort_request(number)
        engine.let_go()
        samples = samples_of(log, shape.source)
        if len(samples) != len(log):
            raise RuntimeError("a forward broke")
        samples = samples.where(np.arange(first, first + shape.steps))
        samples.table["shape"][:] = 0
        new = sum(tokens for tokens, _ in shape.prefills)
        planned: tuple[int, ...] = (len(shape.decodes), new, sum(past for _, past in shape.prefills))
        names: tuple[str, ...] = ("decode_seqs", "prefill_tokens", "prefill_kv_tokens")
        if shape.decodes and not shape.prefills:
            planned, names = (*planned, (len(shape.decodes) - 1) * shape.shared), (*names, "shared_kv_tokens")
        measured = tuple(int(samples[name][0]) for name in names)
        if measured != planned:
            raise RuntimeError(f"planned {dict(zip(names, planned, strict=True))}, was {measured}: {shape}")
        if self._experts is not None:
            rows = np.maximum(samples["bucket"], samples["decode_seqs"] + samples["prefill_tokens"])
            samples.table["active_experts"][:] = [self._experts.active(int(count)) for count in rows]
        return samples
