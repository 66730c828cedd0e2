"""The raw outcome of a run, as columns. Everything printed, plotted or written is derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.latency.base import FrontendDelays
from blis_py.metrics.step_ends import StepEnds
from blis_py.metrics.steps_table import StepsTable
from blis_py.requests.table import Ints, Labels, RequestTable

if TYPE_CHECKING:
    from blis_py.core.diffusion_request import DiffusionCounters
    from blis_py.metrics.decisions import Decisions

NOT_SERVED = "model not served"
"""Why a request is rejected at routing: no instance serves the model that it asks for."""

NO_INSTANCE = "no instance"
"""Why a request is rejected at dispatch: no instance is ready, and none is to come."""


class Outcome(IntEnum):
    """Where a request ended. Every injected request is in exactly one."""

    COMPLETED = 0
    LENGTH_CAPPED = 1
    """Completed by reaching max_model_len; a sub-bucket of completed in reports."""
    REJECTED = 2
    """Never got to an instance: refused by admission, dropped at the gateway, or at routing;
    `RunRecord.rejection` says why."""
    UNSERVABLE = 3
    """Could never fit: more blocks than exist, or beyond max_model_len."""
    TIMED_OUT = 4
    QUEUED = 5
    """Still waiting (on the way to an instance, or in its queue) when the run ended."""
    RUNNING = 6
    """Still in an instance's running list when the run ended."""
    EVICTED = 7
    """Taken off its instance for somebody more urgent; `RunRecord.rejection` says so."""


class UnsentTurns(NamedTuple):
    """Turns of sessions that had begun and whose turns wait for answers. They were never requests."""

    cancelled: int
    """A turn before them got no answer: rejected, unservable, timed out."""
    not_reached: int
    """The run ended first."""


@dataclass(slots=True, eq=False, repr=False)
class InstanceRecord:
    """What one instance did."""

    num_kv_blocks: int
    step_ends: StepEnds
    """End of every step, in order; steps of a jump included one by one."""
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
    """Prompt tokens of first admissions (what the prefix cache was asked for)."""
    prefix_hit_tokens: int
    """Of these, tokens found in the cache."""
    preemptions: int
    priority_inversions: int
    """Admissions made while a more urgent request was waiting at the same instance."""
    head_of_line_events: int
    """Requests that, at the head of the queue with others behind them, waited for KV blocks."""
    discarded_tokens: int = 0
    """Decode tokens of requests that had ended, which was not known yet: with asynchronous scheduling."""
    runs: StepsTable | None = None
    """The compact steps table (when recorded): one row per run of alike steps, in time order, with columns
    start_ns, end_ns, steps, waiting, running, kv_blocks (in use during the last step), preemptions (since
    the row before), and the `StepFeatures` of the first step."""
    diffusion: DiffusionCounters | None = None
    """Of a block-diffusion instance, where a step is a round and `decode_tokens` are those of all blocks
    in all rounds."""
    pool: str = ""
    gpus: int = 1
    price_per_hour: float | None = None
    added_ns: int = 0
    gone_ns: int | None = None
    """None = it lived to the end of the run."""

    def lived_ns(self, since_ns: int, end_ns: int) -> int:
        """How much of a span of time it lived."""
        until_ns = end_ns if self.gone_ns is None else min(self.gone_ns, end_ns)
        return max(0, until_ns - max(self.added_ns, since_ns))

    @property
    def steps(self) -> int:
        """How many there were."""
        return self.step_ends.steps

    @property
    def step_end_ns(self) -> Ints:
        """`step_ends` in one array."""
        return self.step_ends.ns()

    def __repr__(self) -> str:
        return (
            f"InstanceRecord({self.steps:,} steps, busy {self.busy_ns / 1e9:,.1f} s, "
            f"{self.preemptions:,} preemptions)"
        )


@dataclass(slots=True, eq=False, repr=False)
class RunRecord:
    """Columns have one row per request of `table`, in its order; times are absolute ns, -1 = not reached.

    Times are what the client sees, front-end delays included; `step` columns index the `step_ends` of
    the request's instance. Token 1 is emitted when step `first_step` ends, the last one with `last_step`,
    and one with every step in between, but for `breaks`: a row (request, before, after) says that the
    request emitted with step `before`, next with step `after`, and with none in between (it was
    preempted, or the budget ran out before its turn).
    """

    table: RequestTable
    outcome: NDArray[np.int8]
    instance: NDArray[np.int32]
    """-1 where the request was never dispatched."""
    enqueue_ns: Ints
    """Entry into the instance's waiting queue."""
    scheduled_ns: Ints
    """Start of the first step that computed anything for it."""
    first_token_ns: Ints
    last_token_ns: Ints
    finish_ns: Ints
    """Completion as the client sees it (last token + end delay), or the moment it timed out, was
    rejected or found unservable."""
    emitted_tokens: Ints
    cached_tokens: Ints
    """Prompt tokens found in the prefix cache at first admission."""
    preemptions: Ints
    first_step: Ints
    last_step: Ints
    breaks: NDArray[np.int64]
    """Shape (m, 3)."""
    instances: list[InstanceRecord]
    frontend: FrontendDelays
    end_ns: int
    """Simulated time at which the run stopped."""
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration, as written to `config.yaml`."""
    blocks: Ints | None = None
    """Block diffusion: blocks that the client got. They come as a whole, one with each step that emits."""
    block_rounds: Ints | None = None
    """Rounds that these took."""
    tokens_per_output: int = 1
    """Tokens that come at once: those of a block."""
    decisions: Decisions | None = None
    """What the router knew when it decided, where that was recorded."""
    rejection: Labels | None = None
    """Why each request was rejected or evicted, empty for those that were not; `None` where nobody was."""
    gateway_ns: Ints | None = None
    """How long each request waited in the gateway queue, -1 where it was never there; `None` = there is
    none."""
    unsent_turns: UnsentTurns | None = None
    """What was left of sessions in closed loops; `None` where there are none."""

    def take(self, rows: NDArray[np.intp]) -> RunRecord:
        """The given requests, in the given order, which is that of their arrival."""
        columns: dict[str, Any] = {
            column.name: value[rows]
            for column in fields(self)
            if column.name != "breaks" and isinstance(value := getattr(self, column.name), np.ndarray)
        }
        place = np.full(len(self.table), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        breaks = np.column_stack((place[self.breaks[:, 0]], self.breaks[:, 1:]))
        breaks = breaks[breaks[:, 0] >= 0]
        breaks = breaks[np.lexsort(breaks.T[::-1])]
        decisions = None if self.decisions is None else self.decisions.moved(place)
        rejection = None if self.rejection is None else self.rejection.take(rows)
        moved = {"breaks": breaks, "decisions": decisions, "rejection": rejection}
        return replace(self, table=self.table.take(rows), **moved, **columns)

    @property
    def outputs(self) -> Ints:
        """How often something came out of each request: its tokens, or its blocks."""
        return self.emitted_tokens if self.blocks is None else self.blocks

    def __repr__(self) -> str:
        counts = np.bincount(self.outcome, minlength=len(Outcome))
        ends = [f"{counts[end]:,} {end.name.lower().replace('_', ' ')}" for end in Outcome if counts[end]]
        steps = sum(instance.steps for instance in self.instances)
        return (
            f"RunRecord({', '.join(ends) or 'no requests'}; {steps:,} steps in {self.end_ns / 1e9:,.1f} s, "
            f"instances: {len(self.instances):,})"
        )
