"""The loop of vLLM's engine around its scheduler, with models and workers stood in.

It is that of `EngineCore.step`, or with asynchronous scheduling `step_with_batch_queue`: step n + 1 is
planned after the outcome of step n - 1 and before that of n. Ranks of attention DP step together, as in
`DPEngineCoreProc.run_busy_loop`; they count their steps from when one of them gets work, and a wave ends
as soon as none has any (vLLM: at the next of every so many steps).

Runs in a bare interpreter, so this file imports the standard library alone, and its neighbours.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from benchmarks.engines.scenario import (
    Arrivals,
    RequestSpec,
    Scenario,
    StepTrace,
    accepted_drafts,
    answer_token,
)
from benchmarks.engines.vllm_config import Section

_DRAFT_TOKEN = 3


class Engine(Protocol):
    """What a drive needs of a release."""

    preempted: Any
    aborted: Any

    def scheduler(self, scenario: Scenario) -> Any:
        """A scheduler under a scenario's settings."""

    def request(self, scenario: Scenario, spec: RequestSpec) -> Any:
        """A request of a scenario."""


class Planned(NamedTuple):
    """A step whose outcome is not known.

    Attributes:
        output: of the scheduler.
        accepts: drafts that each request may accept which emits in the step; requests that it admits have
            none, only padding.
    """

    output: Any
    accepts: dict[str, int]


class Rank:
    """One scheduler, and the steps it has in flight."""

    def __init__(self, engine: Engine, scenario: Scenario, specs: dict[str, RequestSpec]) -> None:
        self.scheduler = engine.scheduler(scenario)
        self._engine, self._scenario, self._specs = engine, scenario, specs
        self._drafts = scenario["settings"].get("num_speculative_tokens", 0)
        self._throttles = "throttle_prefills" in inspect.signature(self.scheduler.schedule).parameters
        self._flight: Planned | None = None
        self._known: dict[str, Any] = {}
        self._seen: set[str] = set()
        """Requests that were admitted before."""

    @property
    def works(self) -> bool:
        """Whether it has requests, or a step in flight."""
        return bool(self.scheduler.requests) or self._flight is not None

    def add(self, spec: RequestSpec) -> None:
        """Add a request."""
        self._known[spec["id"]] = request = self._engine.request(self._scenario, spec)
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        """Abort a request, as the engine does for a client that is gone."""
        if name in self._known and not self._known[name].is_finished():
            self.scheduler.finish_requests([name], self._engine.aborted)

    def step(self, alone: bool, throttled: bool, entry: StepTrace) -> None:
        """Plan a step, and apply the outcome that is known next.

        Args:
            alone: a step that only preempts takes no time, and the next follows at once; with other ranks it
                is a dummy.
            throttled: compute no prompts.
            entry: trace of the iteration, completed with what the rank does.
        """
        step = self._plan(alone and self._flight is None, throttled, entry)
        planned = step
        if self._scenario["async_scheduling"]:
            self._flight, step = step, self._flight
        if step is not None:
            entry["finished"].update(self._apply(step))
        if planned is not None and self._flight is planned and self._drafts:
            self._check_drafts(planned.output)

    def _plan(self, repeats: bool, throttled: bool, entry: StepTrace) -> Planned | None:
        """Schedule a step; None if it is empty."""
        scheduler, known = self.scheduler, self._known
        in_flight = {name: getattr(each, "num_output_placeholders", 0) for name, each in known.items()}
        preempted: set[str] = set()
        while True:
            running = {request.request_id for request in scheduler.running}
            output = scheduler.schedule(throttled) if self._throttles else scheduler.schedule()
            left = {name for name in running if known[name].status == self._engine.preempted}
            preempted |= left
            if output.num_scheduled_tokens or not (repeats and left):
                break
        tokens = dict(output.num_scheduled_tokens)
        entry["tokens"].update(tokens)
        entry["preempted"] += preempted
        for name in tokens:
            if name not in running or name in preempted:
                cached = known[name].num_computed_tokens - tokens[name]
                if name in self._seen:
                    entry.setdefault("again", {})[name] = cached
                else:
                    entry.setdefault("cached", {})[name] = cached
                self._seen.add(name)
        pool = scheduler.kv_cache_manager.block_pool
        entry["blocks"] += pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        drafts = output.scheduled_spec_decode_tokens
        accepts = {
            name: len(drafts.get(name, ())) if name in running and name not in preempted else 0
            for name in tokens
            if known[name].num_computed_tokens
            >= known[name].num_tokens + (0 if name in preempted else in_flight[name])
        }
        return Planned(output, accepts) if tokens else None

    def _apply(self, step: Planned) -> dict[str, int]:
        """Apply the outcome of a step; returns the output tokens of requests that it ended."""
        known, accepts = self._known, step.accepts
        names = list(step.output.num_scheduled_tokens)
        alive = [name for name in known if not known[name].is_finished()]
        sampled = [self._sampled(name, accepts[name]) if name in accepts else [] for name in names]
        self.scheduler.update_from_output(
            step.output,
            Section(
                req_id_to_index={name: index for index, name in enumerate(names)},
                req_ids=names,
                sampled_token_ids=sampled,
                prompt_logprobs_dict={},
                prompt_token_id_logprobs_dict={},
            ),
        )
        if self._drafts and not self._scenario["async_scheduling"]:
            self._propose(accepts)
        ended = sorted(name for name in alive if known[name].is_finished())
        return {name: len(known[name]._output_token_ids) for name in ended}

    def _sampled(self, name: str, drafts: int) -> list[int]:
        """Tokens that a step emits for a request: one, and the drafts that it accepts."""
        request, spec = self._known[name], self._specs[name]
        if request.is_finished():
            return []
        position = len(request._output_token_ids)
        count = 1 + min(accepted_drafts(spec, position, self._drafts), drafts)
        return [answer_token(self._scenario, spec, position + more) for more in range(count)]

    def _check_drafts(self, output: Any) -> None:
        """Strike drafts that grammars forbid from a step that was planned before its drafts were known."""
        if getattr(output, "pending_structured_output_tokens", False):
            names = list(output.scheduled_spec_decode_tokens)
            tokens = [[_DRAFT_TOKEN] * self._drafts for _ in names]
            drafts = SimpleNamespace(req_ids=names, draft_token_ids=tokens)
            self.scheduler.update_draft_token_ids_in_output(drafts, output)

    def _propose(self, emits: Iterable[str]) -> None:
        """Draft tokens for requests that have just emitted some."""
        names = [name for name in emits if not self._known[name].is_finished()]
        tokens = [[_DRAFT_TOKEN] * self._drafts for _ in names]
        self.scheduler.update_draft_token_ids(SimpleNamespace(req_ids=names, draft_token_ids=tokens))


class Drive:
    """One scenario on the schedulers of all ranks."""

    def __init__(self, engine: Engine, scenario: Scenario) -> None:
        self._scenario = scenario
        self._arrivals = Arrivals(scenario)
        specs = {spec["id"]: spec for spec in scenario["requests"]}
        count = scenario["settings"].get("data_parallel_size", 1)
        self._ranks = [Rank(engine, scenario, specs) for _ in range(count)]
        self._interval = scenario["settings"].get("prefill_schedule_interval", 1)
        self._received = self._wave_steps = 0

    def steps(self) -> list[StepTrace]:
        """The trace."""
        steps: list[StepTrace] = []
        alone = len(self._ranks) == 1
        while self._arrivals or any(rank.works for rank in self._ranks):
            if len(steps) >= self._scenario["max_steps"]:
                break
            self._receive(len(steps))
            throttled = not alone and self._wave_steps % self._interval != 0
            entry = StepTrace(tokens={}, preempted=[], blocks=0, finished={})
            for rank in self._ranks:
                rank.step(alone, throttled, entry)
            entry["preempted"].sort()
            self._wave_steps += 1
            if not any(rank.works for rank in self._ranks):
                self._wave_steps = 0
            for name in entry["finished"]:
                self._arrivals.ended(name, len(steps))
            steps.append(entry)
        return steps

    def _receive(self, iteration: int) -> None:
        for spec in self._arrivals.arriving(iteration):
            self._ranks[self._received % len(self._ranks)].add(spec)
            self._received += 1
        for name in self._arrivals.aborted(iteration):
            for rank in self._ranks:
                rank.abort(name)
