"""A spec's horizon ends the run, and specs of version 1 are read with the class names of version 2."""

from __future__ import annotations

from pathlib import Path

import pytest

import blis_py as blis
from blis_py.errors import InputError
from blis_py.metrics.record import Outcome
from blis_py.workload.spec import load_spec

SPEC = """\
aggregate_rate: 5
horizon: 10000000
clients:
  - id: a
    rate_fraction: 1
    slo_class: {slo_class}
    arrival: {{process: constant}}
    input_distribution: {{type: constant, params: {{value: 100}}}}
    output_distribution: {{type: constant, params: {{value: 300}}}}
"""


def spec(folder: Path, *, version: str = "", slo_class: str = "batch", **top: int) -> str:
    head = f"version: {version}\n" if version else ""
    head += "".join(f"{key}: {value}\n" for key, value in top.items())
    (folder / "spec.yaml").write_text(head + SPEC.format(slo_class=slo_class))
    return str(folder / "spec.yaml")


def test_the_horizon_of_a_spec_ends_the_simulation_and_is_reported(tmp_path: Path) -> None:
    result = blis.run(model="llama-3.1-8b", workload_spec=spec(tmp_path))
    ended = result.record.finish_ns[result.record.outcome == Outcome.COMPLETED]
    assert 0 < ended.max() <= 10**10
    assert (result.record.outcome >= Outcome.QUEUED).any()
    assert any("ends at 10 s, the horizon of the workload spec" in note for note in result.notes)


def test_a_horizon_that_is_given_holds_instead(tmp_path: Path) -> None:
    result = blis.run(model="llama-3.1-8b", workload_spec=spec(tmp_path, num_requests=49), horizon="1h")
    assert result.record.outcome.tolist() == [Outcome.COMPLETED] * 49
    assert not any("horizon" in note for note in result.notes)


def test_drained_a_run_goes_on_until_all_is_done(tmp_path: Path) -> None:
    file = spec(tmp_path)
    cut, drained = (
        blis.run(model="llama-3.1-8b", workload_spec=file, drain=drain).record for drain in (False, True)
    )
    assert drained.table.arrival_ns.tolist() == cut.table.arrival_ns.tolist(), "the same load"
    assert (drained.outcome == Outcome.COMPLETED).all()
    with pytest.raises(InputError, match="horizon: ends the run, and drain says that nothing does"):
        blis.run(model="llama-3.1-8b", workload_spec=file, drain=True, horizon="1h")


@pytest.mark.parametrize(("old", "new"), [("realtime", "critical"), ("interactive", "standard")])
@pytest.mark.parametrize("version", ["", "1", '"1"'])
def test_classes_of_version_1_are_renamed_and_reported(
    tmp_path: Path, old: str, new: str, version: str
) -> None:
    read = load_spec(spec(tmp_path, version=version, slo_class=old))
    assert read.clients[0].slo_class == new
    assert read.notes == (f"version 1 of the workload spec: class {old} is {new}",)


def test_a_class_that_is_defined_keeps_its_name_and_version_2_refuses_the_old_ones(tmp_path: Path) -> None:
    read = load_spec(spec(tmp_path, version="1", slo_class="realtime"), classes=["realtime"])
    assert (read.clients[0].slo_class, read.notes) == ("realtime", ())
    with pytest.raises(InputError, match="it is called critical since version 2"):
        load_spec(spec(tmp_path, version="2", slo_class="realtime"))


def test_requests_that_a_number_ends_before_the_horizon_are_served_to_the_end(tmp_path: Path) -> None:
    result = blis.run(model="llama-3.1-8b", workload_spec=spec(tmp_path, num_requests=49))
    assert result.record.outcome.tolist() == [Outcome.COMPLETED] * 49
    assert result.record.finish_ns.max() >= result.record.end_ns > 10**10
