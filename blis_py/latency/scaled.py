"""Another model's step times, scaled: a faster GPU, a faster host, or an error of the model itself."""

from __future__ import annotations

import numpy as np

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import FrontendDelays, LatencyModel, StepTime, overlapped
from blis_py.latency.line_model import LineModel, host_ns, rows_ns, tokens_ns
from blis_py.latency.step_run import Ints, StepRun, run_of, step_by_step


def scaled(model: LatencyModel, gpu: float = 1.0, host: float = 1.0) -> LatencyModel:
    """The model with both parts of every step scaled; front-end delays are unchanged."""
    return ScaledLine(model, gpu, host) if isinstance(model, LineModel) else Scaled(model, gpu, host)


class ScaledLine(LineModel):
    """A scaled model whose decode steps lie on a line."""

    def __init__(self, model: LineModel, gpu: float, host: float) -> None:
        super().__init__()
        self._mixes_otherwise = True
        self._model, self._gpu, self._host = model, gpu, host
        self.name, self.provenance, self.frontend = _scaled_description(model, gpu, host)
        self._pair_ns, self._kv_ns = gpu * model._pair_ns, gpu * model._kv_ns

    def _tokens_ns(self, tokens: int) -> float:
        return self._gpu * tokens_ns(self._model, tokens)

    def _rows_ns(self, rows: int) -> float:
        return self._gpu * rows_ns(self._model, rows)

    def _host_ns(self, seqs: int) -> int:
        return int(self._host * host_ns(self._model, seqs) + 0.5)

    def _mixed_ns(self, f: StepFeatures) -> float:
        return self._gpu * self._model._mixed_ns(f)


class Scaled:
    """Any other scaled model; see `LatencyModel`.

    Args:
        model: the model to scale.
        gpu, host: factors of the two parts of every step.
        hides_host: price overlapped steps, for a model with hideable host time.
    """

    def __init__(self, model: LatencyModel, gpu: float, host: float, hides_host: bool = False) -> None:
        self._model, self._gpu, self._host, self._hides_host = model, gpu, host, hides_host
        self.name, self.provenance, self.frontend = _scaled_description(model, gpu, host)
        self.uses_max_context = model.uses_max_context

    def overlapped(self) -> Scaled:
        """The model for overlapped host work, as far as the base model separates it."""
        hidden = overlapped(self._model)
        return Scaled(hidden, self._gpu, self._host, hides_host=hidden is not self._model)

    def step(self, features: StepFeatures) -> StepTime:
        time = self._model.step(features)
        return StepTime(int(time.gpu_ns * self._gpu + 0.5) or 1, int(time.host_ns * self._host + 0.5))

    def step_ns(self, features: StepFeatures) -> int:
        time = self.step(features)
        if not self._hides_host:
            return time.synchronous_ns
        whole_ns, parts = self._model.step_ns(features), self._model.step(features)
        if whole_ns == parts.overlapped_ns:
            return time.overlapped_ns
        return int(whole_ns * (time.synchronous_ns / parts.synchronous_ns) + 0.5) or 1

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        first, last = (self._model.step(features.after(done)).host_ns for done in (0, steps - 1))
        if first == last and not self._hides_host:
            return run_of(self._with_host(features, steps, first), start_ns, until_ns)
        return step_by_step(self.step_ns, features, steps, start_ns, until_ns)

    def _with_host(self, features: StepFeatures, steps: int, host_ns: int) -> Ints:
        """Durations of decode steps with a constant host time."""
        whole_ns = np.diff(self._model.decode_run(features, steps).ends_ns(), prepend=0)
        gpu_ns = np.maximum(((whole_ns - host_ns) * self._gpu + 0.5).astype(np.int64), 1)
        durations_ns: Ints = gpu_ns + int(host_ns * self._host + 0.5)
        return durations_ns


def _scaled_description(
    model: LatencyModel | LineModel, gpu: float, host: float
) -> tuple[str, str, FrontendDelays]:
    return model.name, f"{model.provenance}; GPU time × {gpu:g}, host time × {host:g}", model.frontend
