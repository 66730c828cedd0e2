"""When each step of an instance ended."""

from __future__ import annotations

import numpy as np

from blis_py.latency.decode_line import LineRun, ends_of
from blis_py.latency.step_run import Ints, StepRun

_AT_ONCE = 1 << 15
"""Steps to work out together; more would take memory and save no time."""


class StepEnds:
    """A growing column; what a run along a line owes is worked out later, with others."""

    def __init__(self) -> None:
        self.steps = 0
        self.last_ns = 0
        """End of the latest step."""
        self._capacity = 1 << 16
        self._ns: Ints = np.empty(self._capacity, np.int64)
        self._owed: list[LineRun] = []
        self._places: list[int] = []
        """Where each of them begins."""
        self._owed_steps = 0

    def append(self, run: StepRun) -> None:
        """One or more steps are over."""
        begin, steps = self.steps, run.steps
        self.steps = end = begin + steps
        self.last_ns = run.end_ns
        if end > self._capacity:
            self._grow(end)
        if steps == 1:
            self._ns[begin] = run.end_ns
        elif isinstance(run, LineRun):
            self._owed.append(run)
            self._places.append(begin)
            self._owed_steps += steps
            if self._owed_steps > _AT_ONCE:
                self._settle()
        else:
            self._ns[begin:end] = run.ends_ns()

    def _grow(self, least: int) -> None:
        before, self._capacity = self._ns, max(least, 2 * self._capacity)
        self._ns = np.empty(self._capacity, np.int64)
        self._ns[: len(before)] = before

    def _settle(self) -> None:
        if not self._owed:
            return
        steps = np.array([run.steps for run in self._owed])
        shift = np.array(self._places) - (steps.cumsum() - steps)
        self._ns[np.arange(self._owed_steps) + shift.repeat(steps)] = ends_of(self._owed)
        self._owed, self._places, self._owed_steps = [], [], 0

    def ns(self) -> Ints:
        """The column so far."""
        self._settle()
        return self._ns[: self.steps]
