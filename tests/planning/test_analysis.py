"""Draws and levers of an analysis."""

from __future__ import annotations

from dataclasses import replace

import pytest
from formula_servers import CONFIG

from blis_py.planning.analysis import draws, levers
from blis_py.planning.goal import Goal, Judgement
from blis_py.planning.job import FINE, HOPELESS, JobOutcome, Variation
from blis_py.planning.uncertainty import Draw, Errors


@pytest.mark.parametrize(
    ("residual", "stops"),
    [({}, (HOPELESS,)), ({"a": 1.0, "b": 1.2}, (HOPELESS,)), ({"a": 0.9, "b": 1.2}, ()), ({"a": 0.9}, ())],
)
def test_a_draw_with_any_faster_latency_is_not_given_up_early(
    residual: dict[str, float], stops: tuple[str, ...]
) -> None:
    drawn = Errors((Draw(1.1, {(name, "p99"): factor for name, factor in residual.items()}),), "s", 9)
    (job,) = draws(CONFIG, drawn, Goal(max_lost=0.1), 3.0).values()
    assert job.stops_at == stops
    assert (job.max_lost, job.variation.length, job.variation.resample) == (0.1, 3.0, None)
    assert job.config.seed != CONFIG.seed
    recorded = replace(CONFIG, workload=replace(CONFIG.workload, trace="t.csv"))
    (job,) = draws(recorded, drawn, Goal(), 1.0).values()
    assert job.config == recorded
    assert job.variation.resample is not None


def test_levers_are_a_quarter_of_a_resource_and_settings_up_to_four_times_as_large() -> None:
    scheduler = replace(CONFIG.scheduler, max_num_seqs=64, max_num_batched_tokens=128)
    jobs = levers(replace(CONFIG, scheduler=scheduler), Variation(rate=2.0), 50)
    assert all(job.variation.rate == 2.0 for job in jobs.values())
    assert {job.config.scheduler.num_kv_blocks for job in jobs.values()} == {50}
    named = {name.partition(": ")[2] for name in jobs}
    assert {"a 25 % faster GPU", "a 25 % faster host", "25 % more KV blocks"} <= named
    tried = {name.rpartition(" ")[2] for name in named if "max_num_batched_tokens" in name}
    assert tried == {"64", "256", "512"}  # 32 are fewer than sequences
    tried = {name.rpartition(" ")[2] for name in named if "max_num_seqs" in name}
    assert tried == {"16", "32", "128"}  # 256 are more than tokens
    faster = jobs["compute: a 25 % faster GPU"].variation
    assert (faster.gpu_time, faster.host_time) == (0.8, 1.0)


def test_early_verdicts_judge_without_figures() -> None:
    assert Goal().judge(JobOutcome(early_stop=FINE)) == Judgement(True, early_stop=FINE)
    assert Goal().judge(JobOutcome(early_stop=HOPELESS)) == Judgement(False, early_stop=HOPELESS)
    assert Goal().judge(JobOutcome(failed="f")) == Judgement(False, refused="f")
