"""Learns the host time of vLLM before asynchronous scheduling: what its steps take beyond their kernels.

    python benchmarks/accuracy/host_time.py ../shared/data

A step of the synchronous engine waits for the host, whose time no kernel table shows. Learned on the TPOT of
the operating points of one server of that kind (Qwen3-32B in 16 bits, TP4 on H100, vLLM 0.12), two numbers:
per step and per sequence. Held out are all points of one concurrency, or of one prompt length. The numbers
stand in profiles/engines/vllm-0.10.yaml.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silicon import Point, points, predict, simulation

from blis_py.api import Simulation
from blis_py.hardware.gpu import load_gpu
from blis_py.latency.trained import ServerTerms, Trained
from blis_py.models.model_shape import load_model

Floats = NDArray[np.float64]
_STEP_NS, _SEQ_NS = 1e6, 5e4
"""Where the TPOT's slopes are taken."""


def synchronous_points(data: Path) -> list[Point]:
    return [p for p in points(data) if p.engine == "vllm-0.10" and not p.fp8]


def tpot_ms(runs: Sequence[tuple[Point, Simulation]], step_ns: float, seq_ns: float) -> Floats:
    """Predicted with this host time."""
    found = []
    for point, run in runs:
        terms = ServerTerms(1.0, step_ns, seq_ns)
        model = Trained(load_model(point.model), load_gpu(point.gpu), point.tp, server=terms)
        model.frontend = run.latency.frontend
        found.append(predict(run.with_pool(latency=model))[1])
    return np.array(found)


def learn(runs: Sequence[tuple[Point, Simulation]]) -> tuple[float, float]:
    """Least squares on relative errors; TPOT is all but linear in both numbers."""
    from scipy.optimize import nnls

    measured = np.array([point.tpot_ms for point, _ in runs])
    there = tpot_ms(runs, _STEP_NS, _SEQ_NS)
    slopes = np.stack([there - tpot_ms(runs, 0.0, _SEQ_NS), there - tpot_ms(runs, _STEP_NS, 0.0)], axis=1)
    left = measured - there + slopes.sum(axis=1)
    shares = nnls(slopes / measured[:, None], left / measured)[0]
    return float(shares[0] * _STEP_NS), float(shares[1] * _SEQ_NS)


def held_out(runs: Sequence[tuple[Point, Simulation]], key: Callable[[Point], int]) -> Floats:
    """Errors of TPOT of each point, with numbers learned on points that have another value of `key`."""
    errors = []
    for value in sorted({key(point) for point, _ in runs}):
        step_ns, seq_ns = learn([run for run in runs if key(run[0]) != value])
        own = [run for run in runs if key(run[0]) == value]
        errors += list(tpot_ms(own, step_ns, seq_ns) / [point.tpot_ms for point, _ in own] - 1)
        print(f"  without {value:5}: {step_ns / 1e3:7.0f} us a step, {seq_ns / 1e3:5.1f} us a sequence")
    return np.array(errors)


def main(data: Path) -> None:
    runs = [(point, simulation(point)) for point in synchronous_points(data)]
    step_ns, seq_ns = learn(runs)
    print(f"{len(runs)} points: {step_ns / 1e3:.0f} us a step and {seq_ns / 1e3:.1f} us a sequence")
    measured = np.array([point.tpot_ms for point, _ in runs])
    _say("without host time", tpot_ms(runs, 0.0, 0.0) / measured - 1)
    _say("with it", tpot_ms(runs, step_ns, seq_ns) / measured - 1)
    for name, key in (
        ("concurrency", lambda p: p.concurrency),
        ("prompt length", lambda p: p.prompt_tokens),
        ("output length", lambda p: p.output_tokens),
    ):
        _say(f"{name} left out", held_out(runs, key))


def _say(what: str, errors: Floats) -> None:
    print(f"TPOT {what}: mean error {np.abs(errors).mean():.1%}, bias {errors.mean():+.1%}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/accuracy/host_time.py FOLDER")
    main(Path(sys.argv[1]))
