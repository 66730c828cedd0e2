"""What jumping over decode steps saves against taking them one by one, and that the result is the same.

    python benchmarks/jump.py [--quick] [--repeat N]

Prints JSON: one row per output length and load, with the columns that differ, which should be none.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from typing import Any

import numpy as np
from capacity import saturation_rate
from measure import pin
from setting import build, mean_decode_batch, timed

from blis_py.metrics.record import InstanceRecord, RunRecord

OUTPUT_TOKENS = (256, 2048)
LOADS = (0.2, 0.5, 0.8)
"""Shares of the rate at which one instance saturates."""
_REQUESTS = {256: 2000, 2048: 1000}


def differences(jumped: RunRecord, stepped: RunRecord) -> list[str]:
    """The columns in which two records of one workload differ, to the nanosecond and the token."""
    names = []
    for one, other in zip(_decided(jumped), _decided(stepped), strict=True):
        given = {"table", "visits", "instances", "frontend", "config", "emission", "_order"}
        columns = [column.name for column in fields(one) if column.name not in given]
        names += [name for name in columns if not _same(getattr(one, name), getattr(other, name))]
    for number, (one, other) in enumerate(zip(jumped.instances, stepped.instances, strict=True)):
        for column in fields(InstanceRecord):
            if not _same(getattr(one, column.name), getattr(other, column.name)):
                names.append(f"instances[{number}].{column.name}")
    return names


def _decided(record: RunRecord) -> tuple[Any, ...]:
    """What a run decides; the table, the instances and the settings are looked at elsewhere."""
    return record, record.visits, record.visits.emission


def _same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def measure(
    output_tokens: int, load: float, capacity: float, *, requests: int, repeat: int
) -> dict[str, Any]:
    simulation = build(output_tokens, load * capacity, requests)
    jumped = timed(simulation, repeat=repeat)
    stepped = timed(simulation, repeat=repeat, single_step=True)
    return {
        "output_tokens": output_tokens,
        "load": load,
        "requests": requests,
        "steps": sum(instance.steps for instance in jumped.record.instances),
        "mean_decode_batch": mean_decode_batch(jumped.record),
        "jump_cpu_s": jumped.cpu_s,
        "jump_calibration_ns": jumped.calibration_ns,
        "single_step_cpu_s": stepped.cpu_s,
        "single_step_calibration_ns": stepped.calibration_ns,
        "ratio": stepped.cpu_turns / jumped.cpu_turns,
        "differences": differences(jumped.record, stepped.record),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small case")
    parser.add_argument("--repeat", type=int, default=3, help="the quickest of so many runs counts")
    options = parser.parse_args()
    pin()
    rows = []
    for output_tokens in OUTPUT_TOKENS[:1] if options.quick else OUTPUT_TOKENS:
        capacity = saturation_rate(output_tokens)
        requests = 50 if options.quick else _REQUESTS[output_tokens]
        for load in LOADS[:1] if options.quick else LOADS:
            rows.append(measure(output_tokens, load, capacity, requests=requests, repeat=options.repeat))
    print(json.dumps({"rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
