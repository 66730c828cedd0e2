"""Autoregressive requests and the instances that serve them."""

from __future__ import annotations

from blis_py.cluster.instances.autoregressive import AutoregressiveInstance
from blis_py.cluster.instances.overlapped import OverlappedInstance
from blis_py.cluster.recording.instance_log import InstanceLog
from blis_py.cluster.recording.observer import Observer
from blis_py.cluster.recording.recorder import Recorder
from blis_py.cluster.time.lookahead import Lookahead
from blis_py.cluster.time.wakeups import WakeupQueue
from blis_py.cluster.topology import Pool
from blis_py.core.features import FEATURE_NAMES
from blis_py.core.rank_schedulers import scheduler_of
from blis_py.core.request import Request
from blis_py.latency.base import FrontendDelays
from blis_py.metrics.visits import Role
from blis_py.requests.table import RequestTable


class Autoregressive:
    """The kind of requests that emit a token with every step; see `blis_py.cluster.instances.kinds.Kind`."""

    def __init__(self, record_steps: bool, single_step: bool, observer: Observer | None = None) -> None:
        self.request: type[Request] = Request
        self._observer = observer
        self._record_steps, self._single_step = record_steps, single_step
        self._features = FEATURE_NAMES

    def recorder(self, table: RequestTable, frontend: FrontendDelays, on_the_way_ns: int) -> Recorder:
        if table.constrained is not None and table.constrained.any():
            self._features = (*FEATURE_NAMES, "constrained_rows")
        return Recorder(table, frontend, on_the_way_ns)

    def instance(
        self, pool: Pool, wakeups: WakeupQueue, recorder: Recorder, lookahead: Lookahead
    ) -> AutoregressiveInstance:
        spec, single = pool.spec, self._single_step
        latency, longest = spec.latency, self._record_steps or spec.latency.uses_max_context
        core = scheduler_of(spec.scheduler, longest, spec.kv_source, spec.emission)
        log = InstanceLog(recorder, core, self._record_steps, self._features, Role[pool.role.upper()])
        events = log if self._observer is None else self._observer.beside(len(recorder.logs) - 1, core, log)
        kind = OverlappedInstance if spec.scheduler.async_scheduling else AutoregressiveInstance
        instance = kind(wakeups, core, latency, events, lookahead, single)
        instance.start_cold(spec.kernel_compile_ns)
        return instance
