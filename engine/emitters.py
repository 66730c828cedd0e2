"""The sequences of a batch that emit a token, and what depends on them alone."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import numpy as np

from blis_py.core.request import DECODING, Request
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
    ends: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """`[R]` step-counter values at which each reaches its token limit."""
    requests: list[Request] = field(default_factory=list)
    serials: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """`[R]` serial numbers of the sequences."""

    @classmethod
    def of(cls, sequences: list[Sequence], rows: Ints, tick: int) -> Emitters:
        """Emitters of the step with index `tick`."""
        requests = [sequence.request for sequence in sequences]
        ends = [r.finish_tick if r.status is DECODING else tick + r.target - r.generated for r in requests]
        outputs = [sequence.output_ids for sequence in sequences]
        serials = np.array([sequence.serial for sequence in sequences], dtype=np.int64)
        return cls._made(sequences, outputs, rows, np.array(ends, dtype=np.int64), requests, serials)

    @classmethod
    def _made(
        cls,
        sequences: list[Sequence],
        outputs: list[list[int]],
        rows: Ints,
        ends: Ints,
        requests: list[Request],
        serials: Ints,
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
            int(ends.min(initial=NEVER)),
            frozenset().union(*{sequence.stop_ids for sequence in sequences}) if stops else frozenset(),
            special and True in [sequence.watched for sequence in sequences],
            special and False in [sequence.grammar is None for sequence in sequences],
            special and False in [sequence.stream is None for sequence in sequences],
            ends,
            requests,
            serials,
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
            np.concatenate((self.ends, others.ends)),
            self.requests + others.requests,
            np.concatenate((self.serials, others.serials)),
        )

    def ending(self, end: int, stopped: Ordered[Request]) -> list[Request]:
        """Those that end with this step: at step-counter value `end`, or because they have stopped."""
        over, stopping = self.ends == end, set(stopped)
        if stopping:
            over |= np.array([request in stopping for request in self.requests])
        return [self.requests[index] for index in over.nonzero()[0].tolist()]

    def only(self, roster: Roster) -> Emitters | None:
        """The emitters in the roster; None if it has others, or another order.

        A sequence that emits in one step decodes in the next, in the same slot, unless it has left. So these
        are the decodes.
        """
        requests, sequences = list(self.requests), list(self.sequences)
        outputs, here = list(self.outputs), np.ones(len(self.rows), dtype=bool)
        gone = [index for index, request in enumerate(requests) if request.status is not DECODING]
        for index in reversed(gone):
            del sequences[index], outputs[index], requests[index]
        if requests != roster:
            return None
        here[gone] = False
        rows, ends, serials = self.rows[here], self.ends[here], self.serials[here]
        return Emitters._made(sequences, outputs, rows, ends, requests, serials, self)
