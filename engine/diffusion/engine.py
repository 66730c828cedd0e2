"""The engine for block diffusion: the scheduler core on a real clock, with forwards and steps in the middle.

Twin of `blis_py.cluster.instances.diffusion`: the same `DiffusionScheduler` forms the same batches there.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack, cast

import torch

from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_log import DiffusionLog
from blis_py.core.diffusion_request import BatchOutcome, DenoiseBatch, DiffusionRequest
from blis_py.core.request import Request
from blis_py.core.token_keys import token_keys
from blis_py.errors import InputError
from engine.diffusion.executor import DiffusionExecutor
from engine.diffusion.loops import run_fdfo, run_sync
from engine.diffusion.steplog import RoundRecorder, TimedRounds
from engine.lifecycle import EngineLifecycle, Parts
from engine.lost_device import is_lost
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class DiffusionOutput:
    """Output of one call of `DiffusionEngine.step`."""

    blocks: list[tuple[Sequence, list[int]]] = field(default_factory=list)
    """Sequences of which a block was committed, with the tokens they emit."""
    finished: list[Sequence] = field(default_factory=list)
    """Those that are over, for whatever reason."""

    @property
    def sequences(self) -> list[Sequence]:
        """Those that emitted something."""
        return [sequence for sequence, tokens in self.blocks if tokens]


class DiffusionEngine(EngineLifecycle[DiffusionScheduler, RoundRecorder]):
    """Requests in, blocks of tokens out. `engine.diffusion.build` makes one.

    A prompt may be empty. Its loops over the rounds of a batch are in `engine.diffusion.loops`. It has no
    overlapped loop: which requests are in the next batch depends on whose block this batch finishes, so what
    could be planned ahead is the next round of the same batch, and that asks nothing of the scheduler anyway:
    first-done-first-out goes straight on with it.

    Args:
        executor: runs the model.
        poll: called between the rounds of a batch, to bring in arrivals (by `add_request`).
        parts: what every engine is made of; its recorder gets a row for every round.
    """

    request_kind = DiffusionRequest
    default_params = GREEDY

    def __init__(
        self,
        *,
        executor: DiffusionExecutor,
        poll: Callable[[], None] | None = None,
        **parts: Unpack[Parts[DiffusionScheduler, RoundRecorder]],
    ) -> None:
        super().__init__(**parts)
        self.executor = executor
        self.poll = poll
        self.log = DiffusionLog()
        self._committed: dict[Request, list[int]] = {}
        """Token ids of prompt and committed blocks, what lies beyond an end of sequence included."""

    def place_request(
        self, prompt: list[int], computed: int, params: SamplingParams = GREEDY, keys: Ordered[bytes] = ()
    ) -> Sequence:
        """A request that runs from the next batch on, its first `computed` tokens in the cache.

        These are placed, not computed; see `LLMEngine.place_request`.

        Args:
            computed: whole blocks.
            keys: content keys of their pages, as they would be there; without them, committing a block
                would have to name all pages.

        Raises:
            RuntimeError: there is no room; see `DiffusionScheduler.place`.
        """
        name, number = f"request_{self._added}", self._added
        request = DiffusionRequest(name, self.clock.now_ns(), len(prompt), block_keys=keys, row=number)
        self.scheduler.place(request, computed)
        self._added += 1
        sequence = Sequence(number, request, prompt, params, seed=0, stop_ids=frozenset(), tokenizer=None)
        return self._enter(sequence)

    def _enter(self, sequence: Sequence) -> Sequence:
        self._committed[sequence.request] = sequence.prompt_ids.tolist()
        return super()._enter(sequence)

    # -- the loop ----------------------------------------------------------------------------------

    def step(self, now_ns: int | None = None) -> DiffusionOutput:
        """Schedule, run rounds, commit: one batch, or nothing if there is nothing to compute.

        An error on the way ends the requests of the batch, not the engine.

        Args:
            now_ns: when the step began, where its caller had work to do first; `None` = now.
        """
        now_ns = self.clock.now_ns() if now_ns is None else now_ns
        gone = self.let_go(now_ns)
        self.recorder.boundary(now_ns)
        batch = self.scheduler.schedule(now_ns)
        if batch is None:
            return DiffusionOutput(finished=gone)
        timed = TimedRounds(self.recorder, self.clock, self.scheduler, batch, now_ns)
        for request in batch.preempted:
            self.executor.slots.evict(request)
        try:
            with torch.inference_mode():
                running = self.executor.begin(batch, self._tokens)
                timed.prepared(running)
                outcome = self._run(timed)
                blocks = running.end(self.scheduler.diffusion.reuse_in_place)
        except Exception as error:
            failed = self._fail(batch, error, timed)
            if is_lost(error):
                raise
            return DiffusionOutput(finished=gone + failed)
        return self._commit(batch, outcome, blocks, gone, timed)

    def _run(self, timed: TimedRounds) -> BatchOutcome:
        if self.scheduler.diffusion.fdfo:
            return run_fdfo(timed, partial(self._must_yield, timed))
        return run_sync(timed)

    def _must_yield(self, timed: TimedRounds) -> bool:
        if self.poll is not None:
            self.poll()
        now_ns = self.clock.now_ns()
        if self._to_abort or self.scheduler.must_yield(now_ns):
            return True
        self.recorder.boundary(now_ns)
        timed.goes_on(now_ns)
        return False

    def _tokens(self, request: DiffusionRequest, start: int, end: int) -> list[int]:
        return self._committed[request][start:end]

    def _commit(
        self,
        batch: DenoiseBatch,
        outcome: BatchOutcome,
        blocks: list[list[int]],
        gone: list[Sequence],
        timed: TimedRounds,
    ) -> DiffusionOutput:
        """Committed blocks become output, as far as their first end of sequence."""
        emitted: dict[Request, list[int]] = {}
        stopped: dict[Request, int] = {}
        keys: dict[Request, list[bytes]] = {}
        for request, block in zip(batch.denoise, blocks, strict=True):
            if not block:
                continue
            sequence, new = self._sequences[request], block[request.known_tokens :]
            emitted[request] = taken = []
            for token in new[: request.target - request.generated]:
                taken.append(token)
                sequence.output_ids.append(token)
                if sequence.stops_at(token):
                    stopped[request] = len(taken)
                    break
            self._committed[request] += new
            keys[request] = self._new_keys(request)
        outcome = BatchOutcome(outcome.accept_lengths, outcome.rounds, outcome.spent, stopped, keys)
        self.log.batch(batch, outcome)
        commits = self.scheduler.finish(batch, outcome)
        end_ns = self.clock.now_ns()
        self.log.commits(commits, end_ns)
        output = DiffusionOutput(finished=gone)
        for commit in commits:
            sequence = self._sequences[commit.request]
            if sequence.first_token_ns < 0:
                sequence.first_token_ns = end_ns
            output.blocks.append((sequence, emitted[commit.request]))
        self.outputs.committed(output.blocks, stopped)
        for commit in commits:
            if commit.finished:
                output.finished.append(self._remove(commit.request, end_ns))
        timed.over(end_ns, commits)
        return output

    def _new_keys(self, request: DiffusionRequest) -> list[bytes]:
        """Content keys of the pages that the block just committed completes."""
        if not self.scheduler.config.enable_prefix_caching:
            return []
        page = self.scheduler.config.block_size
        named = len(request.block_keys)
        parent = request.block_keys[-1] if named else b""
        assert isinstance(parent, bytes)
        return token_keys(self._committed[request][named * page :], page, parent)

    def _fail(self, batch: DenoiseBatch, error: Exception, timed: TimedRounds) -> list[Sequence]:
        """End the requests of a batch that broke."""
        end_ns = self.clock.now_ns()
        involved = [*batch.denoise, *(request for request, _ in batch.prefills)]
        failed = self._abort_failed(involved, error, end_ns)
        timed.failed(end_ns, failed)
        return failed

    # -- what an engine for block diffusion supplies -----------------------------------------------

    def _check_params(self, prompt_ids: list[int], params: SamplingParams) -> None:
        if params.temperature:
            fix = "use temperature 0"
            raise InputError(
                "block diffusion takes the best tokens", key="temperature", value=params.temperature, fix=fix
            )
        if params.penalised or params.logprobs is not None:
            raise InputError("penalties and logprobs are not there for block diffusion", key="sampling")
        if params.structured_outputs is not None:
            fix = "drop it, or use an autoregressive model"
            raise InputError("is not there for block diffusion", key="structured_outputs", fix=fix)

    def _seed(self, params: SamplingParams, number: int) -> int:
        return 0

    def _held(self, sequence: Sequence) -> None:
        del self._committed[sequence.request]
        self.executor.slots.forget(cast(DiffusionRequest, sequence.request))

    def _forget(self) -> None:
        self.scheduler = DiffusionScheduler(self.scheduler.config, self.scheduler.diffusion)
        self.recorder, self.log = RoundRecorder(self.recorder.meta), DiffusionLog()
