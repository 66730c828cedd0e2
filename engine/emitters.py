"""The sequences of a batch that emit a token, and what depends on them alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from blis_py.core.request import Request, Status
from engine.sequence import Roster, Sequence
from engine.staging_buffer import Ints

NEVER = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Emitters:
    """Emitting sequences in the order of the rows of logits; the same object as long as the set is
    unchanged."""

    sequences: list[Sequence]
    outputs: list[list[int]]
    """Tokens emitted so far by each."""
    rows: Ints
    """`[R]` slots of the sequences."""
    first_end: int
    """Step-counter value at which the first of them reaches its token limit."""
    stop_ids: frozenset[int]
    """Stop tokens of any of them."""
    watched: bool
    """Whether some of them need every token checked."""
    constrained: bool = False
    """Whether some of them are constrained by a grammar."""
    delivered: bool = False
    """Whether some of them deliver text or tokens as they are emitted."""
    ends: list[int] = field(default_factory=list)
    """`[R]` step-counter values at which each reaches its token limit."""
    requests: list[Request] = field(default_factory=list)

    @classmethod
    def of(cls, sequences: list[Sequence], rows: Ints, tick: int) -> Emitters:
        """Emitters of the step with index `tick`."""
        requests, decoding = [sequence.request for sequence in sequences], Status.DECODING
        ends = [r.finish_tick if r.status is decoding else tick + r.target - r.generated for r in requests]
        outputs = [sequence.output_ids for sequence in sequences]
        return cls._made(sequences, outputs, rows, ends, requests)

    @classmethod
    def _made(
        cls,
        sequences: list[Sequence],
        outputs: list[list[int]],
        rows: Ints,
        ends: list[int],
        requests: list[Request],
        before: Emitters | None = None,
    ) -> Emitters:
        """
        Args:
            before: a superset of these; properties that none of it has need no check.
        """
        stops = before is None or before.stop_ids
        special = before is None or before.watched or before.constrained or before.delivered
        return cls(
            sequences,
            outputs,
            rows,
            min(ends, default=NEVER),
            frozenset().union(*{sequence.stop_ids for sequence in sequences}) if stops else frozenset(),
            special and True in [sequence.watched for sequence in sequences],
            special and False in [sequence.grammar is None for sequence in sequences],
            special and False in [sequence.stream is None for sequence in sequences],
            ends,
            requests,
        )

    def followed_by(self, others: Emitters) -> Emitters:
        """Concatenation, these first."""
        return Emitters(
            self.sequences + others.sequences,
            self.outputs + others.outputs,
            np.concatenate((self.rows, others.rows)),
            min(self.first_end, others.first_end),
            self.stop_ids | others.stop_ids,
            self.watched or others.watched,
            self.constrained or others.constrained,
            self.delivered or others.delivered,
            self.ends + others.ends,
            self.requests + others.requests,
        )

    def only(self, roster: Roster) -> Emitters | None:
        """The emitters in the roster; None if it has others, or another order.

        A sequence that emits in one step decodes in the next, in the same slot, unless it has left. So these
        are the decodes, found without a walk over all of them.
        """
        left, requests = set(self.requests).difference(roster), list(self.requests)
        gone = sorted(map(requests.index, left))
        sequences, outputs, ends = list(self.sequences), list(self.outputs), list(self.ends)
        for index in reversed(gone):
            del sequences[index], outputs[index], ends[index], requests[index]
        if requests != roster:
            return None
        rows = np.delete(self.rows, gone) if gone else self.rows
        return Emitters._made(sequences, outputs, rows, ends, requests, self)
