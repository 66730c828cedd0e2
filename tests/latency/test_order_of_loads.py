"""More requests in flight make no token faster and no less throughput, as whole runs come out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import blis_py as blis

IN_FLIGHT = 1, 4, 8, 16, 32, 64
NOISE = 1.01
"""Waves of requests fall differently into the steps of another batch."""


def outcome(settings: dict[str, Any], in_flight: int) -> tuple[float, float]:
    """Mean TPOT in ms and output tokens per second of a closed loop of alike requests."""
    sizes = {"prompt_tokens": 200, "prompt_tokens_stdev": 0, "output_tokens": 40, "output_tokens_stdev": 0}
    settings = {**settings, **sizes, "concurrency": in_flight, "num_requests": 3 * in_flight, "timeout": None}
    summary = blis.run(**settings).summary
    return summary["cluster"]["tpot_ms"]["mean"], summary["cluster"]["throughput"]["output_tokens_per_s"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [
        ("mixtral-8x7b", "h100", 2),
        ("qwen3-30b-a3b", "b200", 1),
        ("gpt-oss-120b", "h200", 1),
        ("qwen3-8b", "l40s", 2),
    ],
)
def test_more_requests_in_flight_are_served_no_faster_each_and_no_fewer_in_all(
    model: str, gpu: str, tp: int, engine: str
) -> None:
    settings = {"model": model, "gpu": gpu, "tp": tp, "engine": engine}
    found = [outcome(settings, in_flight) for in_flight in IN_FLIGHT]
    for (tpot, throughput), (later, more) in pairwise(found):
        assert later * NOISE >= tpot
        assert more * NOISE >= throughput
