"""A step feature from outside, and a latency model that prices it: two entries of the schema, nothing edited.

As a program it simulates a run in native code, where there is any, and prints what came of it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

if __name__ == "__main__":
    from blis_py import native

    print("native" if native.activate() else "interpreted", file=sys.stderr)

import numpy as np

from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import FEATURES, Feature, StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.step_run import PricedRun, StepRun
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import RequestTable

US = 1000


def waiting_tokens(step: Any, scheduler: Any) -> int:
    """Prompt tokens in the waiting queue when the step has been planned."""
    return sum(request.prompt_tokens for request in scheduler.waiting)


def held_share(step: Any, scheduler: Any) -> float:
    """Share of the KV blocks in use: it grows whenever a request needs one more."""
    return float(scheduler.blocks_in_use() / scheduler.config.num_kv_blocks)


WAITING = Feature("tokens", compute=waiting_tokens)
HELD = Feature("share of blocks", grows=None, whole=False, compute=held_share)


class SlowedByTheQueue:
    """A latency model: 10 µs a step, and 2 ns more for every prompt token that waits."""

    name, provenance = "slowed", "made up"
    frontend = FrontendDelays()
    uses_max_context = False

    def step_ns(self, features: StepFeatures) -> int:
        return 10 * US + 2 * int(features["waiting_tokens"])

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self.step_ns(features), 0)

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        ends = start_ns + np.cumsum([self.step_ns(features.after(done)) for done in range(steps)])
        return PricedRun(ends).until(until_ns)


def run(**options: Any) -> RunRecord:
    """Eight requests, of which two fit."""
    prompts, outputs = np.arange(100, 900, 100), np.full(8, 30)
    table = RequestTable.build(np.arange(8) * 35 * US, prompts, outputs)
    config = SchedulerConfig(num_kv_blocks=1000, max_model_len=1000, max_num_seqs=2)
    cluster = Cluster.of(scheduler=config, latency=SlowedByTheQueue())
    return simulate(table, cluster, record_steps=True, **options)


def columns(record: RunRecord) -> dict[str, list[float]]:
    """What the steps table says of the instance."""
    table = record.instances[0].runs
    assert table is not None
    return {name: table[name].tolist() for name in table.names}


if __name__ == "__main__":
    FEATURES.update(waiting_tokens=WAITING, held_share=HELD)
    finished = run()
    print(json.dumps({**columns(finished), "finish_ns": finished.finish_ns.tolist()}))
