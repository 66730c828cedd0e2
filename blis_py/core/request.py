"""A request as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from typing import Any, Final

from blis_py.core.radix_node import Node

NEVER_NS: Final = (1 << 62) - 1
"""Later than any time that occurs."""


class Status(IntEnum):
    """Where a request is in its life. Only forward, but for preemption (back to WAITING)."""

    WAITING = 0
    PREFILLING = 1
    """In the running list, some of its tokens not computed yet."""
    DECODING = 2
    """In the running list, one token a step."""
    STALLED = 3
    """Would decode, but the token budget ran out before its turn."""
    ENDING = 4
    """In the running list until the outcome of its last step is known; no more steps."""
    FINISHED = 5
    WAITING_FOR_KV = 6
    """Holds blocks, to which KV is on its way; then WAITING again, before the others that wait."""


# Under these names native code finds them without looking anything up.
WAITING: Final = Status.WAITING
PREFILLING: Final = Status.PREFILLING
DECODING: Final = Status.DECODING
STALLED: Final = Status.STALLED
ENDING: Final = Status.ENDING
FINISHED: Final = Status.FINISHED
WAITING_FOR_KV: Final = Status.WAITING_FOR_KV


class FinishReason(IntEnum):
    """Why a request left the scheduler."""

    STOP = 0
    """Output length reached, or end of sequence."""
    LENGTH = 1
    """Cut at `max_model_len`."""
    TIMEOUT = 2
    ABORT = 3


class Request:
    """One request on one instance.

    While a request decodes, nobody touches it: its KV length is `base + scheduler.tick`, so a step
    costs nothing per running request. `computed` and `generated` are exact at all other times, and
    `Scheduler.settle` brings them up to date on demand.

    Args:
        id: name; the last tie-breaker of every order.
        arrival_ns: when the client sent it.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens the model emits before it stops by itself. Only a simulated model
            knows; policies may not read it. An engine leaves it `None`.
        max_tokens: the client's limit on output tokens; 0 = none.
        priority: smaller is more urgent (vLLM's convention).
        deadline_ns: absolute time at which the client gives up; -1 = never.
        block_keys: content keys of the leading full blocks that others may share, of the prompt and, where
            it is known, of the answer. A key names the content and everything before it. An engine may
            append keys of its answer until it hands over the step that ends the request.
        extra_key: what else has to be equal for a block to be shared: an adapter, a salt.
        constrained: a grammar says of each of its tokens what may come next.
        ends_by_eos: the `output_tokens` end with an end of sequence, which nobody knows before it is there.
        row: where the driver keeps its own notes on this request.
        carried: output tokens that earlier visits to other instances emitted. They count towards the output;
            their KV, but for the last one's, is computed again unless a `KVSource` supplies it.

    Attributes:
        visit: where the driver keeps its notes on this stay at an instance; `row`, unless it has been at
            another before.
    """

    __slots__ = (
        "arrival_ns",
        "base",
        "block_keys",
        "block_table",
        "blocked_at_head",
        "bursts",
        "cached_tokens",
        "carried",
        "computed",
        "constrained",
        "deadline_ns",
        "ends_by_eos",
        "ends_late",
        "extra_key",
        "finish_reason",
        "finish_tick",
        "first_tick",
        "gaps",
        "generated",
        "id",
        "kept_blocks",
        "kept_full",
        "last_tick",
        "match",
        "max_tokens",
        "node",
        "number",
        "output_tokens",
        "preemptions",
        "priority",
        "prompt_tokens",
        "published",
        "queued_at_tokens",
        "row",
        "scheduled_ns",
        "seq",
        "status",
        "target",
        "visit",
    )

    status: Status
    computed: int
    """Tokens whose KV is in the cache; stale while decoding."""
    generated: int
    """Tokens emitted, one in flight included; stale while decoding."""
    target: int
    """Output tokens after which it finishes, from every limit that is known in advance."""
    ends_late: bool
    """The scheduler learns that `target` is reached from the outcome of the step."""
    block_table: list[int]
    """Physical block ids in order; while decoding it may lag, see `KVCache.settle`."""
    cached_tokens: int
    """Tokens found in the prefix cache, or supplied by a `KVSource`, at the first admission; -1 = not yet."""
    scheduled_ns: int
    preemptions: int
    finish_reason: FinishReason | None

    first_tick: int
    """Index of the step that emitted the first token."""
    last_tick: int
    """Index of the step that emitted the latest token; stale while decoding."""
    gaps: list[tuple[int, int]] | None
    """(step, next step) pairs between which it emitted nothing though it had begun."""

    bursts: list[tuple[int, int]] | None
    """(step, tokens) of steps that emitted more than one token; None = none will, see `Emission`."""

    number: int
    """Of a request with a deadline, on its instance."""
    base: int
    seq: int
    """Position in the running list: larger is later."""
    finish_tick: int
    """Value of the step counter at which it will have reached `target`."""
    kept_blocks: list[int] | None
    kept_full: int
    blocked_at_head: bool

    match: Any
    """What the prefix cache remembers of its last answer about this request."""
    node: Node | None
    """Where in the radix tree its published blocks end; None while it does not run."""
    published: int
    """Blocks of its table that belong to the tree, where it has a node."""
    queued_at_tokens: int
    """Prefill tokens the instance had computed when it came, where the policy asks."""

    def __init__(
        self,
        id: str,
        arrival_ns: int,
        prompt_tokens: int,
        output_tokens: int | None = None,
        max_tokens: int = 0,
        priority: int = 1,
        deadline_ns: int = -1,
        block_keys: Sequence[Hashable] = (),
        row: int = -1,
        extra_key: Hashable = None,
        ends_by_eos: bool = False,
        constrained: bool = False,
        carried: int = 0,
    ) -> None:
        self.id = id
        self.arrival_ns = arrival_ns
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.max_tokens = max_tokens
        self.priority = priority
        self.deadline_ns = deadline_ns
        self.block_keys = block_keys
        self.row = self.visit = row
        self.extra_key = extra_key
        self.ends_by_eos = ends_by_eos
        self.constrained = constrained
        self.carried = carried

        self.status = WAITING
        self.generated = carried
        self.computed = self.target = self.preemptions = 0
        self.cached_tokens = self.scheduled_ns = self.first_tick = self.last_tick = -1
        self.ends_late = self.blocked_at_head = False
        self.block_table = []
        self.finish_reason = self.gaps = self.bursts = None
        self.base = self.seq = self.kept_full = 0
        self.number = self.finish_tick = -1
        self.kept_blocks = self.match = self.node = None

    @property
    def num_tokens(self) -> int:
        """Prompt plus emitted tokens: what must be in the cache, but for the last, before the next."""
        return self.prompt_tokens + self.generated

    @property
    def bursting(self) -> bool:
        """Whether its next step is a decode step that may emit more than one token."""
        return self.bursts is not None and self.generated > 0 and self.computed + 1 == self.num_tokens

    @property
    def continues(self) -> bool:
        """Whether its next step is a decode step although it is planned one by one: a burst, or the first
        step of a visit that has all its KV but the last token's."""
        alone = self.bursts is not None or self.carried > 0
        return alone and self.generated > 0 and self.computed + 1 == self.num_tokens

    def next_visit(self, output_tokens: int | None, max_tokens: int) -> Request:
        """The request as another instance goes on with it, from the tokens emitted so far.

        Args:
            output_tokens, max_tokens: of the whole output, as this visit may have had limits of its own.
        """
        return Request(
            self.id,
            self.arrival_ns,
            self.prompt_tokens,
            output_tokens,
            max_tokens,
            self.priority,
            self.deadline_ns,
            self.block_keys,
            self.row,
            self.extra_key,
            self.ends_by_eos,
            self.constrained,
            carried=self.generated,
        )

    def note_emission(self, tick: int) -> None:
        """The step of this index, counted from 0, emits for it."""
        if self.first_tick < 0:
            self.first_tick = tick
        else:
            self.note_gap(tick)
        self.last_tick = tick

    def forget_since(self, tick: int) -> None:
        """Nothing that steps from this index on would have emitted will reach anybody."""
        while self.generated > self.carried and self.last_tick >= tick:
            in_burst = self.bursts and self.bursts[-1][0] == self.last_tick
            self.generated -= self.bursts.pop()[1] if self.bursts and in_burst else 1
            if self.gaps and self.gaps[-1][1] == self.last_tick:
                self.last_tick = self.gaps.pop()[0]
            else:
                self.last_tick -= 1
        if self.generated == self.carried:
            self.first_tick = self.last_tick = -1

    def note_gap(self, tick: int) -> None:
        """It has begun to emit, and does so again with the step of this index."""
        if tick > self.last_tick + 1:
            if self.gaps is None:
                self.gaps = []
            self.gaps.append((self.last_tick, tick))

    def __repr__(self) -> str:
        return f"Request({self.id!r}, {self.status.name}, {self.prompt_tokens}+{self.generated})"
