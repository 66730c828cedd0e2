"""How well each latency model predicts real vLLM step times it was not fitted to.

    python benchmarks/accuracy/vllm_steps.py ../shared/data

The steps: 13,433 of two vLLM runs on H100s (Llama-2-70B TP4, CodeLlama-34B TP2). The time of a step is
the gap to the next one, known exactly where the next step was sampled too. Scored are decode steps
followed by a decode step of the same batch; their Σ context is the KV blocks in use. A step more than
three times the median of its run is a pause of the engine or its client, and counted apart.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import LatencyModel
from blis_py.models.model_shape import load_model

RUNS = {"llama-2-70b-tp4": ("llama-2-70b", 4), "codellama-34b-tp2": ("codellama-34b", 2)}
KERNELS = "kernels_h200_h100/h100_sxm_vllm_0.24.0"
BLOCK_SIZE = 16


def decode_steps(folder: Path, run: str) -> pd.DataFrame:
    """Exactly timed decode steps: `seqs`, `kv_tokens`, `us`."""
    steps = pd.read_csv(folder / "vllm_steps_h100" / "steps_2runs.csv.gz")
    steps = steps[steps.experiment.str.contains(run)]
    exact = steps[
        (steps.next_sampled_gap_steps == 1)
        & (steps.prefill_tokens == 0)
        & (steps.next_prefill_tokens == 0)
        & (steps.decode_reqs == steps.next_decode_reqs)
        & (steps.decode_reqs > 0)
    ]
    return pd.DataFrame(
        {
            "seqs": exact.decode_reqs,
            "kv_tokens": exact.kv_used_blocks * BLOCK_SIZE - exact.decode_reqs * (BLOCK_SIZE // 2),
            "us": exact.cycle_us_mean,
        }
    )


def models(folder: Path, run: str) -> dict[str, LatencyModel]:
    name, tp = RUNS[run]
    shape, gpu = load_model(name), load_gpu("h100")
    tables = folder / KERNELS
    return {
        "kernel-tables": build("kernel-tables", shape=shape, gpu=gpu, tp=tp, kernel_profile=tables),
        "trained-physics": build("trained-physics", shape=shape, gpu=gpu, tp=tp),
        "roofline": build("roofline", shape=shape, gpu=gpu, tp=tp),
    }


def relative_errors(folder: Path, run: str, model: LatencyModel) -> np.ndarray:
    """Predicted over measured, minus one, of each step that is no pause."""
    steps = decode_steps(folder, run)
    steps = steps[steps.us < 3 * steps.us.median()]
    predicted = [
        model.step_ns(StepFeatures(decode_seqs=int(n), decode_kv_tokens=int(kv), emitted_rows=int(n))) / 1e3
        for n, kv in zip(steps.seqs, steps.kv_tokens, strict=True)
    ]
    return np.array(predicted) / steps.us.to_numpy() - 1


def main(folder: Path) -> None:
    print(f"{'run':20}{'model':18}{'steps':>6}{'MAPE':>8}{'bias':>8}{'p95':>8}")
    for run in RUNS:
        for name, model in models(folder, run).items():
            error = relative_errors(folder, run, model)
            size = np.abs(error)
            print(
                f"{run:20}{name:18}{len(error):6}{size.mean():8.1%}{error.mean():+8.1%}"
                f"{np.percentile(size, 95):8.1%}"
            )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/accuracy/vllm_steps.py FOLDER")
    main(Path(sys.argv[1]))
