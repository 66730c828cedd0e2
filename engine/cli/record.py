"""Records of engine runs in the simulator's form: same reports, same formats."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.cluster.recording.instance_log import InstanceLog
from blis_py.cluster.recording.recorder import Recorder
from blis_py.core.features import StepFeatures
from blis_py.core.request import Request
from blis_py.core.step import Step
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays
from blis_py.latency.step_run import StepRun
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable
from engine.cli import kinds
from engine.engine import LLMEngine
from engine.kinds import Engine
from engine.sequence import Sequence as Running


def run_record(engine: Engine, table: RequestTable, outcomes: Sequence[Running | InputError]) -> RunRecord:
    """The record of a run of `engine.driver.serve` on a fresh engine.

    Raises:
        RuntimeError: a forward failed, so the rest of the record is meaningless.
    """
    log = engine.recorder.log()
    recorder, instance = _recorders(engine, table)
    now_ns = 0
    for start_ns, end_ns in zip(log.steps["start_ns"], log.steps["end_ns"], strict=True):
        if start_ns > now_ns:
            instance.idle(start_ns - now_ns)
        if not kinds.note_step(instance, start_ns, end_ns):
            instance.steps(Step(StepFeatures()), start_ns, StepRun(1, end_ns))
        now_ns = end_ns
    enqueue_ns = dict(zip(log.requests["number"], log.requests["enqueue_ns"], strict=True))
    for row, outcome in enumerate(outcomes):
        recorder.instance[row] = 0
        if isinstance(outcome, InputError):
            instance.unservable(Request("", 0, 1, row=row), int(table.arrival_ns[row]))
            continue
        recorder.ready_ns[row] = enqueue_ns[row]
        if outcome.finish_reason == "timeout":
            instance.timed_out([outcome.request])
        elif outcome.error is None:
            instance.finished([outcome.request], outcome.finish_ns)
        else:
            raise RuntimeError(f"{outcome.request.id}: {outcome.error}")
    return recorder.record(now_ns)


def _recorders(engine: Engine, table: RequestTable) -> tuple[Recorder, InstanceLog]:
    """Those of the simulator, for an engine of either kind."""
    if not isinstance(engine, LLMEngine):
        return kinds.recorders(engine, table)
    plain = Recorder(table, FrontendDelays())
    return plain, InstanceLog(plain, engine.scheduler, record_steps=False)
