"""The simulated fleet as a backend of the app."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blis_py.core.slo import CLUSTER_PRIORITY
from blis_py.errors import InputError
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.serve.backend import Deliver, EngineLoad, Piece, Submission, Timing, TokenLogprob
from blis_py.serve.chat import PLAIN_TEMPLATE
from blis_py.serve.errors import ApiError
from blis_py.serve.fleet._answers import Answers, MadeUpAnswer
from blis_py.serve.fleet._prefixes import PrefixBook
from blis_py.serve.fleet._tokens import FleetTokenizer
from blis_py.serve.fleet.failures import Failures, FailureSettings
from blis_py.serve.fleet.journal import RunJournal
from blis_py.serve.fleet.kv_events import KVEvents
from blis_py.serve.fleet.live import LiveCluster, LiveRequest

if TYPE_CHECKING:
    from fastapi import APIRouter

log = logging.getLogger("blis.serve")
_BLOCKS_KEPT = 1 << 18
"""Fewest blocks of texts that are remembered."""
_LAST_NS = 1 << 62
"""Simulated time at which a clock of 64 bits is about to overflow: 146 years, or 77 minutes at a speed of a
million."""
_LONGEST_START_S = 86_400.0
_MOST_PRESENT, _MOST_EVER = 256, 4096
"""Instances that can be added; each has memory for its KV blocks."""
_REFUSALS = {
    Outcome.REJECTED: (429, "the request was rejected at admission"),
    Outcome.UNSERVABLE: (400, "no instance can serve a request of this length"),
    Outcome.TIMED_OUT: (408, "the request has timed out"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of a fleet beside those of its cluster."""

    models: Sequence[str]
    max_model_len: int
    chat_template: str = PLAIN_TEMPLATE
    seed: int = 42
    failures: FailureSettings = field(default_factory=FailureSettings)
    pod_prefix: str = "instance-"


class FleetBackend:
    """A `Backend` that serves made-up text at the times of a simulated cluster."""

    def __init__(
        self, live: LiveCluster, settings: FleetSettings, tokenizer: FleetTokenizer, answers: Answers
    ) -> None:
        self.live, self.settings, self.answers = live, settings, answers
        self.models, self.max_model_len = settings.models, settings.max_model_len
        self.chat_template, self.longest_token = settings.chat_template, tokenizer.longest
        self.defaults: Mapping[str, Any] = {}
        self.template_variables: Mapping[str, str] = {"bos_token": "", "eos_token": ""}
        self.encode, self.decode = tokenizer.encode, tokenizer.decode
        self.token_text = tokenizer.token_text
        self.failures = Failures(settings.failures, settings.seed)
        self.record: RunRecord | None = None
        self.routes: Callable[[FleetBackend], APIRouter] | None = None
        self.kv_events: KVEvents | None = None
        self.journal: RunJournal | None = None
        self.gauges: Mapping[str, Callable[[], float]] = {
            "blis:clock_lag_seconds": lambda: self.live.lag_s,
            "blis:clock_lag_max_seconds": lambda: self.live.max_lag_s,
            "blis:clock_speedup": lambda: self.live.speedup,
        }
        pools = live.simulation.cluster.pools
        blocks = sum(pool.count * pool.spec.scheduler.num_kv_blocks for pool in pools)
        block_size = live.simulation.cluster.block_size
        self._book = PrefixBook(block_size, max(2 * blocks, _BLOCKS_KEPT))
        self._answering: dict[str, _Answering] = {}
        self._names: set[str] = set()
        """Names of all requests so far: a record has each once."""
        self._ready = False

    # -- the life of the server ----------------------------------------------------------------------

    async def start(self) -> None:
        self.live.start()
        self._ready = True

    async def stop(self) -> None:
        self._ready = False
        self.record = self.live.stop()
        if self.kv_events is not None:
            self.kv_events.close()

    @property
    def ready(self) -> bool:
        has_time = self.live.now_ns() < _LAST_NS
        return self._ready and has_time and self.live.room > 0 and bool(self.live.simulation.fleet.ready)

    @property
    def failure(self) -> str:
        return "" if self.live.failure is None else str(self.live.failure)

    @property
    def ends_with_failure(self) -> bool:
        """The run up to the failure can still be looked at."""
        return False

    def now_s(self) -> float:
        return self.live.now_ns() / 1e9

    # -- requests --------------------------------------------------------------------------------------

    def add(self, submission: Submission, deliver: Deliver) -> str:
        """Send a request to the simulated cluster.

        Raises:
            ApiError: 400: an unknown class, or an id in progress; 503: the record is full, or the request was
                refused.
        """
        self.failures.refuse(submission.headers)
        self._check_room()
        slo_class = submission.headers.get("x-slo-class", "")
        if slo_class and slo_class not in CLUSTER_PRIORITY:
            known = ", ".join(CLUSTER_PRIORITY)
            raise ApiError(400, f"unknown class {slo_class!r}: use one of {known}", "X-SLO-Class")
        if submission.id in self._answering:
            raise ApiError(400, "a request of this id is in progress", "X-Request-Id")
        prompt = submission.prompt_ids
        answer = self.answers.answer(prompt, submission.sampling, self.max_model_len - len(prompt))
        answering = _Answering(self, submission, answer, deliver, self.failures.breaks_after(len(answer)))
        self._answering[submission.id] = answering
        name = f"{submission.id}#{self.live.source.rows}" if submission.id in self._names else submission.id
        self._names.add(name)
        answering.live = self.live.add(
            name,
            len(prompt),
            len(answer),
            submission.sampling.max_tokens or 0,
            self._book.content([*prompt, *answer.ids]),
            slo_class,
            submission.priority,
            submission.model,
            answering.tokens,
            answering.ended,
        )
        if self.kv_events is not None:
            self.kv_events.hashes.note(answering.live.request.block_keys, [*prompt, *answer.ids])
        self.live.advance()
        if self.live.failure is not None:
            raise ApiError(503, "the simulated fleet has failed; the server's log has the details")
        answering.added = True
        if answering.refused is not None:
            raise answering.refused
        return self.pod_of(answering.live)

    def pod_of(self, live: LiveRequest) -> str:
        """Name of the instance that has a request; empty while it waits for one."""
        index = self.live.instance_of(live)
        return f"{self.settings.pod_prefix}{index}" if index >= 0 else ""

    def _check_room(self) -> None:
        """
        Raises:
            ApiError: the record of the run has room for no more requests.
        """
        if self.live.now_ns() >= _LAST_NS:
            raise ApiError(503, "the simulated time has run out: restart the server, with a lower --speedup")
        room = self.live.room
        if room == len(self.live.table) // 10:
            log.warning("room is left for %s more requests; see --max-requests", f"{room:,}")
        if not room:
            raise ApiError(503, "the record of the run is full: restart it with a larger --max-requests")

    def abort(self, id: str) -> None:
        answering = self._answering.pop(id, None)
        if answering is not None and answering.live is not None:
            self.live.abort(answering.live)
            answering.note("aborted")

    def outcome(self, live: LiveRequest) -> Outcome:
        return Outcome(int(self.live.simulation.recorder.outcome[live.latest.visit]))

    def forget(self, id: str) -> None:
        """Forget a request that has ended."""
        self._answering.pop(id, None)

    # -- state -----------------------------------------------------------------------------------------

    def load(self) -> Sequence[EngineLoad]:
        fleet, now_ns = self.live.simulation.fleet, self.live.now_ns()
        loads = []
        for instance, member, life in zip(fleet.instances, fleet.members, self.live.schedulers, strict=True):
            scheduler = member.pool.spec.scheduler
            loads.append(
                EngineLoad(
                    index=member.index,
                    is_gone=member.state == "gone",
                    running=instance.batch_size,
                    waiting=instance.queue_depth(now_ns),
                    kv_usage=instance.kv_utilization(now_ns),
                    prefix_queried_tokens=life.counters.prefix_queried_tokens,
                    prefix_hit_tokens=life.counters.prefix_hit_tokens,
                    preemptions=life.counters.preemptions,
                    cache_config={
                        "block_size": str(scheduler.block_size),
                        "num_gpu_blocks": str(scheduler.num_kv_blocks),
                    },
                )
            )
        return loads

    def step_tokens(self, observe: Callable[[int], None]) -> None:
        events = self.kv_events
        if events is None:
            self.live.on_step = observe
            return

        def both(tokens: int) -> None:
            observe(tokens)
            events.changed(tokens)

        self.live.on_step = both

    def reset_prefix_cache(self) -> bool:
        for scheduler in self.live.schedulers:
            scheduler.kv.forget_unused()
        if self.kv_events is not None:
            self.kv_events.cleared()
        return True

    # -- instances -------------------------------------------------------------------------------------

    def sleep(self, index: int, *, kill: bool = False) -> int:
        """Take an instance out of the fleet; returns the number of requests that fail with it.

        Args:
            kill: its requests fail; else it finishes them.

        Raises:
            InputError: no such instance, or it has left already.
        """
        self.live.simulation.fleet.drain(index)
        return self.live.fail_all("the instance has left", index) if kill else 0

    def wake(self, pool: str | None = None, after_s: float = 0.0) -> int:
        """Add an instance; returns its index.

        Args:
            after_s: start-up time.

        Raises:
            InputError: no such pool, a time that is negative or more than a day, or too many instances.
        """
        if not 0 <= after_s <= _LONGEST_START_S:
            raise InputError(f"must be from 0 to {_LONGEST_START_S:g}", key="after_s", value=after_s)
        simulation = self.live.simulation
        members = simulation.fleet.members
        initially = sum(pool.count for pool in simulation.cluster.pools)
        present = sum(member.state != "gone" for member in members)
        if present >= max(_MOST_PRESENT, initially):
            raise InputError(
                "there are too many instances", key="instances", value=present, fix="take some out"
            )
        if len(members) >= max(_MOST_EVER, 2 * initially):
            fix = "restart the server"
            raise InputError(
                "too many instances have come and gone", key="instances", value=len(members), fix=fix
            )
        index = simulation.fleet.add(pool or simulation.cluster.pools[0].name, int(after_s * 1e9))
        self.live.advance()
        return index

    def router(self) -> APIRouter | None:
        return None if self.routes is None else self.routes(self)


class _Answering:
    """One answer on its way."""

    def __init__(
        self,
        fleet: FleetBackend,
        submission: Submission,
        answer: MadeUpAnswer,
        deliver: Deliver,
        breaks_after: int,
    ) -> None:
        self._fleet, self._submission, self._answer, self._deliver = fleet, submission, answer, deliver
        self._breaks_after, self._logprobs = breaks_after, submission.sampling.logprobs
        self._delivered, self._first_s = 0, -1.0
        self.live: LiveRequest | None = None
        self.added = False
        """Whether `add` has returned."""
        self.refused: ApiError | None = None
        """Reason for which `add` refuses it."""

    def tokens(self, count: int) -> None:
        """Deliver so many further tokens to the client."""
        start, answer = self._delivered, self._answer
        if not start:
            self._first_s = self._fleet.now_s()
        self._delivered = end = min(start + count, len(answer.pieces))
        pieces = answer.pieces[start:end]
        piece = Piece("".join(pieces), answer.ids[start:end])
        if self._logprobs is not None:
            piece.logprobs = [_logprob(text, self._logprobs) for text in pieces]
        self._deliver(piece)
        if self._breaks_after and end >= self._breaks_after:
            self._fleet.abort(self._submission.id)
            self._deliver(Piece(finish_reason="error", error="injected: the answer has broken off"))

    def ended(self, why: str) -> None:
        """End the answer."""
        fleet, live = self._fleet, self.live
        fleet.forget(self._submission.id)
        self.note(why or (fleet.outcome(live).name.lower() if live is not None else ""))
        if why:
            self._deliver(Piece(finish_reason="error", error=why, status=503))
        else:
            assert live is not None
            last = self._last(live)
            if last.error and not self.added:
                retry_after_s = 1 if last.status == 429 else None
                self.refused = ApiError(last.status, last.error, retry_after_s=retry_after_s)
            self._deliver(last)

    def note(self, end: str) -> None:
        """Write the request to the journal, if there is one."""
        fleet, live, submission = self._fleet, self.live, self._submission
        if fleet.journal is not None and live is not None:
            request = live.request
            fleet.journal.add(
                {
                    "request_id": submission.id,
                    "model": submission.model,
                    "slo_class": submission.headers.get("x-slo-class", ""),
                    "instance": fleet.live.instance_of(live),
                    "arrival_s": request.arrival_ns / 1e9,
                    "scheduled_s": request.scheduled_ns / 1e9,
                    "first_token_s": self._first_s,
                    "end_s": fleet.now_s(),
                    "prompt_tokens": request.prompt_tokens,
                    "output_tokens": self._delivered,
                    "cached_tokens": max(request.cached_tokens, 0),
                    "end": end,
                }
            )

    def _last(self, live: LiveRequest) -> Piece:
        refusal = _REFUSALS.get(self._fleet.outcome(live))
        if refusal is not None:
            return Piece(finish_reason="error", status=refusal[0], error=refusal[1])
        request = live.request
        pod = self._fleet.pod_of(live)
        timing = Timing(request.scheduled_ns / 1e9, max(request.cached_tokens, 0), pod)
        short = self._delivered < len(self._answer)
        reason = "length" if short else self._answer.finish_reason
        return Piece(finish_reason=reason, stop_reason=self._answer.stop_reason, timing=timing)


def _logprob(text: str, top: int) -> TokenLogprob:
    """A made-up log-probability."""
    return TokenLogprob(text, -0.1, [(text, -0.1)] if top else [])
