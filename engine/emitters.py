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
    """In the order of the rows of logits; the same object step after step, as long as they are the same."""

    sequences: list[Sequence]
    outputs: list[list[int]]
    """What each has emitted."""
    rows: Ints
    """Their slots."""
    first_end: int
    """Value of the step counter at which the first of them has emitted all it may."""
    stop_ids: frozenset[int]
    """Tokens at which any of them ends."""
    watched: bool
    """Whether every token of some of them has to be looked at."""
    constrained: bool = False
    """Whether a grammar says of some of them which token may come next."""
    delivered: bool = False
    """Whether anybody may want the text or the tokens of some of them, as they come."""
    ends: list[int] = field(default_factory=list)
    """Value of the step counter at which each has emitted all it may."""
    requests: list[Request] = field(default_factory=list)

    @classmethod
    def of(cls, sequences: list[Sequence], rows: Ints, tick: int) -> Emitters:
        """Those of the step of index `tick`."""
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
            before: others that these are among: what none of them is, none of these is.
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
        """Both, these first."""
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
        """Those that are in the roster; None where it has others, or another order.

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
