"""Another model's step times, multiplied: a faster GPU, a faster host, or an error of the model itself."""

from __future__ import annotations

import numpy as np

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import LatencyModel, StepTime, overlapped
from blis_py.latency.line_model import LineModel
from blis_py.latency.step_run import Ints, PricedRun, StepRun, run_of


class Scaled:
    """See `LatencyModel`.

    Args:
        model: whose step times they are.
        gpu, host: what the two parts of every step are multiplied with.
        hides_host: price steps that hide their host time, of a model that tells what can be hidden.
    """

    def __init__(
        self, model: LatencyModel, gpu: float = 1.0, host: float = 1.0, hides_host: bool = False
    ) -> None:
        self._model, self._gpu, self._host, self._hides_host = model, gpu, host, hides_host
        self.name, self.frontend = model.name, model.frontend
        self.uses_max_context = model.uses_max_context
        self.provenance = f"{model.provenance}; GPU time × {gpu:g}, host time × {host:g}"

    def overlapped(self) -> Scaled:
        """The model where the host works while the GPU does, as far as the other one can tell."""
        hidden = overlapped(self._model)
        return Scaled(hidden, self._gpu, self._host, hides_host=hidden is not self._model)

    def step(self, features: StepFeatures) -> StepTime:
        time = self._model.step(features)
        return StepTime(_times(time.gpu_ns, self._gpu), int(time.host_ns * self._host + 0.5))

    def step_ns(self, features: StepFeatures) -> int:
        time = self.step(features)
        return time.overlapped_ns if self._hides_host else time.synchronous_ns

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        if isinstance(self._model, LineModel):
            return run_of(self._along(features, steps), start_ns, until_ns)
        ends, end_ns = [], start_ns
        for done in range(steps):
            end_ns += self.step_ns(features.after(done))
            ends.append(end_ns)
            if end_ns >= until_ns:
                break
        return PricedRun(ends)

    def _along(self, features: StepFeatures, steps: int) -> Ints:
        """Durations of decode steps whose host time is the same in all."""
        host_ns = self._model.step(features).host_ns
        whole_ns = np.diff(self._model.decode_run(features, steps).ends_ns(), prepend=0)
        gpu_ns = np.maximum(((whole_ns - host_ns) * self._gpu + 0.5).astype(np.int64), 1)
        scaled: Ints = gpu_ns + int(host_ns * self._host + 0.5)
        return scaled


def _times(ns: int, factor: float) -> int:
    return int(ns * factor + 0.5) or 1
