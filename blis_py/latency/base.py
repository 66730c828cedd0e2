"""The interface of a latency model: step features in, nanoseconds out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.step_run import StepRun


@dataclass(frozen=True, slots=True)
class FrontendDelays:
    """Delays of the API server around the engine. They shift the client's view and block nothing."""

    before_enqueue_ns: int = 0
    """From dispatch to the instance's waiting queue (tokenisation, HTTP)."""
    per_token_ns: int = 0
    """Per output token; accumulates, so token j (from 1) is delayed by j times this."""
    at_end_ns: int = 0
    """Once, between the last token and the completion the client sees."""
    behind_ns: int = 0
    """From the engine to the client, the same for every token: it does not accumulate."""
    behind_seq_ns: int = 0
    """The same for each sequence with a token in the step that emits a request's first token: all sequences
    the server streams to at that time. Every token of the request is delayed by it."""
    prompt_token_ns: int = 0
    """The same for each token of the prompt, whose text is split into tokens. It stands behind the engine as
    well: requests enter the queue in the order of their arrival."""

    def plus(self, other: FrontendDelays) -> FrontendDelays:
        """Both delays, one after the other."""
        return FrontendDelays(
            self.before_enqueue_ns + other.before_enqueue_ns,
            self.per_token_ns + other.per_token_ns,
            self.at_end_ns + other.at_end_ns,
            self.behind_ns + other.behind_ns,
            self.behind_seq_ns + other.behind_seq_ns,
            self.prompt_token_ns + other.prompt_token_ns,
        )

    @property
    def vary(self) -> bool:
        """Whether requests are delayed by different times."""
        return bool(self.behind_seq_ns or self.prompt_token_ns)

    def late_ns(self, prompt_tokens: int, together: int) -> int:
        """Further delay of every token of a request.

        Args:
            together: sequences with a token in the step that emits its first one.
        """
        return self.prompt_token_ns * prompt_tokens + self.behind_seq_ns * together

    def token_ns(self, number: int) -> int:
        """Delay from the end of its step until the client receives token `number`, from 1."""
        return self.behind_ns + number * self.per_token_ns


@dataclass(frozen=True, slots=True)
class StepTime:
    """Duration of a step: its parts are sequential in a synchronous engine, concurrent in an overlapped
    one."""

    gpu_ns: int
    host_ns: int

    @property
    def synchronous_ns(self) -> int:
        return self.gpu_ns + self.host_ns

    @property
    def overlapped_ns(self) -> int:
        """The duration behind another step, whose GPU time covers the host's work on this one."""
        return max(self.gpu_ns, self.host_ns)


class LatencyModel(Protocol):
    """Price of steps. Implementations are immutable and free of randomness.

    The ends of `decode_run(f, k)` must equal, to the nanosecond, the running sums of
    `step(f.after(j)).synchronous_ns` for j in 0..k-1: the simulator jumps over k decode steps and
    must land where single steps would have.
    """

    name: str
    """The name in `--latency-model`."""
    provenance: str
    """One line for reports: measured, fitted or datasheet-derived, and from what."""
    frontend: FrontendDelays
    uses_max_context: bool
    """Whether `StepFeatures.max_context` enters the price; if not, it need not be tracked."""

    def step(self, features: StepFeatures) -> StepTime:
        """Duration of one step; at least 1 ns in all."""
        ...

    def step_ns(self, features: StepFeatures) -> int:
        """`step(features).synchronous_ns`, without creating the pair."""
        ...

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        """`steps` consecutive pure decode steps, the first of which begins at `start_ns`.

        The run is cut at the first step that ends at `until_ns` or later.
        """
        ...


def unbounded(model: LatencyModel) -> LatencyModel:
    """The model without the bounds of others (`bounded`), if it has any."""
    own: LatencyModel = getattr(model, "own", model)
    return own


def overlapped(model: LatencyModel) -> LatencyModel:
    """The model for steps that are planned and launched while the one before them runs.

    A model with a separate, hideable host time has a method `overlapped`. In all others the learned host time
    is a gap between two steps: nothing is hidden without data.
    """
    hide = getattr(model, "overlapped", None)
    hidden: LatencyModel = model if hide is None else hide()
    return hidden
