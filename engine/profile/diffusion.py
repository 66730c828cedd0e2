"""Measurement of rounds: a block-diffusion engine is led to a shape, and its own loop measures there."""

from __future__ import annotations

import numpy as np

from blis_py.core.diffusion_request import DenoiseBatch, DiffusionRequest
from blis_py.core.token_keys import token_keys
from blis_py.traces.samples import StepSamples, samples_of
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.executor import DiffusionExecutor, RunningBatch, TokensOf
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.steplog import RoundRecorder
from engine.profile.diffusion_plan import ROUNDS, RoundShape
from engine.profile.experts import ForcedExperts
from engine.profile.prompts import ProfilePrompts
from engine.profile.served import MAX_STEPS, concurrency, of_length, serve_closed, short_blocks
from engine.profile.shapes import limits_of
from engine.sampling_params import SamplingParams

ONE_BY_ONE = LowConfidence(threshold=1.0)
"""Unmasks one position of every block and round, so that what is measured is known beforehand."""
_ENDLESS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=None, detokenize=False)
_MANY = 1 << 30


class SteeredExecutor(DiffusionExecutor):
    """Substitute for an engine's executor, which leads batches to a composition.

    Attributes:
        skip: leave out forward and algorithm: prompts count as computed, blocks stay as they are.
    """

    def __init__(self, inner: DiffusionExecutor) -> None:
        super().__init__(inner.model, inner.kv, inner.slots, inner.page_tokens, inner.graphs)
        self.skip = False

    def begin(self, batch: DenoiseBatch, tokens_of: TokensOf) -> RunningBatch:
        return _SkippedBatch(batch, self.slots.block_tokens) if self.skip else super().begin(batch, tokens_of)


class _SkippedBatch(RunningBatch):
    """A batch with empty rounds."""

    def __init__(self, batch: DenoiseBatch, block_tokens: int) -> None:
        self.batch, self.block_tokens = batch, block_tokens
        self.done = [False] * len(batch.denoise)
        self._logit_rows, self._bucket = [0] * len(batch.denoise), 0

    @property
    def on_cuda(self) -> bool:
        return False

    def forward(self) -> None: ...

    def step(self) -> list[bool]:
        return self.done

    def end(self, in_place: bool) -> list[list[int]]:
        return [[] for _ in self.batch.denoise]


class RoundBench:
    """Bench of shapes on an engine without other requests; like `engine.profile.measure.StepBench`.

    Args:
        engine: in FDFO mode, with the algorithm `ONE_BY_ONE`.
    """

    stride = ROUNDS

    def __init__(
        self, engine: DiffusionEngine, prompts: ProfilePrompts, experts: ForcedExperts | None = None
    ) -> None:
        self.engine, self._prompts, self._experts = engine, prompts, experts
        self.limits = limits_of(engine, experts)
        self.block = engine.scheduler.diffusion.block_tokens
        self._executor = engine.executor = SteeredExecutor(engine.executor)
        engine.poll = self._round_over
        self._left = _MANY
        self._named = 0
        self._places = [b"%d" % page for page in range(self.limits.max_model_len // self.limits.block_size)]
        for k_cache, v_cache in engine.executor.kv:
            k_cache.normal_()
            v_cache.normal_()

    def serve(self, number: int) -> list[StepSamples]:
        """A closed loop of short answers, as many under way as there may be or fewer; see `Bench.serve`.

        Batches of few rounds begin and end as requests come and go.
        """
        engine, limits = self.engine, self.limits
        engine.recorder = RoundRecorder(engine.recorder.meta)
        if self._experts is not None:
            self._experts.force(0)
        self._left = _MANY
        requests = short_blocks(limits, self.block, number)
        serve_closed(engine, requests, concurrency(limits, number), self._prompts)
        samples = self._recorded_samples("served")
        samples.table["shape"] += number * MAX_STEPS
        return [samples]

    def visit(self, shape: RoundShape) -> StepSamples:
        """The measured rounds of one visit; `shape` counts them from 0.

        Raises:
            RuntimeError: the engine did something else than planned.
        """
        engine = self.engine
        engine.recorder = RoundRecorder(engine.recorder.meta)
        if self._experts is not None:
            self._experts.force(shape.experts)
        prompts = [self._prompts.take(past + new) for new, past in shape.prefills]
        for prompt, (_, past) in zip(prompts, shape.prefills, strict=True):
            if past:
                self._cache(prompt[:past])
        self._lead(shape)
        for prompt in prompts:
            engine.add_request(prompt, _ENDLESS)
        first = engine.recorder.steps
        self._run(shape.rounds)
        self._skip()  # for the time from the last round to the next
        self._abort()
        return self._samples(shape, first)

    def _cache(self, tokens: list[int]) -> None:
        """Put these tokens into the prefix cache, as the prefix of later prompts."""
        scheduler = self.engine.scheduler
        keys = token_keys(tokens, self.limits.block_size)
        request = DiffusionRequest("prefix", 0, len(tokens), block_keys=keys)
        scheduler.place(request, len(tokens))
        scheduler.abort(request)

    def _lead(self, shape: RoundShape) -> None:
        """Blocks at their contexts, and one real round; without blocks, those of a short answer."""
        engine = self.engine
        if not shape.blocks:
            engine.add_request(self._prompts.take(self.block - 1), of_length(1))
            self._run(_MANY)
            return
        tail = self.block - 1 - shape.masked  # one position is unmasked before anything counts
        commits = shape.masked < shape.rounds
        for context in shape.blocks:
            names = self._names(context // self.limits.block_size) if commits else ()
            engine.place_request(self._prompts.some(context + tail).tolist(), context, _ENDLESS, names)
        self._run(1)

    def _names(self, pages: int) -> list[bytes]:
        """Content keys that no other page has."""
        self._named += 1
        begin = b"placed %d " % self._named
        return [begin + end for end in self._places[:pages]]

    def _run(self, rounds: int) -> None:
        """A batch, for so many rounds at most."""
        self._left = rounds
        self.engine.step()

    def _skip(self) -> None:
        """A batch of one round, without a forward."""
        self._executor.skip = True
        self._run(1)
        self._executor.skip = False

    def _round_over(self) -> None:
        """Between two rounds of a batch: it ends here if there have been enough.

        A deadline that seems to have come sends every batch back to the scheduler, who then finds none.
        """
        self._left -= 1
        if self._left <= 0:
            self.engine.scheduler.first_deadline_ns = 0

    def _abort(self) -> None:
        """Abort all running requests."""
        for request in [*self.engine.scheduler.running]:
            self.engine.abort_request(request.id)
        self.engine.let_go()

    def _samples(self, shape: RoundShape, first: int) -> StepSamples:
        """The rows of the measured rounds, checked against the plan."""
        log, samples = self.engine.recorder.log(), self._recorded_samples(shape.source)
        batch = log.steps["batch"][first]
        rows = [row for row in range(first, len(log)) if log.steps["batch"][row] == batch]
        samples = samples.where(np.array(rows))
        samples.table["shape"][:] = np.arange(len(rows))
        names = ("denoise_blocks", "emitted_rows", "prefill_kv_tokens", "prefill_blocks")
        measured = len(rows), *(int(samples[name][0]) for name in names)
        planned = (
            shape.rounds,
            len(shape.blocks),
            len(shape.blocks) * shape.masked,
            sum(shape.blocks) + sum(past for _, past in shape.prefills),
            sum(new for new, _ in shape.prefills) // self.block,
        )
        if measured != planned:
            raise RuntimeError(f"planned rounds, {', '.join(names)} {planned}, was {measured}: {shape}")
        return samples

    def _recorded_samples(self, source: str) -> StepSamples:
        """All rounds since the recorder was made, with the experts that they used."""
        log = self.engine.recorder.log()
        samples = samples_of(log, source)
        if len(samples) != len(log):
            raise RuntimeError("a forward broke")
        if self._experts is not None:
            tokens = np.maximum(samples["prefill_tokens"], samples["bucket"] * self.block)
            samples.table["active_experts"][:] = [self._experts.active(int(count)) for count in tokens]
        return samples
