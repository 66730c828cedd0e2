"""The raw outcome of a run, as columns. Everything printed, plotted or written is derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.core.light_dataclass import dataclass
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.step_ends import StepEnds
from blis_py.metrics.steps_table import StepsTable
from blis_py.metrics.visits import Visits
from blis_py.requests.table import Ints, Labels, RequestTable

if TYPE_CHECKING:
    from blis_py.core.counters import Counters
    from blis_py.metrics.decisions import Decisions
    from blis_py.metrics.handovers import HandOvers

NOT_SERVED = "model not served"
"""Reason of a rejection at routing: no instance serves the requested model."""

NO_INSTANCE = "no instance"
"""Reason of a rejection at dispatch: no instance is ready, and none is coming."""


INSTANCE_FAILED = "instance failed"
"""Reason of an eviction: the instance of the request failed."""


class Outcome(IntEnum):
    """Final state of a request. Every injected request has exactly one."""

    COMPLETED = 0
    LENGTH_CAPPED = 1
    """Completed by reaching max_model_len; a sub-bucket of completed in reports."""
    REJECTED = 2
    """Never reached an instance: rejected by admission, dropped at the gateway, or at routing;
    `RunRecord.rejection` has the reason."""
    UNSERVABLE = 3
    """Could never fit: needs more blocks than exist, or exceeds max_model_len."""
    TIMED_OUT = 4
    QUEUED = 5
    """Still waiting (on the way to an instance, or in its queue) when the run ended."""
    RUNNING = 6
    """Still in an instance's running list when the run ended."""
    EVICTED = 7
    """Removed from its instance in favour of a more urgent request; `RunRecord.rejection` has the reason."""


class UnsentTurns(NamedTuple):
    """Unsent turns of started sessions whose turns wait for answers. They were never requests."""

    cancelled: int
    """An earlier turn got no answer: rejected, unservable, timed out."""
    not_reached: int
    """The run ended before."""


@dataclass(slots=True, eq=False, repr=False)
class InstanceRecord:
    """The record of one instance."""

    num_kv_blocks: int
    step_ends: StepEnds
    """End of every step, in order; steps of a jump are included individually."""
    busy_ns: int
    """Total duration of its steps."""
    peak_kv_blocks: int
    kv_block_steps: int
    """Sum over steps of the blocks in use during the step."""
    prefill_tokens: int
    """Prompt tokens computed, recomputation included."""
    decode_tokens: int
    """Tokens computed by decode sequences."""
    prefix_queried_tokens: int
    """Prompt tokens of first admissions (looked up in the prefix cache)."""
    prefix_hit_tokens: int
    """Those of them found in the cache."""
    preemptions: int
    priority_inversions: int
    """Admissions made while a more urgent request was waiting at the same instance."""
    head_of_line_events: int
    """Requests that waited for KV blocks at the head of the queue, with others behind them."""
    discarded_tokens: int = 0
    """Decode tokens of requests whose end was not known yet: with asynchronous scheduling."""
    runs: StepsTable | None = None
    """The compact steps table (when recorded): one row per run of alike steps, in time order, with columns
    start_ns, end_ns, steps, waiting, running, kv_blocks (in use during the last step), preemptions (since
    the row before), and the `StepFeatures` of the first step."""
    of_kind: Counters | None = None
    """Further counters of its kind of requests; none of autoregressive ones. Where answers come
    in blocks, a step is a round and `decode_tokens` are those of all blocks in all rounds."""
    pool: str = ""
    gpus: int = 1
    price_per_hour: float | None = None
    added_ns: int = 0
    gone_ns: int | None = None
    """Time of departure; None if it lived to the end of the run."""

    def lived_ns(self, since_ns: int, end_ns: int) -> int:
        """The part of a time span during which it lived."""
        until_ns = end_ns if self.gone_ns is None else min(self.gone_ns, end_ns)
        return max(0, until_ns - max(self.added_ns, since_ns))

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.step_ends.steps

    @property
    def step_end_ns(self) -> Ints:
        """`step_ends` as one array."""
        return self.step_ends.ns()

    def __repr__(self) -> str:
        return (
            f"InstanceRecord({self.steps:,} steps, busy {self.busy_ns / 1e9:,.1f} s, "
            f"{self.preemptions:,} preemptions)"
        )


@dataclass(slots=True, eq=False, repr=False)
class RunRecord:
    """The requests of a run and their visits to instances. Columns have one row per request of `table`, in
    its order, and derive from those of `visits`; times are absolute ns as the client sees them, front-end
    delays included, -1 = not reached.
    """

    table: RequestTable
    visits: Visits
    instances: list[InstanceRecord]
    frontend: FrontendDelays
    end_ns: int
    """Simulated time at which the run stopped."""
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration, as written to `config.yaml`."""
    block_rounds: Ints | None = None
    """Rounds that the blocks of each request took, where answers come in blocks."""
    decisions: Decisions | None = None
    """The state visible to the router at each decision, if recorded."""
    rejection: Labels | None = None
    """Reason of the rejection or eviction of each request, empty for others; `None` if there were none."""
    gateway_ns: Ints | None = None
    """Time of each request in the gateway queue, -1 if it was never there; `None` if there is no such
    queue."""
    handovers: HandOvers | None = None
    """Transfers from prefill to decode instances; `None` if prefill and decode are not apart."""
    unsent_turns: UnsentTurns | None = None
    """Unsent turns of sessions in closed loops; `None` without such sessions."""

    @property
    def outcome(self) -> NDArray[np.int8]:
        """Outcome of the last visit."""
        return self.visits.last(self.visits.outcome)

    @property
    def instance(self) -> NDArray[np.int32]:
        """Instance of the last visit; -1 if the request was never dispatched."""
        return self.visits.last_known(self.visits.instance)

    @property
    def enqueue_ns(self) -> Ints:
        """Entry into the waiting queue of the first instance."""
        return self.visits.first(self.visits.enqueue_ns)

    @property
    def scheduled_ns(self) -> Ints:
        """Start of the first step that computed tokens for it, on any instance."""
        return self.visits.first_known(self.visits.scheduled_ns)

    @property
    def first_token_ns(self) -> Ints:
        """First token of the first visit that emitted; neither preemption nor another visit resets it."""
        return self.visits.first_known(self.visits.first_token_ns)

    @property
    def last_token_ns(self) -> Ints:
        """Last token of the last visit that emitted."""
        return self.visits.last_known(self.visits.last_token_ns)

    @property
    def finish_ns(self) -> Ints:
        """Completion as the client sees it (last token + end delay), or the time of the timeout, the
        rejection or the detection as unservable."""
        return self.visits.last(self.visits.finish_ns)

    @property
    def emitted_tokens(self) -> Ints:
        """Tokens emitted over all visits."""
        return self.visits.total(self.visits.emitted_tokens)

    @property
    def cached_tokens(self) -> Ints:
        """Prompt tokens found in the prefix cache at first admission to the first instance."""
        return self.visits.first(self.visits.cached_tokens)

    @property
    def preemptions(self) -> Ints:
        """Preemptions over all visits."""
        return self.visits.total(self.visits.preemptions)

    @property
    def blocks(self) -> Ints | None:
        """For answers in blocks: the blocks that the client received, each as a whole."""
        emission = self.visits.emission
        return self.visits.total(emission.steps()) if emission.as_blocks else None

    @property
    def outputs(self) -> Ints:
        """Number of outputs of each request: its tokens, or its blocks."""
        blocks = self.blocks
        return self.emitted_tokens if blocks is None else blocks

    def take(self, rows: NDArray[np.intp]) -> RunRecord:
        """The given requests, in the given order, which is that of their arrival."""
        columns: dict[str, Any] = {
            column.name: value[rows]
            for column in fields(self)
            if isinstance(value := getattr(self, column.name), np.ndarray)
        }
        place = np.full(len(self.table), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        decisions = None if self.decisions is None else self.decisions.moved(place)
        rejection = None if self.rejection is None else self.rejection.take(rows)
        moved: dict[str, Any] = {
            "visits": self.visits.take(rows),
            "decisions": decisions,
            "rejection": rejection,
            "handovers": None if self.handovers is None else self.handovers.take(rows),
        }
        return replace(self, table=self.table.take(rows), **moved, **columns)

    def on(self, indices: Sequence[int]) -> RunRecord:
        """The visits to some instances, as the requests of a run of their own; see `Visits.alone`.

        Args:
            indices: ascending.
        """
        visits, instances = self.visits, [self.instances[index] for index in indices]
        there = np.flatnonzero(np.isin(visits.instance, indices))
        rows = visits.request[there]
        return replace(self.take(rows), visits=visits.alone(there, indices), instances=instances)

    def __repr__(self) -> str:
        counts = np.bincount(self.outcome, minlength=len(Outcome))
        ends = [f"{counts[end]:,} {end.name.lower().replace('_', ' ')}" for end in Outcome if counts[end]]
        steps = sum(instance.steps for instance in self.instances)
        return (
            f"RunRecord({', '.join(ends) or 'no requests'}; {steps:,} steps in {self.end_ns / 1e9:,.1f} s, "
            f"instances: {len(self.instances):,})"
        )
