"""A recorded run of block diffusion through the simulator; see `blis_py.calibrate.rerun`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_py.calibrate.diffusion_parity import NEVER_DONE, MeasuredRounds
from blis_py.calibrate.diffusion_recorded import Blocks, diffusion_config, rounds_of_each, serve_blocks
from blis_py.calibrate.recorded import (
    Lengths,
    Recorded,
    recorded_requests,
    requests_table,
    scheduler_config,
)
from blis_py.cluster.diffusion import DiffusionCosts
from blis_py.cluster.diffusion_recorder import DiffusionInstanceLog, DiffusionRecorder
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.latency.base import FrontendDelays, LatencyModel
from blis_py.metrics.record import RunRecord
from blis_py.traces.steplog import StepLog


def rerun_blocks(
    log: StepLog,
    latency: LatencyModel,
    blocks: Blocks,
    *,
    config: SchedulerConfig,
    lengths: Lengths | None = None,
) -> RunRecord:
    """Serves the recorded requests again, with round times from a latency model.

    Args:
        blocks: the mode, and the rounds of every block.
        config: the scheduler's settings, maybe others than the engine's.
        lengths: other prompt and output lengths than those recorded, see `recorded_requests`.

    Raises:
        InputError: the settings cannot work.
    """
    core = DiffusionScheduler(config, blocks.config)
    recorded = recorded_requests(log, block_size=config.block_size, lengths=lengths)
    ready_ns = [one.request.arrival_ns + latency.frontend.before_enqueue_ns for one in recorded]
    rounds = rounds_of_each(log, recorded, blocks, config.max_model_len)
    recorder = _recorder(core, recorded, ready_ns, latency.frontend)
    events = DiffusionInstanceLog(recorder, core, record_steps=False)
    end_ns = serve_blocks(core, recorded, ready_ns, latency, events, rounds, blocks.costs)
    return recorder.record(end_ns)


def replay_blocks(log: StepLog) -> RunRecord:
    """The recorded run with its own round times, requests seen at the engine's boundaries."""
    core = DiffusionScheduler(scheduler_config(log), diffusion_config(log))
    recorded, ready_ns = recorded_requests(log), log.requests["enqueue_ns"]
    rounds = [[*own, NEVER_DONE] for own in log.requests["block_rounds"]]
    recorder = _recorder(core, recorded, ready_ns, FrontendDelays())
    events = DiffusionInstanceLog(recorder, core, record_steps=False)
    latency = MeasuredRounds(log, lambda: events.num_steps)
    end_ns = serve_blocks(core, recorded, ready_ns, latency, events, rounds, DiffusionCosts())
    return recorder.record(end_ns)


def _recorder(
    core: DiffusionScheduler,
    recorded: Sequence[Recorded],
    ready_ns: Sequence[int],
    frontend: FrontendDelays,
) -> DiffusionRecorder:
    recorder = DiffusionRecorder(requests_table(recorded), frontend, core.diffusion.block_tokens)
    recorder.ready_ns = np.array(ready_ns, dtype=np.int64)
    recorder.instance[:] = 0
    return recorder
