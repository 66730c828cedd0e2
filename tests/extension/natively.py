"""The examples here as a program, in native code where there is any; prints what came of each."""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    from blis_py import native

    print("native" if native.activate() else "interpreted", file=sys.stderr)

import adapters
import kv_tier
import test_prefill_and_decode as hand_over
import test_unlike_instances as unlike
import two_tokens
from small_runs import requests

from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.metrics.record import RunRecord


def examples() -> dict[str, RunRecord]:
    """By name; asynchronous and not."""
    found = {"adapters": adapters.run(["x", "x", "y", "y", "x", "y"], "by-adapter")}
    found["added and drained"] = unlike.added_and_drained().run()
    texts = [("s", 16), ("s", 16), ("", 0), ("", 0)]
    table = requests([0, 50, 51, 52], [20, 20, 5, 5], [2, 2, 1, 1], texts)
    for overlapped in (False, True):
        found[f"two tokens {overlapped}"] = two_tokens.example(overlapped)
        tier = kv_tier.simulation(table, kv_tier.Tier(), async_scheduling=overlapped)
        found[f"tier {overlapped}"] = tier.run()
        handed_over = hand_over.table([0, 0, 3], [20, 30, 5], [4, 1, 3])
        found[f"hand-over {overlapped}"] = hand_over.apart(handed_over, async_scheduling=overlapped)
    return found


if __name__ == "__main__":
    ROUTING_POLICIES["by-adapter"] = adapters.ByAdapter
    columns = ("instance", "first_token_ns", "finish_ns", "cached_tokens")
    print(
        json.dumps(
            {
                name: {column: getattr(record, column).tolist() for column in columns}
                for name, record in examples().items()
            }
        )
    )
