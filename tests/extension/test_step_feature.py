"""A step feature is one entry of the schema: schedulers compute it, tables have it, models price it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from step_feature import HELD, US, WAITING, columns, run

from blis_py.calibrate.fit.accuracy import features_of
from blis_py.core.features import FEATURES, Feature
from blis_py.errors import InputError
from blis_py.metrics.frames import steps_frame
from blis_py.traces.samples import read_samples, samples_of, write_samples
from blis_py.traces.steplog import StepLog, read_step_log, write_step_log
from blis_py.traces.steplog_columns import REQUEST_KINDS, SCHEMA, STEP_KINDS


@pytest.fixture
def _waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "waiting_tokens", WAITING)


@pytest.mark.usefixtures("_waiting")
def test_a_step_feature_is_one_entry() -> None:
    record = run()
    steps = columns(record)
    assert list(steps)[-1] == "waiting_tokens"
    assert max(steps["waiting_tokens"]) >= 400 + 500
    took_ns = np.subtract(steps["end_ns"], steps["start_ns"])
    each_ns = 10 * US + 2 * np.array(steps["waiting_tokens"])
    assert took_ns.tolist() == (each_ns * steps["steps"]).tolist()
    assert steps_frame(record)["waiting_tokens"].tolist() == steps["waiting_tokens"]


@pytest.mark.usefixtures("_waiting")
def test_runs_of_alike_steps_see_what_single_steps_see() -> None:
    jumped, single = run(), run(single_step=True)
    assert jumped.finish_ns.tolist() == single.finish_ns.tolist()
    assert max(columns(jumped)["steps"]) > 1


@pytest.mark.usefixtures("_waiting")
def test_what_cannot_be_foreseen_is_computed_for_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "held_share", HELD)
    steps = columns(run())
    assert set(steps["steps"]) == {1}
    assert steps["held_share"] == [blocks / 1000 for blocks in steps["kv_blocks"]]


@pytest.mark.usefixtures("_waiting")
def test_a_value_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "waiting_tokens", Feature("tokens", compute=lambda step, scheduler: 0.5))
    with pytest.raises(InputError, match="not a whole number"):
        run()


def test_the_name_of_another_column_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "waiting_tokens", WAITING)
    monkeypatch.setitem(FEATURES, "waiting", WAITING)
    with pytest.raises(InputError, match="another name"):
        run()


def test_without_an_entry_there_is_no_column() -> None:
    assert "waiting_tokens" not in FEATURES
    with pytest.raises(AttributeError, match="waiting_tokens"):
        run()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_step_logs_and_samples_keep_it_and_read_files_without_it(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    blank = {"text": "", "ints": (), "int": 0, "float": 0.0}
    steps = {name: [blank[kind]] * 2 for name, kind in STEP_KINDS.items()}
    requests = {name: [] for name in REQUEST_KINDS}
    log = StepLog({"schema": SCHEMA}, {**steps, "step": [0, 1]}, requests)
    write_step_log(log, tmp_path / f"earlier{suffix}")
    write_samples(samples_of(log, "run"), tmp_path / "earlier-samples.csv")

    monkeypatch.setitem(FEATURES, "held_share", HELD)
    log.steps["held_share"] = [0.25, 0.5]
    write_step_log(log, tmp_path / f"now{suffix}")
    now, earlier = (read_step_log(tmp_path / f"{name}{suffix}") for name in ("now", "earlier"))
    assert [now.features(index)["held_share"] for index in range(2)] == [0.25, 0.5]
    assert earlier.features(1)["held_share"] == 0

    write_samples(samples_of(now, "run"), tmp_path / "now-samples.csv")
    samples = read_samples(tmp_path / "now-samples.csv")
    assert [features["held_share"] for features in features_of(samples)] == [0.25, 0.5]
    assert read_samples(tmp_path / "earlier-samples.csv")["held_share"].tolist() == [0, 0]
