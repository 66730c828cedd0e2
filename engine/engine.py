"""The engine's loops: the scheduler core on a real clock, with a forward pass in the middle.

    synchronous    schedule -> prepare -> launch -> sample -> finish
    overlapped     schedule n + 1 -> prepare -> launch -> advance, then await n -> resolve

The twins `run_sync` and `run_overlapped` stand side by side. In the first, host and device take turns. In the
second, the scheduling side (CPU-S) plans step n + 1 and the launching side (CPU-L) has it in hand before
anybody looks at what came of step n: what the host does is hidden behind the device's work.

The simulator's instances (`blis_py.cluster.autoregressive`, `blis_py.cluster.overlapped`) are their twins:
the same `Scheduler` forms the same batches there, and a latency model says how long they take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from blis_py.core.features import StepFeatures
from blis_py.core.request import Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.core.token_keys import token_keys
from blis_py.errors import InputError
from engine.batch import Ints
from engine.clock import Clock
from engine.executor import Batch, Emitters, Executor, end_of
from engine.grammar.compiler import Grammars
from engine.grammar.masks import BatchMask, Masks
from engine.grammar.masks import emitted as allowed
from engine.grammar.state import Grammar
from engine.kernels.compilations import Watch
from engine.launching import Ticket
from engine.lifecycle import EngineLifecycle
from engine.models.tokenizer import Tokenizer
from engine.outcome import Emitted, Outcome, note_logprobs, nothing
from engine.sampler import Sampler, SamplingPlan
from engine.sampling_params import SamplingParams
from engine.sequence import Roster, Sequence
from engine.steplog import StepRecorder
from engine.timing import FlightTimer, GpuTimeline, StepTimer

NO_STOP: frozenset[int] = frozenset()
_IN_HAND = 2
"""Steps that the launching side of the overlapped loop has: the one that runs, and the one behind it."""


@dataclass(slots=True)
class StepOutput:
    """What one call of `LLMEngine.step` brought."""

    sequences: Ordered[Sequence] = ()
    """Those that emitted a token."""
    tokens: Ordered[int] = ()
    """Their tokens."""
    finished: list[Sequence] = field(default_factory=list)
    """Those that are over, for whatever reason."""


@dataclass(slots=True)
class Flight:
    """A step that is launched, and whose outcome is not known. All that its forward reads is kept here."""

    step: Step
    batch: Batch
    requests: list[Request]
    """Who computes something in it."""
    ticket: Ticket[Outcome]
    """Of its outcome; of its forward, as long as it is still to be sampled."""
    timer: FlightTimer
    complete: bool = True
    """Whether none of them can have left since it was launched."""
    mask: BatchMask | None = None
    """Which tokens grammars allow, where there are any."""
    to_sample: Callable[[torch.Tensor], Outcome] | None = None
    """With a mask, sampling waits for the tokens of the step before: they say what may come next."""


class LLMEngine(EngineLifecycle[Scheduler, StepRecorder]):
    """Requests in, tokens out, a step at a time. `engine.build` makes one from a config.

    With `async_scheduling` in the scheduler's settings it runs the overlapped loop.

    Args:
        scheduler: fresh; the engine is its only driver.
        executor: runs the model.
        sampler: chooses tokens.
        recorder: gets a row for every step.
        timer: of the step that is being planned.
        vocab_size: token ids are below it.
        seed: from it and its number every request without a seed gets one.
        compilations: kernels that were compiled for it.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        executor: Executor,
        sampler: Sampler,
        recorder: StepRecorder,
        clock: Clock,
        timer: StepTimer,
        vocab_size: int,
        tokenizer: Tokenizer | None = None,
        seed: int = 0,
        compilations: Watch | None = None,
    ) -> None:
        super().__init__(
            scheduler=scheduler,
            recorder=recorder,
            clock=clock,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            compilations=compilations,
        )
        self.executor = executor
        self.sampler = sampler
        self.timer = timer
        self.overlapped = scheduler.config.async_scheduling
        self.grammars = Grammars(tokenizer, vocab_size)
        self._masks = Masks(vocab_size, clock)
        self._mask: BatchMask | None = None
        """Of the step under way, if any of its rows is constrained."""
        self._own_seed = seed
        self._inference = torch.inference_mode()
        self._decoding = Roster()
        self._calm = False
        """Whether nobody has come or gone since the roster was made."""
        self._flights: deque[Flight] = deque()
        """In the overlapped loop, the steps in hand: the one that runs first."""
        self._timeline = GpuTimeline()

    def place_request(self, prompt: Ints, params: SamplingParams) -> Sequence:
        """A request that runs from the next step on, all of its prompt but the last token in the cache.

        Nobody has computed these tokens: their pages hold whatever they held. For whoever measures steps; to
        be called between steps.

        Args:
            prompt: neither looked at nor named, so nobody shares its pages.
            params: with a seed, and no stop tokens of its own.

        Raises:
            RuntimeError: there is no room; see `Scheduler.place`.
        """
        number = self._added
        request = Request(f"request_{number}", self.clock.now_ns(), len(prompt), row=number)
        self.scheduler.place(request, len(prompt) - 1)
        self._added += 1
        return self._enter(Sequence(number, request, prompt, params, params.seed or 0, NO_STOP, None))

    @property
    def has_unfinished(self) -> bool:
        """Whether there is anything to do: a step in flight has to be awaited, whoever still wants it."""
        return bool(self._sequences or self._flights)

    # -- the loops -------------------------------------------------------------------------------------

    def step(self, now_ns: int | None = None) -> StepOutput:
        """One turn of the engine's loop.

        An error on the way ends the requests of the step, not the engine.

        Args:
            now_ns: when the step began, where its caller had work to do first, such as bringing in what
                had arrived by then; `None` = now.
        """
        now_ns = self.clock.now_ns() if now_ns is None else now_ns
        return self.run_overlapped(now_ns) if self.overlapped else self.run_sync(now_ns)

    def run_sync(self, now_ns: int) -> StepOutput:
        """Schedule, execute, sample, finish: one forward, or nothing if there is nothing to compute."""
        gone = self.let_go(now_ns)
        step = self.schedule(now_ns)
        if step is None:
            return StepOutput(finished=gone)
        try:
            with self._inference:
                batch = self.prepare(step)
                outcome = self.sample(batch, *self.launch(batch))
        except BaseException as error:
            failed = self._fail(step, error)
            if isinstance(error, Exception):
                return StepOutput(finished=gone + failed)
            raise
        emitted, finished = self.finish(step, batch, outcome)
        self.clock.between_steps()
        return StepOutput(*_told(batch, emitted), gone + finished)

    def run_overlapped(self, now_ns: int) -> StepOutput:
        """Schedule and launch step n + 1, then await and resolve step n.

        Where nothing is in flight, two steps are launched at once (pipeline fill). Where nothing is left to
        launch, the step in flight is awaited, and what it frees is planned with next time.
        """
        self.recorder.boundary(now_ns, len(self._sequences))
        gone = self.let_go(now_ns)
        while len(self._flights) < _IN_HAND:
            step = self.schedule(now_ns)
            if step is None:
                break
            try:
                self._flights.append(self.fly(step))
                step = None  # it is in flight
                if len(self._flights) == 1:
                    self._sample_next()
            except BaseException as error:
                return self._crash(error, gone, step)
        if not self._flights:
            return StepOutput(finished=gone)
        flight = self._flights[0]
        try:
            outcome = self.land(flight)
        except BaseException as error:
            return self._crash(error, gone)
        self._flights.popleft()
        emitted, finished = self.resolve(flight, outcome)
        output = StepOutput(*_told(flight.batch, emitted), gone + finished)
        try:
            self._sample_next()
        except BaseException as error:
            return self._crash(error, output.finished)
        return output

    # -- CPU-S, before the forward ---------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Step | None:
        """What to compute next, or None."""
        if self.overlapped:
            self.timer = FlightTimer(self.clock, self.sampler.device, self._timeline)
        self._mask = None
        self.timer.start(now_ns)
        self.recorder.boundary(now_ns)
        step = self.scheduler.schedule(now_ns)
        if step is not None:
            self._update_decoding(step)
            self.recorder.planned(step, self.scheduler, self._decoding)
        self.timer.lap()
        return step

    def _update_decoding(self, step: Step) -> None:
        """Looks through the running requests only where something has come or gone.

        Where nobody has, and as many decode as before, they are the same: always the first in running order.
        """
        calm = not (step.prefills or step.preempted)
        if not (calm and self._calm and step.features.decode_seqs == len(self._decoding)):
            decoding = Roster(self.scheduler.decoding)
            if decoding != self._decoding:
                self._decoding = decoding
        self._calm = calm

    def prepare(self, step: Step) -> Batch:
        """The tensors of the step, on the host."""
        batch = self.executor.prepare(step, self._decoding, self.scheduler, self._sequences)
        self.timer.lap()
        return batch

    def fly(self, step: Step) -> Flight:
        """Prepares a step, hands it to the launching side, and books what is known by then."""
        assert isinstance(self.timer, FlightTimer)
        with self._inference:
            batch = self.prepare(step)
            plan = self.sampler.plan(batch.emitters) if batch.emitters.sequences else None
            self.executor.send(batch)
            flight = self._launched(step, batch, plan, self.timer)
        self.timer.lap()
        self.scheduler.advance(step)
        if step.ending:
            self._calm = False
        return flight

    # -- CPU-L -----------------------------------------------------------------------------------------

    def launch(self, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Starts the forward; on CUDA it is not over when this returns.

        Returns:
            Logits and positions of the emitting rows; no logits where nobody emits.
        """
        self.clock.computing(len(batch.layout.device.input_ids))
        self.executor.send(batch)
        self.timer.gpu_begin()
        logits, positions = self.executor.launch(batch)
        self.timer.lap()
        return logits, positions

    def sample(self, batch: Batch, logits: torch.Tensor | None, positions: torch.Tensor) -> Outcome:
        """One token for each emitting sequence; waits for the device."""
        bitmask = None
        if batch.emitters.constrained and logits is not None:
            self._mask = self._masks.launched(batch.emitters, logits.device)
            bitmask = None if self._mask is None else self._mask.fill()
        sampled = self._sample(batch, logits, positions, self.timer, bitmask=bitmask)
        outcome = self.executor.side.submit(sampled.to_host).wait()
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
    ) -> Outcome:
        """Starts sampling; sampled tokens go into the relay buffer."""
        if logits is None:
            outcome = nothing()
        else:
            plan = plan or self.sampler.plan(batch.emitters)
            outcome = self.sampler.launch(logits, positions, plan, bitmask)
            tokens = outcome.tokens
            self.executor.keep_tokens(batch, tokens if bitmask is None else tokens.clamp_min(0))
        timer.gpu_end()
        outcome.active_experts = self.executor.active_experts()
        return outcome

    def _run(self, batch: Batch, plan: SamplingPlan | None, timer: StepTimer) -> Outcome:
        """A step whose inputs are on their way: forward, sampling, and the copies of what comes of it."""
        timer.gpu_begin()
        return self._sample(batch, *self.executor.launch(batch), timer, plan).to_host()

    def _launched(self, step: Step, batch: Batch, plan: SamplingPlan | None, timer: FlightTimer) -> Flight:
        """Hands a step over; of one with constrained rows the forward alone."""
        requests = [*self._decoding, *(request for request, _ in step.prefills)]
        submit = self.executor.side.submit
        if not batch.emitters.constrained:
            return Flight(step, batch, requests, submit(partial(self._run, batch, plan, timer)), timer)
        made: list[tuple[torch.Tensor | None, torch.Tensor]] = []

        def forward() -> Outcome:
            timer.gpu_begin()
            made.append(self.executor.launch(batch))
            return nothing()

        def sampling(bitmask: torch.Tensor) -> Outcome:
            return self._sample(batch, *made[0], timer, plan, bitmask).to_host()

        ticket = submit(forward)
        mask = self._masks.launched(batch.emitters, self.sampler.device)
        return Flight(step, batch, requests, ticket, timer, mask=mask, to_sample=sampling)

    def _sample_next(self) -> None:
        """Hands over the sampling of the first step in flight: its grammars know all that came before.

        Its mask is computed beside its forward.
        """
        flight = self._flights[0] if self._flights else None
        if flight is None or flight.to_sample is None:
            return
        assert flight.mask is not None
        with self._inference:
            bitmask = flight.mask.fill()
            flight.ticket = self.executor.side.submit(partial(flight.to_sample, bitmask))
        flight.to_sample = None

    def land(self, flight: Flight) -> Outcome:
        """Waits for what came of a step in flight."""
        flight.timer.resume()
        outcome = flight.ticket.wait()
        flight.timer.arrived()
        return outcome

    # -- CPU-S, behind the forward ---------------------------------------------------------------------

    def finish(self, step: Step, batch: Batch, outcome: Outcome) -> tuple[Emitted, list[Sequence]]:
        """Tells the scheduler what came of the step; returns who emitted, and the sequences that are over."""
        emitters, tick = batch.emitters, self.scheduler.tick
        emitted, stopped = self._emit(emitters, outcome)
        if stopped or emitters.first_end <= tick + 1:
            ending = [s.request for s in emitted.sequences if s.finish_reason or _ends_with(s.request, tick)]
            self._publish(ending)
        ended = self.scheduler.finish(step, stopped=stopped)
        return emitted, self._over(step, batch, outcome, ended, self.timer, self._mask)

    def resolve(self, flight: Flight, outcome: Outcome) -> tuple[Emitted, list[Sequence]]:
        """The same in the overlapped loop, where the step behind this one has been launched.

        Who has left in the meantime gets nothing: a token that comes behind the end is discarded.
        """
        emitted, stopped = self._emit(flight.batch.emitters, outcome, flight.complete)
        if stopped or flight.step.ending:
            self._publish(dict.fromkeys([*flight.step.ending, *stopped]))
        ended = self.scheduler.resolve(flight.step, stopped=stopped)
        return emitted, self._over(flight.step, flight.batch, outcome, ended, flight.timer, flight.mask)

    def _emit(
        self, emitters: Emitters, outcome: Outcome, complete: bool = True
    ) -> tuple[Emitted, list[Request]]:
        """Gives tokens to the sequences that are still there; returns also those that stop with them.

        Args:
            complete: all are.
        """
        sequences, tokens, outputs = emitters.sequences, outcome.ids().tolist(), emitters.outputs
        emitted = Emitted(sequences, tokens)
        if not complete:
            here = [i for i, s in enumerate(sequences) if s.request.status is not Status.FINISHED]
            emitted = Emitted([sequences[i] for i in here], [tokens[i] for i in here], here)
            outputs = [outputs[i] for i in here]
        for output, token in zip(outputs, emitted.tokens, strict=True):
            output.append(token)
        if outcome.logprobs is not None:
            note_logprobs(outcome.logprobs, emitted)
        stopped = []
        if emitters.watched or (emitters.stop_ids and not emitters.stop_ids.isdisjoint(tokens)):
            both = zip(emitted.sequences, emitted.tokens, strict=True)
            stopped = [sequence.request for sequence, token in both if sequence.stops_at(token)]
        if emitters.delivered:
            self.outputs.emitted(emitted.sequences, emitted.tokens, stopped, decoded=emitters.watched)
        return emitted, stopped

    def _over(
        self,
        step: Step,
        batch: Batch,
        outcome: Outcome,
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
            forward=timer.forward() if isinstance(timer, FlightTimer) else (-1, -1),
        )
        return finished

    def _publish(self, ending: Iterable[Request]) -> None:
        """Before sequences end: the blocks their outputs have filled can be shared from now on.

        The token just sampled has no keys and values that anybody should find.
        """
        scheduler = self.scheduler
        kv = scheduler.kv
        if not kv.prefix_caching:
            return
        for request in ending:
            if request.status in (Status.FINISHED, Status.WAITING):
                continue  # it has left, or has no blocks
            if self.overlapped:
                scheduler.settle(request)
            else:
                scheduler.block_table(request)
            sequence, named = self._sequences[request], len(request.block_keys) * kv.block_size
            computed = sequence.tokens(named, request.prompt_tokens + len(sequence.output_ids) - 1).tolist()
            parent = request.block_keys[-1] if named else b""
            assert isinstance(parent, bytes)
            request.block_keys = [*request.block_keys, *token_keys(computed, kv.block_size, parent)]

    # -- trouble ---------------------------------------------------------------------------------------

    def _fail(self, step: Step, error: BaseException) -> list[Sequence]:
        """Ends the requests of a step that broke; what it would have computed is forgotten."""
        failed = self._drop(step, error)
        self.scheduler.finish(Step(StepFeatures()))  # a step in which nobody computed anything
        self._record_failure(step, self.timer, failed)
        return failed

    def _drop(self, step: Step, error: BaseException) -> list[Sequence]:
        """The same for a step that has been planned, as far as its requests are concerned."""
        for request in step.preempted:
            self.executor.release(self._sequences[request])
        for request in self._decoding:
            self.scheduler.block_table(request)  # so that blocks taken for this step have an owner
        in_step = [*self._decoding, *(request for request, _ in step.prefills)]
        failed = self._abort_failed(in_step, error, self.clock.now_ns())
        self._decoding = Roster()
        return failed

    def _crash(self, error: BaseException, gone: list[Sequence], step: Step | None = None) -> StepOutput:
        """The overlapped loop breaks: a step could not be launched, or one in flight failed.

        A step that was launched before the one that could not be comes to its end. One that was launched
        behind a failure has computed with what is not there, so its requests end, too.

        Args:
            gone: sequences that have ended in this turn.
            step: which could not be launched.
        """
        output = StepOutput(finished=gone)
        if step is None:
            output.finished += self._fail_flights(error)
        else:
            timer, failed = self.timer, self._drop(step, error)
            planned = Step(StepFeatures())  # a step in which nobody computed anything
            self.scheduler.advance(planned)
            self._resolve_flights(output)
            self.scheduler.resolve(planned)
            self._record_failure(step, timer, failed)
            output.finished += failed
        if not isinstance(error, Exception):
            raise error
        return output

    def _resolve_flights(self, output: StepOutput) -> None:
        """Awaits what is in flight, with nothing behind it."""
        while self._flights:
            flight = self._flights[0]
            try:
                outcome = self.land(flight)
            except Exception as error:
                output.finished += self._fail_flights(error)
                return
            self._flights.popleft()
            emitted, finished = self.resolve(flight, outcome)
            sequences, tokens = _told(flight.batch, emitted)
            output.sequences = [*output.sequences, *sequences]
            output.tokens = [*output.tokens, *tokens]
            output.finished += finished
            self._sample_next()

    def _fail_flights(self, error: BaseException) -> list[Sequence]:
        """Ends the requests of all steps in flight, and forgets what these may have left in the cache."""
        flights = list(self._flights)
        for flight in flights:
            with suppress(Exception):
                flight.ticket.wait()
        self._flights.clear()
        self.executor.side.recover()
        requests = [request for flight in flights for request in flight.requests]
        failed = self._abort_failed(requests, error, self.clock.now_ns())
        self.scheduler.kv.forget_unused()
        self._decoding = Roster()
        for flight in flights:
            self.scheduler.resolve(flight.step)
            self._record_failure(flight.step, flight.timer, failed if flight is flights[0] else [])
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
        return _mix(self._own_seed, number) if params.seed is None else params.seed

    def _held(self, sequence: Sequence) -> None:
        self._calm = False
        for flight in self._flights:
            flight.complete = False
        self.executor.release(sequence)
        if sequence.params.penalised:
            self.sampler.release(sequence)

    def shutdown(self) -> None:
        if self._flights:
            self._resolve_flights(StepOutput())
        super().shutdown()

    def _forget(self) -> None:
        if self._flights:
            raise RuntimeError("a step is in flight")
        self.scheduler = Scheduler(self.scheduler.config, track_longest=True)
        self.recorder = StepRecorder(self.recorder.meta)
        self._decoding, self._timeline = Roster(), GpuTimeline()


def _told(batch: Batch, emitted: Emitted) -> tuple[Ordered[Sequence], Ordered[int]]:
    """Who emitted, and what."""
    if not batch.emitters.constrained:
        return emitted.sequences, emitted.tokens
    return allowed(emitted.sequences, emitted.tokens)


def _ends_with(request: Request, tick: int) -> bool:
    """Whether it has all it may emit when the step of this index is over."""
    return end_of(request, tick) == tick + 1


def _mix(seed: int, number: int) -> int:
    """A seed of 63 bits for the request of this number."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
