"""The batch formers by the name that settings use."""

from __future__ import annotations

from collections.abc import Callable

from blis_py.core.batch_former import BatchFormer, InFlight, PrefillFirst, Running, RunningFirst
from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KVCache
from blis_py.core.prefill_only import PrefillOnly

BATCH_FORMERS: dict[str, Callable[[SchedulerConfig, KVCache, Running], BatchFormer]] = {
    "running-first": RunningFirst,
    "prefill-first": PrefillFirst,
    "prefill-only": PrefillOnly,
    "in-flight": InFlight,
}
