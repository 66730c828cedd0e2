"""GPU and host of an overlapped loop, of which now the one waits for the other and now the other for the one.

Two steps are in hand: n + 1 is planned and launched when the outcome of n - 1 has been read. Then

    launched(n + 1) = read(n - 1) + host + launching
    GPU end(n + 1)  = max(max(GPU end(n), read(n - 1) + host) + GPU, launched(n + 1))
    read(n)         = max(GPU end(n), launched(n + 1))

with host, launching and GPU time of step n + 1. While the host is the longer of both, the GPU ends before the
host reads, so a long step behind short ones begins that much earlier than their outcome is known.
"""

from __future__ import annotations

from collections.abc import Callable

from blis_py.core.features import StepFeatures
from blis_py.core.step import Step
from blis_py.latency.base import LatencyModel

LaunchParts = Callable[[StepFeatures], tuple[int, int, int]]
"""GPU time of a step, and of the host's work what is not launching and what is, in ns."""


def launch_pipeline(model: LatencyModel) -> LaunchPipeline | None:
    """The pipeline of a model that prices launching apart; None of all others."""
    if not getattr(model, "launches_apart", False):
        return None
    parts: LaunchParts = model.launch_parts  # type: ignore[attr-defined]
    return LaunchPipeline(parts)


class LaunchPipeline:
    """The GPU end of the latest step, and the reading of the one before it, by the recurrence above.

    Consecutive decode steps all take the longer of GPU and host: only a step with prompts begins earlier.
    """

    def __init__(self, parts: LaunchParts) -> None:
        self._parts = parts
        self._read_ns = self._gpu_end_ns = 0
        self._decodes = 0
        """Host-bound decode steps since the one that ended at `_gpu_end_ns`."""
        self._last: tuple[Step, int] | None = None
        """The latest of them, with the number of steps before it in its run."""

    def filled_ns(self, features: StepFeatures, now_ns: int, end_ns: int, goes_on: bool) -> int:
        """End of a step launched now on an idle GPU, which is done at `end_ns`.

        Args:
            goes_on: another one is planned at once, and launched before the outcome is read.
        """
        _, host_ns, launching_ns = self._parts(features)
        self._read_ns, self._gpu_end_ns, self._decodes = now_ns + host_ns + launching_ns, end_ns, 0
        return max(end_ns, self._read_ns + self._next_host_ns(features)) if goes_on else end_ns

    def decoded(self, step: Step, steps: int, read_ns: int, end_ns: int) -> None:
        """Decode steps were launched, the last of which was planned at `read_ns` and ends at `end_ns`."""
        gpu_ns, host_ns, launching_ns = self._parts(_nth(step, steps - 1))
        self._read_ns = read_ns
        if gpu_ns >= host_ns + launching_ns:
            self._gpu_end_ns, self._decodes = end_ns, 0
        else:
            self._decodes += steps
            self._last = step, steps - 1

    def prompt_end_ns(self, features: StepFeatures, before_end_ns: int) -> int:
        """End of a step with prompts, launched now, behind one that ends at `before_end_ns`."""
        gpu_ns, host_ns, launching_ns = self._parts(features)
        behind_ns = min(self._busy_until_ns(), before_end_ns)
        launched_ns = self._read_ns + host_ns + launching_ns
        begin_ns = max(behind_ns, self._read_ns + host_ns)
        self._gpu_end_ns, self._decodes = max(begin_ns + gpu_ns, launched_ns), 0
        self._read_ns = max(behind_ns, launched_ns)
        return max(self._gpu_end_ns, self._read_ns + self._next_host_ns(features), before_end_ns + 1)

    def blocked(self, duration_ns: int) -> None:
        """The host launched nothing for so long before the latest step."""
        self._read_ns += duration_ns
        self._gpu_end_ns += duration_ns

    def _busy_until_ns(self) -> int:
        """GPU end of the latest step."""
        if not self._decodes:
            return self._gpu_end_ns
        assert self._last is not None
        gpu_ns, _, launching_ns = self._parts(_nth(*self._last))
        piled_ns = self._gpu_end_ns + self._decodes * gpu_ns
        return max(piled_ns, self._read_ns + max(gpu_ns - launching_ns, 0))

    def _next_host_ns(self, features: StepFeatures) -> int:
        """The host's work on the step behind, before it reads the outcome: decodes of all that emit."""
        rows = features.emitted_rows
        behind = StepFeatures(decode_seqs=rows, emitted_rows=rows) if rows else features
        _, host_ns, launching_ns = self._parts(behind)
        return host_ns + launching_ns


def _nth(step: Step, number: int) -> StepFeatures:
    return step.features.after(number) if number else step.features
