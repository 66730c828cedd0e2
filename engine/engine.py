"""The engine's loops: the scheduler core on a real clock, with a forward pass in the middle.

    synchronous    schedule -> prepare -> launch -> sample -> finish
    overlapped     schedule n + 1 -> prepare -> launch -> advance, then await n -> resolve

The twins `run_sync` and `run_overlapped` stand side by side. In the first, host and device take turns. In the
second, the scheduling side (CPU-S) plans step n + 1 and hands it to the launching side (CPU-L) before the
outcome of step n is read, which hides host work behind device work.

The simulator's instances (`blis_py.cluster.instances.autoregressive`,
`blis_py.cluster.instances.overlapped`) are their twins: the same `Scheduler` forms the same batches there,
and a latency model supplies their times.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import torch

from blis_py.core.features import StepFeatures
from blis_py.core.request import Request
from blis_py.core.step import Step
from blis_py.core.token_keys import token_keys
from engine.emission import Emitted, StepOutput, emissions, publish
from engine.executor import Batch
from engine.flight import Flight
from engine.lost_device import is_lost
from engine.outcome import StepOutcome, nothing
from engine.sampler import SamplingPlan
from engine.sampling_params import SamplingParams
from engine.sequence import Roster, Sequence
from engine.staging_buffer import Ints
from engine.steps import EngineSteps
from engine.timing import FlightTimer

NO_STOP: frozenset[int] = frozenset()
_IN_HAND = 2
"""Steps in flight in the overlapped loop: the running one, and the one behind it."""


class LLMEngine(EngineSteps):
    """Engine of an autoregressive model, driven a step at a time; built by `engine.build`.

    With `async_scheduling` it runs the overlapped loop. The parts of a step, and of an engine, are in
    `EngineSteps`.
    """

    def place_request(self, prompt: Ints, params: SamplingParams, shared: int = 0) -> Sequence:
        """Place a request that runs from the next step on, with all of its prompt but the last token in the
        cache.

        These tokens are not computed: their pages keep their former content. For measurements of steps; to be
        called between steps.

        Args:
            prompt: token ids, neither read nor hashed, so its pages are not shared,
            shared: except its first `shared` tokens.
            params: with a seed, and no stop tokens of its own.

        Raises:
            RuntimeError: no room; see `Scheduler.place`.
        """
        number = self._added
        keys = token_keys(prompt[:shared].tolist(), self.scheduler.config.block_size) if shared else []
        request = Request(f"request_{number}", self.clock.now_ns(), len(prompt), row=number, block_keys=keys)
        self.scheduler.place(request, len(prompt) - 1)
        self._added += 1
        return self._enter(Sequence(number, request, prompt, params, params.seed or 0, NO_STOP, None))

    @property
    def has_unfinished(self) -> bool:
        """Whether there is work: a step in flight has to be awaited even if all its requests have left."""
        return bool(self._sequences or self._flights)

    # -- the loops -------------------------------------------------------------------------------------

    def step(self, now_ns: int | None = None) -> StepOutput:
        """Run one iteration of the engine's loop.

        An error on the way ends the requests of the step, not the engine, unless the device is lost.

        Args:
            now_ns: start of the step, if its caller had work to do first, such as admitting requests that had
            arrived by then; `None` = now.
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
            if isinstance(error, Exception) and not is_lost(error):
                return StepOutput(finished=gone + failed)
            raise
        emitted, finished = self.finish(step, batch, outcome)
        self.clock.between_steps()
        return StepOutput(*emissions(batch.emitters, emitted), gone + finished)

    def run_overlapped(self, now_ns: int) -> StepOutput:
        """Schedule and launch step n + 1, then await and resolve step n.

        With nothing in flight, two steps are launched at once (pipeline fill). With nothing left to launch,
        the step in flight is awaited, and the blocks it frees are available to the next plan.
        """
        self.recorder.boundary(now_ns, len(self._sequences))
        output = StepOutput(finished=self.let_go(now_ns))
        while len(self._flights) < _IN_HAND:
            step = self.schedule(now_ns)
            if step is None:
                break
            try:
                self._flights.append(self.launch_step(step))
                step = None  # it is now in flight
                if len(self._flights) == 1:
                    self._sample_next()
            except BaseException as error:
                return self._crash(error, output, step)
        if not self._flights:
            return output
        flight = self._flights[0]
        try:
            outcome = self.await_result(flight)
        except BaseException as error:
            return self._crash(error, output)
        self._flights.popleft()
        emitted, finished = self.resolve(flight, outcome)
        output = StepOutput(*emissions(flight.batch.emitters, emitted), output.finished + finished)
        try:
            self._sample_next()
        except BaseException as error:
            return self._crash(error, output)
        return output

    # -- the end of a step -----------------------------------------------------------------------------

    def finish(self, step: Step, batch: Batch, outcome: StepOutcome) -> tuple[Emitted, list[Sequence]]:
        """Report a step's outcome to the scheduler; return the emitters, and the sequences that ended."""
        emitters, tick = batch.emitters, self.scheduler.tick
        emitted, stopped = self._emit(emitters, outcome)
        if stopped or emitters.first_end <= tick + 1:
            publish(self.scheduler, self._sequences, emitters.ending(tick + 1, stopped))
        ended = self.scheduler.finish(step, stopped=stopped)
        return emitted, self._over(step, batch, outcome, ended, self.timer, self._mask)

    def resolve(self, flight: Flight, outcome: StepOutcome) -> tuple[Emitted, list[Sequence]]:
        """Counterpart of `finish` in the overlapped loop, with the next step already launched.

        Sequences that have left in the meantime get nothing: a token after the end is discarded.
        """
        emitted, stopped = self._emit(flight.batch.emitters, outcome, flight.complete)
        if stopped or flight.step.ending:
            ending = dict.fromkeys([*flight.step.ending, *stopped])
            publish(self.scheduler, self._sequences, ending)
        ended = self.scheduler.resolve(flight.step, stopped=stopped)
        if self.scheduler.publishes_late:
            prompts = [self._sequences.get(request) for request, _ in flight.step.prefills]
            self.executor.published([sequence for sequence in prompts if sequence is not None])
        return emitted, self._over(flight.step, flight.batch, outcome, ended, flight.timer, flight.mask)

    # -- steps in flight -------------------------------------------------------------------------------

    def launch_step(self, step: Step) -> Flight:
        """Prepare a step, hand it to the launching side, and book what is already known."""
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
        """Hand over a step; with constrained rows, only its forward."""
        requests = self._computing(step)
        submit = self.executor.side.submit
        if not batch.emitters.constrained:
            return Flight(step, batch, requests, submit(partial(self._run, batch, plan, timer)), timer)
        made: list[tuple[torch.Tensor | None, torch.Tensor]] = []

        def forward() -> StepOutcome:
            timer.gpu_begin()
            made.append(self.executor.launch(batch))
            return nothing()

        def sampling(bitmask: torch.Tensor) -> StepOutcome:
            return self._sample(batch, *made[0], timer, plan, bitmask).to_host()

        ticket = submit(forward)
        mask = self._masks.launched(batch.emitters, self.sampler.device)
        return Flight(step, batch, requests, ticket, timer, mask=mask, to_sample=sampling)

    def _sample_next(self) -> None:
        """Hand over the sampling of the first step in flight, once its grammars know all earlier tokens.

        The mask is computed concurrently with the forward.
        """
        flight = self._flights[0] if self._flights else None
        if flight is None or flight.to_sample is None:
            return
        assert flight.mask is not None
        with self._inference:
            bitmask = flight.mask.fill()
            flight.ticket = self.executor.side.submit(partial(flight.to_sample, bitmask))
        flight.to_sample = None

    def await_result(self, flight: Flight) -> StepOutcome:
        """Wait for the outcome of a step in flight."""
        flight.timer.resume()
        outcome = flight.ticket.wait()
        flight.timer.arrived()
        return outcome

    # -- trouble ---------------------------------------------------------------------------------------

    def _fail(self, step: Step, error: BaseException) -> list[Sequence]:
        """End the requests of a failed step and discard its pending results."""
        failed = self._drop(step, error)
        self.scheduler.finish(Step(StepFeatures()))  # an empty step
        self._record_failure(step, self.timer, failed)
        self.executor.side.recover()
        return failed

    def _crash(self, error: BaseException, output: StepOutput, step: Step | None = None) -> StepOutput:
        """Recover from a failure in the overlapped loop, of a launch or of a step in flight.

        A step launched before a failed launch is completed. A step launched behind a failure has computed
        with missing inputs, so its requests end, too.

        Args:
            output: the output of this iteration so far; the failure is added to it.
            step: the step whose launch failed.
        """
        if step is None:
            output.finished += self._fail_flights(error)
        else:
            timer, failed = self.timer, self._drop(step, error)
            planned = Step(StepFeatures())  # an empty step
            self.scheduler.advance(planned)
            self._resolve_flights(output)
            self.scheduler.resolve(planned)
            self._record_failure(step, timer, failed)
            output.finished += failed
        if not isinstance(error, Exception) or is_lost(error):
            raise error
        self.executor.side.recover()
        return output

    def _resolve_flights(self, output: StepOutput) -> None:
        """Await the steps in flight, with nothing behind them."""
        while self._flights:
            flight = self._flights[0]
            try:
                outcome = self.await_result(flight)
            except Exception as error:
                output.finished += self._fail_flights(error)
                return
            self._flights.popleft()
            emitted, finished = self.resolve(flight, outcome)
            sequences, tokens = emissions(flight.batch.emitters, emitted)
            output.sequences = [*output.sequences, *sequences]
            output.tokens = [*output.tokens, *tokens]
            output.finished += finished
            try:
                self._sample_next()
            except Exception as error:
                output.finished += self._fail_flights(error)
                return

    def _fail_flights(self, error: BaseException) -> list[Sequence]:
        """End the requests of all steps in flight and invalidate their blocks in the cache."""
        flights = list(self._flights)
        for flight in flights:
            with suppress(Exception):
                flight.ticket.wait()
        self._flights.clear()
        requests = [request for flight in flights for request in flight.requests]
        failed = self._abort_failed(requests, error, self.clock.now_ns())
        self.scheduler.kv.forget_unused()
        self._decoding = Roster()
        for flight in flights:
            self.scheduler.resolve(flight.step)
            self._record_failure(flight.step, flight.timer, failed if flight is flights[0] else [])
        if is_lost(error):
            raise error
        self.executor.side.recover()
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
