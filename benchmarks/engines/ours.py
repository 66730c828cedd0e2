"""Our side: a scenario on the scheduler core, in the loop of an engine."""

from __future__ import annotations

import traceback

from benchmarks.engines.scenario import (
    Arrivals,
    Failure,
    RequestSpec,
    Scenario,
    StepTrace,
    Trace,
    accepted_drafts,
    prompt_tokens,
    token_ids,
    valid_drafts,
)
from blis_py.core.config import SchedulerConfig
from blis_py.core.rank_schedulers import scheduler_of
from blis_py.core.request import DECODING, Request
from blis_py.core.step import Step
from blis_py.core.token_keys import token_keys

_LAST_CHARACTERS = 600
_NS_PER_ITERATION = 1_000_000


def trace(scenario: Scenario, config: SchedulerConfig) -> Trace:
    """The steps of a scenario; a failure if it does not run to its end."""
    try:
        return Drive(scenario, config).steps()
    except Exception as error:  # a scenario that fails is a result, too
        where = traceback.format_exc()[-_LAST_CHARACTERS:]
        return Failure(error=f"{type(error).__name__}: {error}", where=where)


class Drive:
    """One scenario on one scheduler.

    With asynchronous scheduling step n + 1 is planned after the outcome of step n - 1 and before that of n.

    Args:
        scenario: its settings are in `config`.
    """

    def __init__(self, scenario: Scenario, config: SchedulerConfig) -> None:
        self._scenario, self._config = scenario, config
        drafts = scenario["settings"].get("num_speculative_tokens", 0)
        self._scheduler = scheduler_of(config, emission=Drafts(scenario, drafts) if drafts else None)
        self._arrivals = Arrivals(scenario)
        self._live: dict[str, Request] = {}
        self._seen: set[str] = set()
        """Requests that were admitted before."""

    def steps(self) -> list[StepTrace]:
        """The trace."""
        steps: list[StepTrace] = []
        flight: Step | None = None
        while self._arrivals or self._live or flight is not None:
            if len(steps) >= self._scenario["max_steps"]:
                break
            self._receive(len(steps))
            entry, step = self._plan(len(steps))
            if self._config.async_scheduling:
                if step is not None:
                    self._scheduler.advance(step)
                flight, step = step, flight
                done = [] if step is None else self._scheduler.resolve(step)
            else:
                done = [] if step is None else self._scheduler.finish(step)
            entry["finished"] = {each.id: each.generated for each in sorted(done, key=lambda each: each.id)}
            for each in done:
                del self._live[each.id]
                self._arrivals.ended(each.id, len(steps))
            steps.append(entry)
        return steps

    def _receive(self, iteration: int) -> None:
        for spec in self._arrivals.arriving(iteration):
            request = request_of(self._scenario, spec)
            refusal = self._scheduler.add(request)
            if refusal is not None:
                raise ValueError(refusal)
            self._live[request.id] = request
        for name in self._arrivals.aborted(iteration):
            if name in self._live and self._scheduler.withdraw(self._live[name]):
                del self._live[name]

    def _plan(self, iteration: int) -> tuple[StepTrace, Step | None]:
        scheduler, live = self._scheduler, self._live
        before = {name: request.preemptions for name, request in live.items()}
        step = scheduler.schedule(iteration * _NS_PER_ITERATION)
        preempted = sorted(name for name, count in before.items() if live[name].preemptions > count)
        entry = StepTrace(tokens={}, preempted=preempted)
        if step is not None:
            entry["tokens"] = {request.id: tokens for request, tokens in step.prefills}
            for request in scheduler.running:
                if request.status is DECODING:
                    entry["tokens"].setdefault(request.id, 1)
            for request in step.admitted:
                if request.id in self._seen:
                    entry.setdefault("again", {})[request.id] = request.computed
                else:
                    entry.setdefault("cached", {})[request.id] = request.computed
                self._seen.add(request.id)
        entry["blocks"] = scheduler.blocks_in_use()
        return entry, step


class Drafts:
    """Decode steps that verify drafts, as many of which are accepted as on the engine's side.

    Args:
        drafts: proposed for each step.
    """

    def __init__(self, scenario: Scenario, drafts: int) -> None:
        self._drafts = drafts
        self._asynchronous = scenario["async_scheduling"]
        self._specs = {spec["id"]: spec for spec in scenario["requests"]}

    def is_irregular(self, request: Request) -> bool:
        """Whether a step may emit more than one token for it."""
        return True

    def rows(self, request: Request) -> int:
        """Positions of its next decode step. Drafts that its grammar forbids are left out without steps in
        flight, and computed in vain with them."""
        if self._asynchronous:
            return 1 + self._drafts
        return 1 + valid_drafts(self._specs[request.id], request.generated, self._drafts)

    def tokens(self, request: Request, step: int, rows: int) -> int:
        """Tokens that the step emits."""
        accepted = accepted_drafts(self._specs[request.id], request.generated, self._drafts)
        return 1 + min(accepted, rows - 1)


def request_of(scenario: Scenario, spec: RequestSpec) -> Request:
    """A request of a scenario, with the content keys that our side is to see."""
    prompt = token_ids(spec["prompt"])
    if scenario["known_keys"] == "all":
        known = prompt + token_ids([[spec["answer"], spec["output_tokens"]]])
    else:
        known = prompt if scenario["known_keys"] == "prompt" else prompt[: spec["shared_tokens"]]
    limit = spec["max_tokens"] or scenario["max_model_len"] - len(prompt)
    return Request(
        spec["id"],
        int(spec["arrival"] * _NS_PER_ITERATION),
        prompt_tokens(spec),
        spec["output_tokens"],
        spec["max_tokens"],
        spec["priority"],
        block_keys=token_keys(known, scenario["block_size"]) if scenario["enable_prefix_caching"] else (),
        ends_by_eos=spec["output_tokens"] < limit,
        constrained=spec.get("grammar", False),
    )
