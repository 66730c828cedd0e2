"""What the clients of real vLLM runs saw, as something to learn the host's time on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h100_runs
import numpy as np
from train_fit import ServedRun

from blis_py.hardware.gpu import load_gpu
from blis_py.latency.trained import Basis, Coefficients, Training
from blis_py.models.model_shape import load_model

GPU = "h100"
_LONGER_NS = 300e3
"""By so much every step is made longer, to see by how much TPOT grows."""


def served_runs(data: Path, kernels: Coefficients) -> list[ServedRun]:
    """The runs on H100.

    Args:
        kernels: coefficients that were learned on kernels alone, none of the host.
    """
    folder = data / "vllm_h100_runs"
    return [_served(h100_runs.read(folder, name), kernels) for name in h100_runs.names(folder)]


def _served(run: h100_runs.Run, kernels: Coefficients) -> ServedRun:
    longer = replace(kernels, host_step_ns=_LONGER_NS)
    records = [h100_runs.predict(run, training=Training(c, ("kernels",))) for c in (kernels, longer)]
    (bare_ms, tpot_ms), (longer_ms, _) = (h100_runs.figures(run, record)["TPOT mean"] for record in records)
    decoding_ns = np.sum(run.e2e_ms - run.ttft_ms) * 1e6
    lasted_ns = run.table.arrival_ns.max() + run.e2e_ms[-1] * 1e6
    model, tp = run.facts["model"], run.facts["tp"]
    return ServedRun(
        run.name,
        model,
        GPU,
        Basis(load_model(model), load_gpu(GPU), tp),
        tpot_ns=tpot_ms * 1e6,
        kernels_ns=bare_ms * 1e6,
        growth=(longer_ms - bare_ms) * 1e6 / _LONGER_NS,
        seqs=float(decoding_ns / lasted_ns),
    )
