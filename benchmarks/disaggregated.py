"""CPU time of 64 prefill and 64 decode instances beside the same work on 128 ordinary ones.

    python benchmarks/disaggregated.py                    # 100,000 requests, in alternation
    python benchmarks/disaggregated.py --requests 10000   # a quick look

Printed per hand-over: CPU seconds, and their ratio to the ordinary instances; at most 2.5 is the bar.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from blis_py import native

COMMON: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "seed": 1,
    "prompt_tokens": 1024,
    "output_tokens": 128,
}
PER_INSTANCE = 2.0
"""Requests per second of one instance."""
INSTANCES = 128


def cpu_s(requests: int, **settings: Any) -> float:
    """CPU time of a run, without its preparation."""
    import blis_py as blis  # behind `native.activate`

    rate = PER_INSTANCE * INSTANCES
    simulation = blis.build(rate=rate, num_requests=requests, **COMMON, **settings)
    begin = time.process_time()
    simulation.run(record_steps=False, progress=False)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--handoffs", nargs="*", default=["vllm", "sglang", "trtllm"])
    parser.add_argument("--pairs", type=int, default=1)
    options = parser.parse_args()
    half = INSTANCES // 2
    apart = {"prefill_instances": half, "decode_instances": half}
    is_native = native.activate()
    print(f"{options.requests:,} requests, {'native' if is_native else 'interpreted'}")
    for policy in ("round-robin", "least-loaded"):
        for handoff in options.handoffs:
            ratios = []
            for _ in range(options.pairs):
                plain = cpu_s(options.requests, num_instances=INSTANCES, routing_policy=policy)
                other = cpu_s(options.requests, handoff=handoff, routing_policy=policy, **apart)
                ratios.append(other / plain)
                print(f"{policy:12} {handoff:8} {other:6.1f} s beside {plain:5.1f} s: {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()
