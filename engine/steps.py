"""Parts of a step of the engine, in whichever order its loop runs steps.

    schedule -> prepare -> launch -> sample -> over

The scheduling side (CPU-S) plans a step and books what came of it; the launching side (CPU-L) runs it.
"""

from __future__ import annotations

from collections import deque
from typing import Unpack

import numpy as np
import torch

from blis_py.core.request import DECODING, Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.errors import InputError
from engine.emission import Emitted, emit
from engine.emitters import Emitters
from engine.executor import Batch, Executor
from engine.flight import Flight
from engine.grammar.compiler import Grammars
from engine.grammar.masks import BatchMask, Masks
from engine.grammar.state import Grammar
from engine.lifecycle import EngineLifecycle, Parts
from engine.outcome import StepOutcome, nothing
from engine.sampler import Sampler, SamplingPlan
from engine.sampling_params import SamplingParams
from engine.sequence import Roster, Sequence
from engine.steplog import StepRecorder
from engine.timing import FlightTimer, GpuTimeline, StepTimer


class EngineSteps(EngineLifecycle[Scheduler, StepRecorder]):
    """The parts of a step, for requests whose tokens come one after another.

    Args:
        executor: runs the model.
        sampler: chooses tokens.
        timer: of the step that is being planned.
        seed: from it and its number every request without a seed gets one.
        parts: what every engine is made of.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        sampler: Sampler,
        timer: StepTimer,
        seed: int = 0,
        **parts: Unpack[Parts[Scheduler, StepRecorder]],
    ) -> None:
        super().__init__(**parts)
        self.executor = executor
        self.sampler = sampler
        self.timer = timer
        self.overlapped = self.scheduler.config.async_scheduling
        self.grammars = Grammars(self.tokenizer, self.vocab_size)
        self._masks = Masks(self.vocab_size, self.clock)
        self._mask: BatchMask | None = None
        """Mask of the step under way, if any of its rows is constrained."""
        self._own_seed = seed
        self._inference = torch.inference_mode()
        self._decoding = Roster()
        self._calm = False
        """Whether the running requests are unchanged since the roster was made."""
        self._flights: deque[Flight] = deque()
        """In the overlapped loop, the steps in hand: the one that runs first."""
        self._timeline = GpuTimeline()

    # -- CPU-S, before the forward ---------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Step | None:
        """The next step, or None."""
        if self.overlapped:
            self.timer = FlightTimer(self.clock, self.sampler.device, self._timeline)
        self._mask = None
        self.timer.start(now_ns)
        self.recorder.boundary(now_ns)
        preemptions = self.scheduler.counters.preemptions
        step = self.scheduler.schedule(now_ns)
        if self.scheduler.counters.preemptions > preemptions:
            self._uncertain()
        if step is not None:
            self._update_decoding(step)
            self.recorder.planned(step, self.scheduler, self._decoding)
        self.timer.lap()
        return step

    def _update_decoding(self, step: Step) -> None:
        """Update of the running requests, limited to steps at which one arrived or left.

        Where none has, and as many decode as before, they are the same: always the first in running order.
        """
        calm = not (step.prefills or step.preempted)
        if not (calm and self._calm and step.features.decode_seqs == len(self._decoding)):
            decoding = Roster([r for r in self.scheduler.running if r.status is DECODING])
            if decoding != self._decoding:
                self._decoding = decoding
        self._calm = calm

    def _computing(self, step: Step) -> list[Request]:
        """Sequences with computed tokens in the step just planned."""
        return [*self._decoding, *(request for request, _ in step.prefills)]

    def prepare(self, step: Step) -> Batch:
        """The tensors of the step, on the host."""
        batch = self.executor.prepare(step, self._decoding, self.scheduler, self._sequences)
        emitters = batch.emitters
        if batch.bucket and emitters.sequences and not emitters.constrained:
            batch.greedy = self.sampler.plan(emitters).plain
        self.timer.lap()
        return batch

    # -- CPU-L -----------------------------------------------------------------------------------------

    def launch(self, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Start the forward; on CUDA it is not over when this returns.

        Returns:
            Logits `[R, vocab]` and positions `[R]` of the emitting rows; no logits if no row emits.
        """
        self.clock.computing(len(batch.layout.device.input_ids))
        self.executor.send(batch)
        self.timer.gpu_begin()
        logits, positions = self.executor.launch(batch)
        self.timer.lap()
        return logits, positions

    def sample(self, batch: Batch, logits: torch.Tensor | None, positions: torch.Tensor) -> StepOutcome:
        """One token for each emitting sequence; waits for the device.

        Args:
            logits: `[R, vocab]`, of the emitting rows.
            positions: `[R]`.
        """
        bitmask = None
        if batch.emitters.constrained and logits is not None:
            self._mask = self._masks.launched(batch.emitters, logits.device)
            bitmask = None if self._mask is None else self._mask.fill()
        sampled = self._sample(batch, logits, positions, self.timer, bitmask=bitmask)
        ticket = self.executor.side.submit(sampled.to_host)
        self.timer.resume()
        outcome = ticket.wait()
        self.timer.arrived()
        self.executor.note_tokens(batch.emitters, outcome.ids())
        self.timer.lap()
        return outcome

    def _sample(
        self,
        batch: Batch,
        logits: torch.Tensor | None,
        positions: torch.Tensor,
        timer: StepTimer,
        plan: SamplingPlan | None = None,
        bitmask: torch.Tensor | None = None,
    ) -> StepOutcome:
        """Start sampling; sampled tokens are written to the relay buffer."""
        if batch.tokens is not None:
            outcome = StepOutcome(batch.tokens)
            self.executor.keep_tokens(batch, batch.tokens)
        elif logits is None:
            outcome = nothing()
        else:
            plan = plan or self.sampler.plan(batch.emitters)
            outcome = self.sampler.launch(logits, positions, plan, bitmask)
            tokens = outcome.tokens
            self.executor.keep_tokens(batch, tokens if bitmask is None else tokens.clamp_min(0))
        timer.gpu_end()
        outcome.active_experts = self.executor.active_experts()
        return outcome

    def _run(self, batch: Batch, plan: SamplingPlan | None, timer: StepTimer) -> StepOutcome:
        """A step whose inputs are on their way: forward, sampling, and the copies of what comes of it."""
        timer.gpu_begin()
        return self._sample(batch, *self.executor.launch(batch), timer, plan).to_host()

    # -- CPU-S, behind the forward ---------------------------------------------------------------------

    def _emit(
        self, emitters: Emitters, outcome: StepOutcome, complete: bool = True
    ) -> tuple[Emitted, list[Request]]:
        """Append tokens to sequences still running and pass them to the outputs; see `emission.emit`."""
        emitted, stopped = emit(emitters, outcome, complete)
        if emitters.delivered:
            self.outputs.emitted(emitted.sequences, emitted.tokens, stopped, decoded=emitters.watched)
        return emitted, stopped

    def _over(
        self,
        step: Step,
        batch: Batch,
        outcome: StepOutcome,
        ended: list[Request],
        timer: StepTimer,
        mask: BatchMask | None,
    ) -> list[Sequence]:
        """The step is over, and with it these requests; returns their sequences."""
        end_ns = self.clock.now_ns()
        for sequence in batch.emitters.sequences[batch.num_decodes :]:
            if sequence.first_token_ns < 0 and sequence.output_ids:
                sequence.first_token_ns = end_ns
        finished = [self._remove(request, end_ns) for request in ended]
        times, waited = timer.times(end_ns), timer.launch_bound
        if mask is not None:
            self.recorder.masked(mask.times())
        self.recorder.done(
            step,
            times,
            ended,
            bucket=batch.bucket,
            active_experts=outcome.experts(),
            launch_bound=waited,
            launching_ns=timer.launching_ns,
            forward=timer.forward() if isinstance(timer, FlightTimer) else (-1, -1),
        )
        return finished

    # -- trouble ---------------------------------------------------------------------------------------

    def _drop(self, step: Step, error: BaseException) -> list[Sequence]:
        """End the requests of a planned step that broke; the scheduler has not yet finished that step."""
        for request in step.preempted:
            self.executor.release(self._sequences[request])
        for request in self._decoding:
            self.scheduler.block_table(request)  # so that blocks taken for this step have an owner
        failed = self._abort_failed(self._computing(step), error, self.clock.now_ns())
        self._decoding = Roster()
        return failed

    def _record_failure(self, step: Step, timer: StepTimer, failed: list[Sequence]) -> None:
        ended = [sequence.request for sequence in failed]
        self.recorder.done(step, timer.times(self.clock.now_ns()), ended, failed=True)

    # -- what an autoregressive engine supplies ---------------------------------------------------------

    def _check_params(self, prompt_ids: list[int], params: SamplingParams) -> None:
        if not prompt_ids:
            raise InputError("is empty", key="prompt", fix="give at least one token")

    def _open_grammar(self, params: SamplingParams, stop_ids: frozenset[int]) -> Grammar | None:
        return self.grammars.begin(params, stop_ids)

    def _seed(self, params: SamplingParams, number: int) -> int:
        if params.seed is not None:
            return params.seed
        return _mix(self._own_seed, number) if params.temperature else 0  # greedy: it draws no numbers

    def _held(self, sequence: Sequence) -> None:
        self._calm = False
        self._uncertain()
        self.executor.release(sequence)
        if sequence.params.penalised:
            self.sampler.release(sequence)

    def _uncertain(self) -> None:
        """Note that requests of steps in flight have left, or were retracted."""
        for flight in self._flights:
            flight.complete = False

    def _forget(self) -> None:
        self.scheduler = Scheduler(self.scheduler.config, track_longest=True)
        self.recorder = StepRecorder(self.recorder.meta)
        self._decoding, self._timeline = Roster(), GpuTimeline()


def _mix(seed: int, number: int) -> int:
    """A seed of 63 bits for the request of this number."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
