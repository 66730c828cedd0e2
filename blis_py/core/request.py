"""A request as seen by the scheduler."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from typing import Any, Final

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.radix_node import Node

NEVER_NS: Final = (1 << 62) - 1
"""Later than any time that occurs."""


NO_VISIT: Final = -2
"""`Request.visit` while another instance computes the request, and this one only waits for its KV."""


class Status(IntEnum):
    """State of a request. Transitions are forward only, except for preemption (back to WAITING)."""

    WAITING = 0
    PREFILLING = 1
    """In the running list, some of its tokens not computed yet."""
    DECODING = 2
    """In the running list, one token a step."""
    STALLED = 3
    """Would decode, but the token budget did not reach it."""
    ENDING = 4
    """In the running list until the outcome of its last step is known; no more steps."""
    FINISHED = 5
    WAITING_FOR_KV = 6
    """Holds blocks into which KV is being loaded; then WAITING again, before other waiting requests."""


# Under these names native code accesses them without a lookup.
_NOT_FILLED: Final = (-1, 0)
WAITING: Final = Status.WAITING
PREFILLING: Final = Status.PREFILLING
DECODING: Final = Status.DECODING
STALLED: Final = Status.STALLED
ENDING: Final = Status.ENDING
FINISHED: Final = Status.FINISHED
WAITING_FOR_KV: Final = Status.WAITING_FOR_KV


class FinishReason(IntEnum):
    """Reason why a request left the scheduler."""

    STOP = 0
    """Output length reached, or end of sequence."""
    LENGTH = 1
    """Cut at `max_model_len`."""
    TIMEOUT = 2
    ABORT = 3


@mypyc_attr(acyclic=True)
class Request:
    """One request on one instance.

    While a request decodes, it is not updated: its KV length is `base + scheduler.tick`, so a step costs
    nothing per running request. `computed` and `generated` are exact at all other times, and
    `Scheduler.settle` brings them up to date on demand.

    Args:
        id: name; the last tie-breaker of every order.
        arrival_ns: when the client sent it.
        prompt_tokens: length of the prompt, at least 1.
        output_tokens: tokens the model emits before it stops by itself. Known only for a simulated model;
            policies may not read it. An engine leaves it `None`.
        max_tokens: the client's limit on output tokens; 0 = none.
        priority: smaller is more urgent (vLLM's convention).
        deadline_ns: absolute time at which the client times out; -1 = never.
        block_keys: content keys of the leading full blocks that other requests may share, of the prompt and,
            where it is known, of the answer. A key identifies the content and everything before it. An engine
            may append keys of its answer until it hands over the step that ends the request.
        extra_key: further condition for sharing a block: an adapter, a salt.
        constrained: a grammar restricts each of its tokens.
        ends_by_eos: the `output_tokens` end with an end of sequence, which cannot be foreseen.
        row: index of this request in the driver's own tables.
        carried: output tokens that earlier visits to other instances emitted. They count towards the output;
            their KV, but for the last one's, is computed again unless a `KVSource` supplies it.

    Attributes:
        visit: index of this visit to an instance in the driver's tables; `row` for the first visit.
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
        "filled",
        "finish_reason",
        "finish_tick",
        "first_tick",
        "gaps",
        "generated",
        "id",
        "keeps_blocks",
        "kept_blocks",
        "kept_full",
        "known",
        "last_rows",
        "last_tick",
        "match",
        "max_tokens",
        "node",
        "number",
        "output_tokens",
        "preemptions",
        "priority",
        "private",
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
    """Tokens emitted, including one in flight; stale while decoding."""
    target: int
    """Output tokens after which it finishes, from every limit known in advance."""
    ends_late: bool
    """Whether the scheduler detects that `target` is reached only from the outcome of the step."""
    block_table: list[int]
    """Physical block ids in order; while decoding it may lag, see `KVCache.settle`."""
    cached_tokens: int
    """Tokens found in the prefix cache, or supplied by a `KVSource`, at the first admission; -1 before it."""
    scheduled_ns: int
    preemptions: int
    finish_reason: FinishReason | None

    first_tick: int
    """Index of the step that emitted the first token."""
    last_tick: int
    """Index of the step that emitted the latest token; stale while decoding."""
    gaps: list[tuple[int, int]] | None
    """(step, next step) pairs between which it emitted nothing although it had begun to."""

    bursts: list[tuple[int, int]] | None
    """(step, tokens) of steps that emitted more than one token; None = there are none, see `Emission`."""

    known: int
    """Tokens up to which its full blocks can be found, where these are not its computed tokens; -1 = they
    are."""
    last_rows: int
    """With `bursts`: positions of its latest step if that had drafts, or padding; 0 = it had none; -1 = it
    has emitted nothing since it was admitted."""

    keeps_blocks: bool
    """Whether its blocks stay allocated when it completes, until `Lifecycle.let_go`: another instance reads
    them."""
    number: int
    """Number of a request with a deadline, unique on its instance."""
    base: int
    seq: int
    """Position in the running list: larger is later."""
    finish_tick: int
    """Value of the step counter at which it will have reached `target`."""
    kept_blocks: list[int] | None
    kept_full: int
    blocked_at_head: bool

    match: Any
    """State of the prefix cache for this request: its latest match."""
    node: Node | None
    """Node of the radix tree where its published blocks end; None while it does not run."""
    published: int
    """Blocks of its table that belong to the tree, if it has a node."""
    filled: tuple[int, int]
    """Index of the step that completed its prompt, and the tokens whose KV was computed then; if prompts are
    published late."""
    private: Hashable
    """Key of its blocks in the tree that no other request finds, once there are any."""
    queued_at_tokens: int
    """Prefill tokens the instance had computed when the request arrived, if the policy uses it."""

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
        self.ends_late = self.blocked_at_head = self.keeps_blocks = False
        self.block_table = []
        self.finish_reason = self.gaps = self.bursts = None
        self.base = self.seq = self.kept_full = 0
        self.known = self.last_rows = -1
        self.number = self.finish_tick = -1
        self.kept_blocks = self.match = self.node = self.private = None
        self.filled = _NOT_FILLED

    @property
    def num_tokens(self) -> int:
        """Prompt plus emitted tokens: all but the last must be in the cache before the next token."""
        return self.prompt_tokens + self.generated

    @property
    def bursting(self) -> bool:
        """Whether its next step is a decode step that may emit more than one token: its latest emitted."""
        return self.bursts is not None and self.last_rows >= 0

    @property
    def continues(self) -> bool:
        """Whether its next step is a decode step although it is planned one by one: a burst, or the first
        step of a visit that has all its KV but the last token's."""
        alone = self.bursts is not None or self.carried > 0
        return alone and self.generated > 0 and self.computed + 1 == self.num_tokens

    def in_flight(self, resolved: int) -> int:
        """Tokens emitted by its latest step if the outcome of that is not known.

        Args:
            resolved: steps whose outcome is known.
        """
        if self.last_tick < resolved:
            return 0
        return self.bursts[-1][1] if self.bursts and self.bursts[-1][0] == self.last_tick else 1

    def next_visit(self, output_tokens: int | None, max_tokens: int) -> Request:
        """The request as continued by another instance, from the tokens emitted so far.

        Args:
            output_tokens, max_tokens: limits of the whole output, as this visit may have had limits of its
                own.
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
        """Record that the step of this index, counted from 0, emits for it."""
        if self.first_tick < 0:
            self.first_tick = tick
        else:
            self.note_gap(tick)
        self.last_tick = tick

    def forget_since(self, tick: int) -> None:
        """Forget emissions of steps from this index on, which will never be delivered."""
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
        """Record a gap: it emitted before, and does so again in the step of this index."""
        if tick > self.last_tick + 1:
            if self.gaps is None:
                self.gaps = []
            self.gaps.append((self.last_tick, tick))

    def __repr__(self) -> str:
        return f"Request({self.id!r}, {self.status.name}, {self.prompt_tokens}+{self.generated})"
