"""What an instance tells whoever keeps notes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from blis_py.core.diffusion_request import Batch, Commit
from blis_py.core.diffusion_request import Outcome as BatchOutcome
from blis_py.core.request import Request
from blis_py.core.step import Step
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import Outcome


class Events(Protocol):
    """The fate of requests."""

    def idle(self, duration_ns: int) -> None:
        """There was nothing to do before the next step."""
        ...

    def unservable(self, request: Request, now_ns: int) -> None:
        """It can never be served."""
        ...

    def timed_out(self, requests: list[Request]) -> None:
        """Their clients gave up, at the latest during the step that has just ended."""
        ...

    def finished(self, requests: list[Request]) -> None:
        """Their last tokens were emitted with the latest step."""
        ...

    def ended(self, requests: list[Request], outcome: Outcome) -> None:
        """Where requests stand, and how far they came. They are settled."""
        ...


class StepEvents(Events, Protocol):
    """Of an autoregressive instance."""

    def steps(self, step: Step, start_ns: int, run: StepRun) -> None:
        """Alike steps are over; the scheduler has not been told yet."""
        ...


class RoundEvents(Events, Protocol):
    """Of a block-diffusion instance."""

    def round(self, batch: Batch, start_ns: int, end_ns: int) -> None:
        """A round is over; `batch.features` are its own."""
        ...

    def batch(self, batch: Batch, outcome: BatchOutcome) -> None:
        """A batch is over; the scheduler has not been told yet."""
        ...

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        """Blocks became final."""
        ...
