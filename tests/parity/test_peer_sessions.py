"""Closed loops beside recorded runs of BLIS, with its own flags and files: nothing in them is random.

Sessions of a spec and of a trace, with recorded and given pauses or at their times, and clients with a
concurrency: every request comes, begins and ends when it did there, to the microsecond.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from blis_py.cli import main

Requests = list[dict[str, Any]]
CASES = {
    "sessions of a spec": ("17_sessions_spec_accumulate", ""),
    "recorded pauses": ("18_session_mode_closed_loop", "_column"),
    "given pauses": ("18_session_mode_closed_loop", "_dist"),
    "recorded times": ("18_session_mode_closed_loop", "_fixed"),
    "concurrency": ("19_concurrency_client", ""),
}
FILES = ("trace.yaml", "trace.csv", "spec.yaml")


def theirs(folder: Path, variant: str) -> dict[str, Any]:
    with gzip.open(folder / f"metrics{variant}.json.gz", "rt") as text:
        return dict(json.load(text))


def ours(folder: Path, variant: str, out: Path) -> dict[str, Any]:
    for name in FILES:
        packed = folder / f"{name}.gz"
        if packed.exists():
            (out / name).write_bytes(gzip.decompress(packed.read_bytes()))
        elif (folder / name).exists():
            (out / name).write_bytes((folder / name).read_bytes())
    lines = (folder / "cmd.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("blis ") and f"metrics{variant}.json" in line]
    command = [str(out / word) if word in FILES else word for word in shlex.split(line)[1:]]
    command[command.index("--metrics-path") + 1] = str(out / "metrics.json")
    if "--trace-output" in command:
        del command[command.index("--trace-output") : command.index("--trace-output") + 2]
    assert main([*command, "--engine", "blis", "--format", "json"]) == 0
    return dict(json.loads((out / "metrics.json").read_text()))


def in_order(requests: Requests) -> Requests:
    """By when they came; of those that came together, by their lengths and how they were served."""
    keys = ("num_prefill_tokens", "num_decode_tokens", "ttft_ms", "e2e_ms")
    return sorted(requests, key=lambda one: (round(one["arrived_at"] * 1e6), *(one[key] for key in keys)))


@pytest.mark.parametrize("case", CASES)
def test_every_request_is_sent_and_served_as_it_was_there(
    case: str, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, variant = CASES[case]
    whole, of_peer = (
        ours(shared_data / "peer_runs" / name, variant, tmp_path),
        theirs(shared_data / "peer_runs" / name, variant),
    )
    assert whole["cache_hit_rate"] == pytest.approx(of_peer["cache_hit_rate"], abs=1e-12)
    want, got = in_order(of_peer["requests"]), in_order(whole["requests"])
    assert len(got) == len(want)
    for mine, peers in zip(got, want, strict=True):
        assert mine["arrived_at"] * 1e6 == pytest.approx(peers["arrived_at"] * 1e6, abs=1)
        for latency in ("ttft_ms", "e2e_ms", "itl_ms", "scheduling_delay_ms"):
            assert mine[latency] * 1e3 == pytest.approx(peers[latency] * 1e3, abs=1)
        for same in ("num_prefill_tokens", "num_decode_tokens", "slo_class", "tenant_id", "handled_by"):
            assert mine[same] == peers[same]
        assert mine["round_index"] == peers.get("round_index", 0)
    assert Counter(_turns(got).values()) == Counter(_turns(want).values())


def _turns(requests: Requests) -> Counter[str]:
    """How many requests each session has."""
    return Counter(one["session_id"] for one in requests if one.get("session_id"))
