"""The one setting the in-process studies vary: constant lengths, Poisson arrivals, Llama-3.1-8B on H100."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from measure import calibrate

from blis_py import native

native.activate()  # as the commands do, before anything of it is imported

from blis_py import api  # noqa: E402
from blis_py.cluster.simulation import simulate  # noqa: E402
from blis_py.cluster.topology import Cluster  # noqa: E402
from blis_py.metrics.record import RunRecord  # noqa: E402

MODEL = "llama-3.1-8b"
GPU = "h100"
PROMPT_TOKENS = 512


def build(output_tokens: int, rate: float, num_requests: int, num_instances: int = 1) -> api.Simulation:
    """A simulation of requests that are never cancelled, `rate` per second over all instances."""
    return api.build(
        model=MODEL,
        gpu=GPU,
        num_instances=num_instances,
        engine="blis",
        rate=rate,
        num_requests=num_requests,
        prompt_tokens=PROMPT_TOKENS,
        prompt_tokens_stdev=0,
        output_tokens=output_tokens,
        output_tokens_stdev=0,
        timeout=None,
    )


def serve(simulation: api.Simulation, *, single_step: bool = False) -> RunRecord:
    """Only the simulation itself: no reading, no summary."""
    cluster = Cluster.of(
        scheduler=simulation.scheduler,
        latency=simulation.latency,
        num_instances=simulation.config.num_instances,
    )
    return simulate(simulation.table, cluster, single_step=single_step)


@dataclass(frozen=True, slots=True)
class Timed:
    """The quickest of several runs, by CPU time over calibration."""

    record: RunRecord
    cpu_s: float
    calibration_ns: float

    @property
    def cpu_turns(self) -> float:
        return self.cpu_s * 1e9 / self.calibration_ns


def timed(simulation: api.Simulation, *, repeat: int, single_step: bool = False) -> Timed:
    runs = []
    for _ in range(repeat):
        gc.collect()
        before = calibrate()
        began = time.process_time()
        record = serve(simulation, single_step=single_step)
        cpu_s = time.process_time() - began
        runs.append(Timed(record, cpu_s, (before + calibrate()) / 2))
    return min(runs, key=lambda run: run.cpu_turns)


def mean_decode_batch(record: RunRecord) -> float:
    """Decode sequences per step, over all instances."""
    steps = sum(instance.steps for instance in record.instances)
    return sum(instance.decode_tokens for instance in record.instances) / steps
