"""Step-by-step records of some requests during a simulation; all others are ignored.

The witness receives the recorder's events, and reads the scheduler at the same moment: when a step, or a run
of identical steps, has been planned and has ended or been launched, and the scheduler is not updated yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blis_py.core.blocks import block_count
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import StepFeatures
from blis_py.core.request import Request, Status
from blis_py.core.step import Step
from blis_py.latency.step_run import Ints, StepRun
from blis_py.ledger.division import PrefillChunk
from blis_py.ledger.lines import LedgerLine
from blis_py.ledger.waiting import AdmissionState
from blis_py.metrics.record import Outcome
from blis_py.metrics.visits import Onward


@dataclass(frozen=True, slots=True)
class Watched:
    """A request in question, located by an earlier identical run."""

    request: str
    instance: int
    from_ns: int
    """Entry into the queue of its instance."""
    until_ns: int
    """Events that begin later are irrelevant."""
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Noted:
    """A run of identical steps with a request in question on the instance."""

    start_ns: int
    ends_ns: Ints
    features: StepFeatures
    """Features of the first step."""
    chunks: tuple[PrefillChunk, ...]
    doing: Mapping[str, LedgerLine]
    """Activity of each request in question, by name: `OWN_PREFILL`, `DECODE`, or the reason for none."""
    running: tuple[str, ...]
    """Requests with a slot, if a request in question waits."""
    admitted: tuple[str, ...]


@dataclass(slots=True)
class Notes:
    """Records of one instance, in order of time."""

    runs: list[Noted] = field(default_factory=list)
    last: tuple[int, StepRun] | None = None
    """The latest identical steps, recorded or not, and the begin of the first of them."""

    def last_step(self) -> tuple[int, int]:
        """Begin and end of the latest step; -1 if there was none."""
        if self.last is None:
            return -1, -1
        start_ns, run = self.last
        return start_ns if run.steps == 1 else int(run.ends_ns()[-2]), run.end_ns


MakeNoting = Callable[[Any, Any, Notes, Sequence[Watched]], "Noting"]
"""From a scheduler, its events, the notes to be kept and the requests in question."""


class Witness:
    """Recorder of the events that concern some requests; an `Observer`.

    Args:
        watched: the requests in question.
        noting: what keeps the notes of an instance, where its requests are not autoregressive.
    """

    def __init__(self, watched: Iterable[Watched], noting: MakeNoting | None = None) -> None:
        self.notes: dict[int, Notes] = {}
        """Records by instance, if there are any."""
        self._watched: dict[int, list[Watched]] = {}
        for one in watched:
            self._watched.setdefault(one.instance, []).append(one)
        self._noting = noting or NotingSteps

    def beside(self, index: int, scheduler: Any, events: Any) -> Any:
        """See `Observer`."""
        if index not in self._watched:
            return events
        notes = self.notes[index] = Notes()
        return self._noting(scheduler, events, notes, self._watched[index])


class Noting:
    """Forwarder of all events; notes some of them."""

    def __init__(self, scheduler: Any, events: Any, notes: Notes, watched: Sequence[Watched]) -> None:
        self._scheduler, self._events, self._notes = scheduler, events, notes
        self._config: SchedulerConfig = scheduler.config
        self._coming = sorted(watched, key=lambda one: -one.from_ns)
        """Requests that have not arrived yet; the next one is last."""
        self._here: list[Watched] = []
        self._until_ns = max(one.until_ns for one in watched)
        self._known: dict[str, Request] = {}
        """Requests in question that have been admitted."""
        self._names = {one.request for one in watched}

    # -- forwarded -------------------------------------------------------------------------------

    def idle(self, duration_ns: int) -> None:
        self._events.idle(duration_ns)

    def unservable(self, request: Request, now_ns: int) -> None:
        self._events.unservable(request, now_ns)

    def timed_out(self, requests: list[Request]) -> None:
        self._events.timed_out(requests)

    def finished(self, requests: list[Request], end_ns: int) -> None:
        self._events.finished(requests, end_ns)

    def goes_on(self, requests: list[Request], how: Onward, now_ns: int) -> None:
        self._events.goes_on(requests, how, now_ns)

    def ended(self, requests: list[Request], outcome: Outcome) -> None:
        self._events.ended(requests, outcome)

    # -- recorded --------------------------------------------------------------------------------

    def _note(
        self,
        start_ns: int,
        run: StepRun,
        planned_ns: int,
        features: StepFeatures,
        prefills: Sequence[tuple[Request, int]],
        admitted: Sequence[Request],
        preempted: bool,
    ) -> None:
        """Record identical steps that are planned; the scheduler is not updated yet.

        The time between the previous step and these belongs to them.

        Args:
            planned_ns: when the first of them was planned: later arrivals are not in it.
            preempted: whether a request was preempted, which blocks admissions.
        """
        since_ns = self._notes.last[1].end_ns if self._notes.last else start_ns
        self._notes.last = start_ns, run
        self._arrivals_and_departures(since_ns, run.end_ns)
        for request in admitted:
            if request.id in self._names:
                self._known[request.id] = request
        if not self._here:
            return
        doing = self._doing(start_ns, planned_ns, prefills, admitted, preempted)
        if not doing:
            return
        idle = any(
            line not in (LedgerLine.OWN_PREFILL, LedgerLine.DECODE, LedgerLine.RIDING)
            for line in doing.values()
        )
        self._notes.runs.append(
            Noted(
                start_ns=start_ns,
                ends_ns=run.ends_ns(),
                features=features,
                chunks=tuple(
                    PrefillChunk(request.id, tokens, request.computed, request.num_tokens)
                    for request, tokens in prefills
                    if not request.continues
                ),
                doing=doing,
                running=tuple(request.id for request in self._scheduler.running) if idle else (),
                admitted=tuple(request.id for request in admitted),
            )
        )

    def _arrivals_and_departures(self, since_ns: int, until_ns: int) -> None:
        """Update the requests in question present at any time in the interval."""
        while self._coming and self._coming[-1].from_ns < until_ns:
            self._here.append(self._coming.pop())
        for one in self._here:
            if one.until_ns <= since_ns:
                self._known.pop(one.request, None)
        self._here = [one for one in self._here if one.until_ns > since_ns]

    def _doing(
        self,
        start_ns: int,
        planned_ns: int,
        prefills: Sequence[tuple[Request, int]],
        admitted: Sequence[Request],
        preempted: bool,
    ) -> dict[str, LedgerLine]:
        computing = {request.id for request, _ in prefills}
        doing: dict[str, LedgerLine] = {}
        state: AdmissionState | None = None
        for one in self._here:
            request = self._known.get(one.request)
            if request is not None:
                line = self._line_of(request, computing)
                if line is not None:
                    doing[one.request] = line
            elif one.from_ns > planned_ns:
                doing[one.request] = (
                    LedgerLine.RUNNING_STEP if start_ns < one.from_ns else LedgerLine.COMPOSED_STEP
                )
            else:
                state = state or self._admission_state(prefills, admitted, preempted)
                doing[one.request] = state.refuses(self._prompt_tokens(one.prompt_tokens))
        return doing

    def _line_of(self, request: Request, computing: set[str]) -> LedgerLine | None:
        """The activity of an admitted request in the step; None if it has ended."""
        if request.id in computing:
            return self._decoding(request) if request.continues else LedgerLine.OWN_PREFILL
        if request.status in (Status.WAITING, Status.WAITING_FOR_KV):
            return LedgerLine.PREEMPTED
        if request.status is Status.DECODING:
            return self._decoding(request)
        if request.status in (Status.PREFILLING, Status.STALLED):
            return LedgerLine.STALLED
        return None

    def _decoding(self, request: Request) -> LedgerLine:
        return LedgerLine.DECODE

    def _prompt_tokens(self, prompt_tokens: int) -> int:
        """Tokens that a request lacks before its first answer."""
        return prompt_tokens

    def _admission_state(
        self, prefills: Sequence[tuple[Request, int]], admitted: Sequence[Request], preempted: bool
    ) -> AdmissionState:
        config, scheduler = self._config, self._scheduler
        inside = [request for request in admitted if request in scheduler.running]
        tokens_of, least = dict(prefills), self._least_tokens()
        new = [tokens_of.pop(request, least) for request in inside]
        budget_tokens = config.max_num_batched_tokens - self._served_before(sum(tokens_of.values()))
        blocks = sum(block_count(tokens, config.block_size) for tokens in new)
        slots_left = config.max_num_seqs - len(scheduler.running)
        waiting = scheduler.waiting
        free = scheduler.kv.pool.num_free + blocks
        if len(scheduler.running) > len(inside):
            free -= int(config.watermark * (config.num_kv_blocks + 1))
        return AdmissionState(
            slots=slots_left + len(inside),
            slots_left=slots_left,
            budget_tokens=budget_tokens,
            budget_left_tokens=budget_tokens - sum(new),
            whole_budget_tokens=config.max_num_batched_tokens,
            least_tokens=least,
            longest_chunk=config.long_prefill_token_threshold or config.max_num_batched_tokens,
            whole_prompts=config.batch_former == "prefill-first",
            free_blocks=free,
            block_size=config.block_size,
            closed=preempted,
            held_back=getattr(waiting, "holds_all_back", False),  # only of queues ordered by the cache
            whole_sequence=config.scheduler_reserve_full_isl,
            no_prompts=getattr(scheduler, "holds_prompts", False),  # only of steps
        )

    def _least_tokens(self) -> int:
        return 1

    def _served_before(self, tokens: int) -> int:
        """Budget spent on running requests before any admission, `tokens` of it on prompts."""
        raise NotImplementedError


class NotingSteps(Noting):
    """Notes on an autoregressive instance."""

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        alone = sum(tokens for request, tokens in step.prefills if request.continues)
        self._decodes = step.features.decode_seqs - alone
        planned_ns = self._planned_ns(start_ns, step)
        # With prompts first, a preemption follows the admissions.
        closed = bool(step.preempted) and self._config.batch_former != "prefill-first"
        self._note(start_ns, run, planned_ns, step.features, step.prefills, step.admitted, closed)
        self._events.steps(step, start_ns, run)

    def in_progress(self, step: Step) -> None:
        self._events.in_progress(step)

    def _planned_ns(self, start_ns: int, step: Step) -> int:
        """The planning time of a step: with asynchronous scheduling, the launch of the step before it, if
        there is one.

        If there was nothing to plan then, it contains the requests that arrived since.
        """
        if not self._config.async_scheduling or start_ns >= self._until_ns:
            return start_ns
        before_ns, end_ns = self._notes.last_step()
        others = any(request not in step.admitted for request in self._scheduler.running)
        return before_ns if end_ns == start_ns and (others or step.features.decode_seqs) else start_ns

    def _served_before(self, tokens: int) -> int:
        return tokens if self._config.batch_former == "prefill-first" else tokens + self._decodes
