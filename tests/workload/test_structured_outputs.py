"""Which answers a grammar constrains, from flags, specs and traces, and what their masks cost in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from blis_py import api
from blis_py.calibrate.fit.masks import mask_prices
from blis_py.errors import InputError
from blis_py.traces.samples import samples_from

LOAD: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "engine": "blis",
    "latency_model": "trained",
    "rate": 10.0,
    "num_requests": 60,
    "prompt_tokens": 200,
    "output_tokens": 30,
}
MASKS = {"mask_row_us": 50.0, "mask_step_us": 100.0}


def mean_tpot_ms(result: api.Result) -> float:
    answered = result.requests[result.requests["output_tokens"] > 1]
    return float(answered["tpot_ms"].mean())


def client(name: str, **more: Any) -> dict[str, Any]:
    lengths = {"type": "constant", "params": {"value": 40}}
    arrival = {"process": "poisson"}
    return {
        "id": name,
        "rate_fraction": 0.5,
        "arrival": arrival,
        "input_distribution": lengths,
        "output_distribution": lengths,
        **more,
    }


def test_a_share_of_the_answers_is_constrained_the_same_at_every_call() -> None:
    one, again = (api.build(**LOAD, structured_output_ratio=0.5).table.constrained for _ in range(2))
    assert one is not None
    assert again is not None
    assert one.tolist() == again.tolist()
    assert 15 < one.sum() < 45
    assert api.build(**LOAD).table.constrained is None


def test_nothing_else_of_the_workload_changes() -> None:
    plain, constrained = api.build(**LOAD).table, api.build(**LOAD, structured_output_ratio=0.5).table
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens"):
        assert (getattr(plain, name) == getattr(constrained, name)).all()


def test_each_client_of_a_spec_has_its_own_share(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    clients = [client("agents", structured_output_ratio=1.0), client("people")]
    spec.write_text(yaml.safe_dump({"aggregate_rate": 10.0, "num_requests": 40, "clients": clients}))
    table = api.build(model="llama-3.1-8b", workload_spec=spec).table
    assert table.constrained is not None
    assert table.constrained.tolist() == [name == "agents" for name in table.client.to_list()]
    none = api.build(model="llama-3.1-8b", workload_spec=spec, structured_output_ratio=0.0).table
    assert none.constrained is not None
    assert not none.constrained.any()


def test_a_share_of_a_spec_is_at_most_one(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    clients = [client("agents", structured_output_ratio=1.5)]
    spec.write_text(yaml.safe_dump({"aggregate_rate": 10.0, "num_requests": 40, "clients": clients}))
    with pytest.raises(InputError, match=r"clients\[0\].structured_output_ratio"):
        api.build(model="llama-3.1-8b", workload_spec=spec)


@pytest.mark.slow
def test_a_trace_keeps_whose_answers_were_constrained(tmp_path: Path) -> None:
    result = api.run(**LOAD, structured_output_ratio=0.5, **MASKS)
    result.save(tmp_path / "out")
    again = api.build(model="llama-3.1-8b", trace=next((tmp_path / "out").glob("trace*.csv*")))
    expected = api.build(**LOAD, structured_output_ratio=0.5).table.constrained
    assert expected is not None
    assert again.table.constrained is not None
    assert again.table.constrained.tolist() == expected.tolist()


def test_masks_slow_synchronous_steps_down_by_what_they_cost() -> None:
    free = api.run(**LOAD, num_instances=1)
    run = api.run(**LOAD, structured_output_ratio=1.0, **MASKS)
    steps = run.steps
    assert (steps["constrained_rows"] == steps["emitted_rows"]).all()
    assert "constrained_rows" not in free.steps
    assert mean_tpot_ms(run) > mean_tpot_ms(free) + 0.1


def test_asynchronous_scheduling_hides_masks_that_fit_beside_a_step() -> None:
    free = api.run(**LOAD, async_scheduling=True)
    hidden = api.run(**LOAD, async_scheduling=True, structured_output_ratio=1.0, **MASKS)
    assert mean_tpot_ms(hidden) == mean_tpot_ms(free)
    slow = api.run(**LOAD, async_scheduling=True, structured_output_ratio=1.0, mask_row_us=5_000.0)
    assert mean_tpot_ms(slow) > mean_tpot_ms(free) + 1


def test_masks_without_a_price_cost_nothing_and_the_run_reports_it() -> None:
    free, run = api.run(**LOAD), api.run(**LOAD, structured_output_ratio=0.5)
    assert mean_tpot_ms(run) == mean_tpot_ms(free)
    assert any("constrained by a grammar, which costs nothing here" in note for note in run.notes)
    priced = api.build(**LOAD, structured_output_ratio=0.5, mask_row_us=0.0)
    assert not any("grammar" in note for note in priced.notes)


def test_block_diffusion_has_no_structured_outputs() -> None:
    with pytest.raises(InputError, match="block diffusion does not support structured outputs"):
        api.build(model="llada2.0-mini", workload="diffusion-tiny", structured_output_ratio=0.5)


def test_a_fitted_profile_brings_the_prices_of_its_masks() -> None:
    columns = {"constrained_rows": [1, 3], "mask_ns": [1_000, 2_000]}
    masks = mask_prices(samples_from({}, {name: np.array(column) for name, column in columns.items()}, 2))
    assert masks is not None
    assert (masks.row_ns, masks.step_ns) == pytest.approx((500, 500))
