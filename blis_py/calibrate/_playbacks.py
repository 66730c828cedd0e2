"""The playback that suits a log: of autoregressive requests, or of another kind."""

from __future__ import annotations

from blis_py.calibrate import _playback_steps as playback_steps
from blis_py.calibrate import kinds
from blis_py.calibrate._playback import Playback
from blis_py.calibrate.kinds import Blocks
from blis_py.calibrate.recorded import Lengths, scheduler_config
from blis_py.core.config import SchedulerConfig
from blis_py.latency.base import LatencyModel
from blis_py.traces.steplog import StepLog


def measured(log: StepLog) -> Playback:
    """A playback with measured step times; requests arrive at the engine's step boundaries.

    Raises:
        InputError: the log has no scheduler settings, or unsupported ones.
    """
    if kinds.in_blocks(log):
        return kinds.as_measured(log)
    return playback_steps.as_measured(log)


def predicted(
    log: StepLog,
    latency: LatencyModel,
    *,
    config: SchedulerConfig | None = None,
    lengths: Lengths | None = None,
    blocks: Blocks | None = None,
    single_step: bool = False,
    track_longest: bool = False,
) -> Playback:
    """A playback with step times from a latency model; requests arrive at their recorded times.

    Args:
        config: other settings than the engine's.
        lengths: other prompt and output lengths than those recorded, see `recorded_requests`.
        blocks: where answers come in blocks, another mode or other rounds than the engine's.
        single_step: simulate every decode step by itself. Slower, same result.
        track_longest: track the longest context in the features, even if the model does not use it.

    Raises:
        InputError: the log lacks the scheduler's settings, or the settings are invalid.
    """
    settings = config or scheduler_config(log)
    if kinds.in_blocks(log):
        executed = blocks or kinds.recorded_blocks(log)
        return kinds.as_predicted(log, latency, settings, executed, lengths)
    return playback_steps.as_predicted(log, latency, settings, lengths, single_step, track_longest)
