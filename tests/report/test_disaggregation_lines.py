from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blis_py import api
from blis_py.metrics.handovers import HandOvers
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.report import _blis_disaggregation

US = 1000
TRANSFERS_US = [(105, 115), (100, 110), (115, 120)]
"""Begin and end. At the begins, in order of time, 1, 2 and 1 are in progress: one that ends there is none."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """Four requests, the last too short to be handed over; one prefill and one decode instance."""
    trace = Path(tmp_path_factory.mktemp("trace")) / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,99,4\n1,99,4\n2,99,4\n3,9,4\n")
    layout = {"prefill_instances": 1, "decode_instances": 1, "pd_decider": "prefix-threshold"}
    return api.run(model="qwen3-14b", gpu="h100", trace=trace, pd_prefix_threshold=64, **layout).record


def lines_of(run: RunRecord, *, contended: bool = False) -> dict[str, str]:
    lines = _blis_disaggregation.disaggregation_lines(run, latencies(run), 2.0, contended=contended)
    return dict(line.split(": ", 1) for line in lines)


def handed(run: RunRecord, outcome: Outcome = Outcome.COMPLETED) -> RunRecord:
    """With transfers at known times, and an outcome of the first request."""
    rows = [
        (row, 0, 1, 0, 50 * US, 60 * US, begin * US, end * US, 4 * US, 1 << 20)
        for row, (begin, end) in enumerate(TRANSFERS_US)
    ]
    visits = replace(run.visits, outcome=run.visits.outcome.copy())
    visits.outcome[np.flatnonzero(visits.request == 0)[-1]] = outcome
    found = HandOvers.of_bytes(np.array(rows, dtype=np.int64).tobytes())
    return replace(run, visits=visits, handovers=found)


def test_each_side_counts_what_its_instances_completed(run: RunRecord) -> None:
    """Over two seconds; the short request is the decode instance's."""
    lines = lines_of(run)
    assert lines["Disaggregated Requests"] == "3"
    assert lines["Dropped at Decode KV"] == "0"
    assert lines["Prefill Throughput"] == "1.5000 sub-req/s"
    assert lines["Decode Throughput"] == "2.0000 sub-req/s"
    assert lines["Load Imbalance Ratio"] == "1.3333"
    ttft_us = latencies(run).ttft_ns[:3] / US
    assert lines["Parent TTFT (us)"].startswith(f"mean={ttft_us.mean():.1f} p50={np.median(ttft_us):.1f} ")


def test_transfers_in_progress_are_counted_at_each_begin_if_they_share_links(run: RunRecord) -> None:
    lines = lines_of(handed(run), contended=True)
    assert lines["KV Transfer Duration (us)"] == "mean=8.3 p50=10.0 p95=10.0 p99=10.0"
    assert lines["Peak Concurrent Transfers"] == "2"
    assert lines["Mean Transfer Queue Depth"] == "1.3333"
    assert "Peak Concurrent Transfers" not in lines_of(handed(run))


def test_a_request_without_room_on_its_decode_instance_is_counted_there(run: RunRecord) -> None:
    lines = lines_of(handed(run, Outcome.UNSERVABLE))
    assert lines["Dropped at Decode KV"] == "1"
    assert lines["Decode Throughput"] == "1.5000 sub-req/s"


def test_a_side_without_a_completed_visit_is_idle(run: RunRecord) -> None:
    none = replace(run.visits, outcome=np.full_like(run.visits.outcome, Outcome.TIMED_OUT))
    assert lines_of(replace(run, visits=none))["Load Imbalance Ratio"] == "inf (one pool idle)"


def test_a_run_without_hand_overs_has_no_section(run: RunRecord) -> None:
    assert lines_of(replace(run, handovers=None)) == {}
