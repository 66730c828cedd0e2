"""Tokens emitted by each step for each visit: one per step unless recorded otherwise.

Most visits emit one token with every step from their first to their last. What differs is stored sparsely:
steps in between that emitted nothing (`breaks`) and steps that emitted another number (`others`), as
speculative decoding does. Answers in blocks come a block per step, all of its tokens at once.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from blis_py.core.light_dataclass import dataclass
from blis_py.requests.table import Ints

Rows = NDArray[np.intp]


def _no_rows() -> Ints:
    return np.zeros((0, 3), dtype=np.int64)


@dataclass(slots=True, eq=False, repr=False)
class EmittedTokens:
    """Columns by visit; steps index the `step_ends` of the visit's instance, -1 = never emitted."""

    first_step: Ints
    last_step: Ints
    breaks: Ints = field(default_factory=_no_rows)
    """Rows (visit, before, after), sorted: it emitted with step `before`, next with step `after`, and with
    none in between (it was preempted, or the budget did not reach it)."""
    others: Ints = field(default_factory=_no_rows)
    """Rows (visit, step, tokens), sorted: emitting steps whose number is not `tokens_per_step`."""
    tokens_per_step: int = 1
    as_blocks: bool = False
    """Whether the tokens of a step reach the client as one output, a block; if not, one by one."""

    def steps(self) -> Ints:
        """Number of emitting steps of each visit."""
        steps = np.where(self.first_step < 0, 0, self.last_step - self.first_step + 1)
        if len(self.breaks):
            np.subtract.at(steps, self.breaks[:, 0], self.breaks[:, 2] - self.breaks[:, 1] - 1)
        return steps

    def tokens(self) -> Ints:
        """Number of tokens emitted by each visit."""
        tokens = self.steps() * self.tokens_per_step
        if len(self.others):
            np.add.at(tokens, self.others[:, 0], self.others[:, 2] - self.tokens_per_step)
        return tokens

    def first_tokens(self) -> Ints:
        """Tokens emitted with the first step of each visit."""
        tokens = np.where(self.first_step < 0, 0, self.tokens_per_step)
        visit, step, number = self.others.T
        there = step == self.first_step[visit]
        tokens[visit[there]] = number[there]
        return tokens

    def sizes(self, visits: Rows) -> Ints:
        """Tokens of each emitting step of one visit after another."""
        steps = self.steps()[visits]
        sizes = np.full(steps.sum(), self.tokens_per_step, dtype=np.int64)
        which, counts = rows_of(self.others, visits)
        own, step, tokens = self.others[which].T
        sizes[np.repeat(np.cumsum(steps) - steps, counts) + self.rank(own, step)] = tokens
        return sizes

    def rank(self, visit: Ints, step: Ints) -> Ints:
        """Number of earlier emitting steps of the same visit, for each of these emitting steps."""
        rank: Ints = step - self.first_step[visit]
        if len(self.breaks) and len(rank):
            owner, before, after = self.breaks.T
            missed = np.concatenate((np.zeros(1, np.int64), np.cumsum(after - before - 1)))
            width = int(max(step.max(), after.max())) + 1
            over = np.searchsorted(owner * width + after, visit * width + step, side="right")
            rank = rank - (missed[over] - missed[np.searchsorted(owner, visit)])
        return rank

    def take(self, visits: Rows) -> EmittedTokens:
        """The given visits, in the given order."""
        place = np.full(len(self.first_step), -1, dtype=np.int64)
        place[visits] = np.arange(len(visits))
        return EmittedTokens(
            self.first_step[visits],
            self.last_step[visits],
            _moved(self.breaks, place),
            _moved(self.others, place),
            self.tokens_per_step,
            self.as_blocks,
        )


def _moved(rows: Ints, place: Ints) -> Ints:
    """Rows of the visits with a new index, renumbered and sorted."""
    moved: Ints = np.column_stack((place[rows[:, 0]], rows[:, 1:]))
    moved = moved[moved[:, 0] >= 0]
    moved = moved[np.lexsort(moved.T[::-1])]
    return moved


def rows_of(rows: Ints, visits: Rows) -> tuple[Rows, Ints]:
    """Indices of the sorted rows of each visit in turn, and the number of rows of each."""
    start = np.searchsorted(rows[:, 0], visits)
    counts = np.searchsorted(rows[:, 0], visits, side="right") - start
    return ranges(start, counts), counts


def ranges(start: Ints, length: Ints) -> Ints:
    """start[0], start[0]+1, ... (length[0] of them), start[1], ..."""
    total: Ints = np.cumsum(length)
    starts: Ints = np.repeat(start - total + length, length)
    numbers: Ints = starts + np.arange(len(starts))
    return numbers
