"""The interface of a latency model: step features in, nanoseconds out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.step_run import StepRun


@dataclass(frozen=True, slots=True)
class FrontendDelays:
    """What the API server adds around the engine. It shifts what the client sees and blocks nothing."""

    before_enqueue_ns: int = 0
    """From dispatch to the instance's waiting queue (tokenisation, HTTP)."""
    per_token_ns: int = 0
    """Per output token; accumulates, so token j (from 1) is seen j times this late."""
    at_end_ns: int = 0
    """Once, between the last token and the completion the client sees."""
    behind_ns: int = 0
    """From the engine to the client, for every token alike: it does not accumulate."""
    behind_seq_ns: int = 0
    """The same for each sequence with a token in the step that brings a request's first: all whom the server
    streams to at the time. Every token of the request is that late."""

    def token_ns(self, number: int) -> int:
        """From the end of its step until the client sees token `number`, from 1."""
        return self.behind_ns + number * self.per_token_ns


@dataclass(frozen=True, slots=True)
class StepTime:
    """Duration of one step: its parts in turn in a synchronous engine, side by side in an overlapped one."""

    gpu_ns: int
    host_ns: int

    @property
    def synchronous_ns(self) -> int:
        return self.gpu_ns + self.host_ns

    @property
    def overlapped_ns(self) -> int:
        """Behind another step, whose GPU time covers the host's work on this one."""
        return max(self.gpu_ns, self.host_ns)


class LatencyModel(Protocol):
    """Prices steps. Implementations are immutable and free of randomness.

    The ends of `decode_run(f, k)` must equal, to the nanosecond, the running sums of
    `step(f.after(j)).synchronous_ns` for j in 0..k-1: the simulator jumps over k decode steps and
    must land where single steps would have.
    """

    name: str
    """As given to `--latency-model`."""
    provenance: str
    """One line for reports: measured, fitted or datasheet-derived, and from what."""
    frontend: FrontendDelays
    uses_max_context: bool
    """Whether `StepFeatures.max_context` enters the price; if not, nobody need keep track of it."""

    def step(self, features: StepFeatures) -> StepTime:
        """Duration of one step; at least 1 ns in all."""
        ...

    def step_ns(self, features: StepFeatures) -> int:
        """`step(features).synchronous_ns`, without building the pair."""
        ...

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        """`steps` consecutive pure decode steps, the first of which begins at `start_ns`.

        Fewer where one ends at `until_ns` or later: that is the last.
        """
        ...


def overlapped(model: LatencyModel) -> LatencyModel:
    """The model for steps that are planned and launched while the one before them runs.

    A model that tells host time which can be hidden has a method `overlapped`. Of the others all time that
    was learnt as the host's is a gap between two steps: nothing is hidden without data.
    """
    hide = getattr(model, "overlapped", None)
    hidden: LatencyModel = model if hide is None else hide()
    return hidden
