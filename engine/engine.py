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

from contextlib import suppress
from functools import partial

import torch

from blis_py.core.features import StepFeatures
from blis_py.core.request import Request
from blis_py.core.step import Step
from blis_py.core.token_keys import token_keys
from engine.emission import Emitted, StepOutput, publish, told
from engine.executor import Batch
from engine.flight import Flight
from engine.outcome import Outcome, nothing
from engine.sampler import SamplingPlan
from engine.sampling_params import SamplingParams
from engine.sequence import Roster, Sequence
from engine.staging_buffer import Ints
from engine.steps import EngineSteps
from engine.timing import FlightTimer

NO_STOP: frozenset[int] = frozenset()
_IN_HAND = 2
"""Steps that the launching side of the overlapped loop has: the one that runs, and the one behind it."""


class LLMEngine(EngineSteps):
    """Requests in, tokens out, a step at a time. `engine.build` makes one from a config.

    With `async_scheduling` in the scheduler's settings it runs the overlapped loop. The parts of a step, and
    what an engine is made of, are in `EngineSteps`.
    """

    def place_request(self, prompt: Ints, params: SamplingParams, shared: int = 0) -> Sequence:
        """A request that runs from the next step on, all of its prompt but the last token in the cache.

        Nobody has computed these tokens: their pages hold whatever they held. For whoever measures steps; to
        be called between steps.

        Args:
            prompt: neither looked at nor named, so nobody shares its pages.
            shared: but these, its first ones, are.
            params: with a seed, and no stop tokens of its own.

        Raises:
            RuntimeError: there is no room; see `Scheduler.place`.
        """
        number = self._added
        keys = token_keys(prompt[:shared].tolist(), self.scheduler.config.block_size) if shared else []
        request = Request(f"request_{number}", self.clock.now_ns(), len(prompt), row=number, block_keys=keys)
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
        return StepOutput(*told(batch.emitters, emitted), gone + finished)

    def run_overlapped(self, now_ns: int) -> StepOutput:
        """Schedule and launch step n + 1, then await and resolve step n.

        Where nothing is in flight, two steps are launched at once (pipeline fill). Where nothing is left to
        launch, the step in flight is awaited, and what it frees is planned with next time.
        """
        self.recorder.boundary(now_ns, len(self._sequences))
        output = StepOutput(finished=self.let_go(now_ns))
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
                return self._crash(error, output, step)
        if not self._flights:
            return output
        flight = self._flights[0]
        try:
            outcome = self.land(flight)
        except BaseException as error:
            return self._crash(error, output)
        self._flights.popleft()
        emitted, finished = self.resolve(flight, outcome)
        output = StepOutput(*told(flight.batch.emitters, emitted), output.finished + finished)
        try:
            self._sample_next()
        except BaseException as error:
            return self._crash(error, output)
        return output

    # -- the end of a step -----------------------------------------------------------------------------

    def finish(self, step: Step, batch: Batch, outcome: Outcome) -> tuple[Emitted, list[Sequence]]:
        """Tell the scheduler what came of the step; returns who emitted, and the sequences that are over."""
        emitters, tick = batch.emitters, self.scheduler.tick
        emitted, stopped = self._emit(emitters, outcome)
        if stopped or emitters.first_end <= tick + 1:
            both = zip(emitters.sequences, emitters.ends, strict=True)
            ending = [s.request for s, end in both if end == tick + 1 or s.finish_reason]
            publish(self.scheduler, self._sequences, ending)
        ended = self.scheduler.finish(step, stopped=stopped)
        return emitted, self._over(step, batch, outcome, ended, self.timer, self._mask)

    def resolve(self, flight: Flight, outcome: Outcome) -> tuple[Emitted, list[Sequence]]:
        """The same in the overlapped loop, where the step behind this one has been launched.

        Who has left in the meantime gets nothing: a token that comes behind the end is discarded.
        """
        emitted, stopped = self._emit(flight.batch.emitters, outcome, flight.complete)
        if stopped or flight.step.ending:
            ending = dict.fromkeys([*flight.step.ending, *stopped])
            publish(self.scheduler, self._sequences, ending)
        ended = self.scheduler.resolve(flight.step, stopped=stopped)
        return emitted, self._over(flight.step, flight.batch, outcome, ended, flight.timer, flight.mask)

    # -- steps in flight -------------------------------------------------------------------------------

    def fly(self, step: Step) -> Flight:
        """Prepare a step, hands it to the launching side, and books what is known by then."""
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

    def _launched(self, step: Step, batch: Batch, plan: SamplingPlan | None, timer: FlightTimer) -> Flight:
        """Hand a step over; of one with constrained rows the forward alone."""
        requests = self._computing(step)
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
        """Hand over the sampling of the first step in flight: its grammars know all that came before.

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
        """Wait for what came of a step in flight."""
        flight.timer.resume()
        outcome = flight.ticket.wait()
        flight.timer.arrived()
        return outcome

    # -- trouble ---------------------------------------------------------------------------------------

    def _fail(self, step: Step, error: BaseException) -> list[Sequence]:
        """End the requests of a step that broke; what it would have computed is forgotten."""
        failed = self._drop(step, error)
        self.scheduler.finish(Step(StepFeatures()))  # a step in which nobody computed anything
        self._record_failure(step, self.timer, failed)
        return failed

    def _crash(self, error: BaseException, output: StepOutput, step: Step | None = None) -> StepOutput:
        """The overlapped loop breaks: a step could not be launched, or one in flight failed.

        A step that was launched before the one that could not be comes to its end. One that was launched
        behind a failure has computed with what is not there, so its requests end, too.

        Args:
            output: what this turn has brought by now; the failure is added to it.
            step: which could not be launched.
        """
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
        """Await what is in flight, with nothing behind it."""
        while self._flights:
            flight = self._flights[0]
            try:
                outcome = self.land(flight)
            except Exception as error:
                output.finished += self._fail_flights(error)
                return
            self._flights.popleft()
            emitted, finished = self.resolve(flight, outcome)
            sequences, tokens = told(flight.batch.emitters, emitted)
            output.sequences = [*output.sequences, *sequences]
            output.tokens = [*output.tokens, *tokens]
            output.finished += finished
            try:
                self._sample_next()
            except Exception as error:
                output.finished += self._fail_flights(error)
                return

    def _fail_flights(self, error: BaseException) -> list[Sequence]:
        """End the requests of all steps in flight, and forgets what these may have left in the cache."""
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

    # -- the end ---------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        if self._flights:
            self._resolve_flights(StepOutput())
        super().shutdown()

    def _forget(self) -> None:
        if self._flights:
            raise RuntimeError("a step is in flight")
        super()._forget()
