"""What is set explicitly goes before presets and defaults, wherever it is set and whatever else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.api import configure
from blis_py.comparison.pairs import changed
from blis_py.config.loader import dump, load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.latency.host_work import MaskPrices
from blis_py.setup import step_times
from blis_py.setup.deployment import deployed
from blis_py.setup.from_config import demand

SMALL: dict[str, Any] = {"model": "llama-3.1-8b", "rate": 0.05, "num_requests": 3, "seed": 1}


def linear(**frontend: float) -> dict[str, Any]:
    costs = {"gpu": {"step": 1e6}, "frontend": frontend}
    return {"model": "linear", "linear": {part: own for part, own in costs.items() if own}}


def ttft_ms(**settings: Any) -> float:
    return float(blis.run(**{**SMALL, **settings}).requests.ttft_ms.iloc[0])


@pytest.mark.parametrize("before_ns", [1, 2_000_000, 50_000_000])
def test_a_front_end_of_linear_coefficients_goes_before_that_of_the_preset(before_ns: int) -> None:
    without = ttft_ms(latency=linear())
    preset = ttft_ms(engine="vllm", latency=linear(before_enqueue_ns=before_ns))
    assert preset - without == pytest.approx(before_ns / 1e6, abs=1e-6)


def test_an_engine_that_is_named_brings_its_front_end_where_coefficients_say_nothing_of_it() -> None:
    assert ttft_ms(engine="vllm", latency=linear()) - ttft_ms(latency=linear()) > 6


def test_a_front_end_of_alpha_coefficients_goes_before_that_of_the_preset() -> None:
    beta = [1.0] * 7
    fields = {"model": "trained-physics", "beta_coeffs": beta}
    late = ttft_ms(engine="vllm", latency={**fields, "alpha_coeffs": [30_000, 0, 0]})
    none = ttft_ms(engine="vllm", frontend_ms=[0], latency={**fields, "alpha_coeffs": [0, 0, 0]})
    assert late - none == pytest.approx(30, abs=1e-3)


@pytest.mark.parametrize(
    "latency",
    [
        linear(before_enqueue_ns=5),
        {"model": "trained-physics", "alpha_coeffs": [5, 0, 0], "beta_coeffs": [1.0] * 7},
    ],
)
def test_two_front_ends_that_are_given_contradict_each_other(latency: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="frontend_ms: disagrees with latency"):
        blis.build(**SMALL, frontend_ms=[1], latency=latency)


def test_what_equals_the_preset_and_was_given_stays_when_the_engine_changes() -> None:
    given = load_config(overrides={"scheduler.max_num_seqs": 1024, "latency.model": "trained"})
    other = load_config(overrides={"engine": "blis"}, base=given)
    assert (other.scheduler.max_num_seqs, other.latency.model) == (1024, "trained")
    assert other.scheduler.max_num_batched_tokens == 2048


def test_what_was_given_is_known_in_what_is_written_too(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump(load_config(overrides={"scheduler.max_num_seqs": 1024})))
    other = load_config(file, {"engine": "blis"})
    assert (other.scheduler.max_num_seqs, other.scheduler.max_num_batched_tokens) == (1024, 2048)
    assert (other.latency.model, other.frontend_ms) == ("trained-physics", None)
    assert load_config(file).given == load_config(overrides={"scheduler.max_num_seqs": 1024}).given


def test_what_was_changed_by_hand_in_a_written_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump(load_config()).replace("max_num_seqs: 1024", "max_num_seqs: 77"))
    assert load_config(file, {"engine": "blis"}).scheduler.max_num_seqs == 77


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "vllm-0.10"},
        {"gpu": "rtx-4090"},
        {"latency.model": "linear", "latency.linear": {"gpu": {"step": 1.0}}},
        {"latency.profile": "cpu/tiny-ar"},
        {"latency.model": "roofline"},
        {"seed": 3},
    ],
)
def test_a_change_to_a_configuration_makes_what_it_would_have_made_at_once(change: dict[str, Any]) -> None:
    first = {"scheduler.max_num_seqs": 7}
    assert load_config(overrides=change, base=load_config(overrides=first)) == load_config(
        overrides=first | change
    )


def test_a_change_to_a_written_file_makes_what_it_would_have_made_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump(load_config(overrides={"latency.profile": "cpu/tiny-ar"})))
    back = load_config(file, {"latency.profile": None, "latency.model": "roofline"})
    assert back == load_config(overrides={"latency.model": "roofline"})


@pytest.mark.parametrize(
    "given",
    [
        {"scheduler.max_num_seqs": 7, "latency.model": "roofline"},
        {"engine": "sglang", "gpu": "l40s", "frontend_ms": [1.0]},
        {"latency.profile": "cpu/tiny-ar", "scheduler.num_kv_blocks": 99},
    ],
)
def test_of_a_file_of_all_keys_without_the_given_ones_those_count_that_do_not_follow_from_others(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    file, written = tmp_path / "config.yaml", load_config(overrides=given)
    file.write_text(dump(replace(written, given=None)))
    assert (load_config(file), load_config(file).given) == (written, tuple(sorted(given)))
    engine = {"engine": "blis"}
    assert load_config(file, engine) == load_config(overrides=given | engine)


def test_of_a_file_of_some_keys_all_count_as_set(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("gpu: h100\nscheduler: {max_num_seqs: 1024}")
    assert load_config(file).given == ("gpu", "scheduler.max_num_seqs")


def test_a_profile_does_not_replace_a_latency_model_that_was_given() -> None:
    base = load_config(overrides={"latency.model": "roofline"})
    with pytest.raises(InputError, match="goes with the fitted model"):
        load_config(overrides={"latency.profile": "cpu/tiny-ar"}, base=base)


def test_of_settings_made_in_python_it_is_unknown_which_were_given_and_all_stay() -> None:
    config = load_config(overrides={"seed": 3}, base=RunConfig(model="llama-3.1-8b"))
    assert config == RunConfig(model="llama-3.1-8b", seed=3)


def test_a_gpu_that_is_given_is_not_replaced_by_that_of_a_profile() -> None:
    with pytest.raises(InputError, match="was measured on"):
        blis.build(profile="cpu/tiny-ar", gpu="h100")


def test_a_bundle_that_names_no_priority_leaves_the_one_that_is_given(tmp_path: Path) -> None:
    bundle, file = tmp_path / "bundle.yaml", tmp_path / "run.yaml"
    bundle.write_text("admission: {policy: tier-shed}\n")
    file.write_text("admission: {tier_shed_min_priority: 1}\n")
    assert load_config(file, policy_config=bundle).admission.tier_shed_min_priority == 1
    assert load_config(policy_config=bundle).admission.tier_shed_min_priority == 3


@pytest.mark.parametrize("said", ["[nosuch]", "engine", "[1]"])
def test_a_list_of_what_was_set_names_keys_of_the_file(tmp_path: Path, said: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"engine: vllm\ngiven: {said}\n")
    with pytest.raises(InputError, match="given: must list keys"):
        load_config(file)


def test_it_cannot_be_set() -> None:
    with pytest.raises(InputError, match="given"):
        load_config(sets=["given=[engine]"])


def test_gaps_between_steps_that_are_given_are_not_taken_for_those_of_the_preset() -> None:
    """As long as those of the preset, and of another latency model than those are for."""
    given = {"model": "roofline", "step_gap_us": [906, 52.2]}
    with pytest.raises(InputError, match="takes no such coefficients"):
        blis.build(engine="vllm-0.10", latency=given, **SMALL)


def test_asynchronous_rounds_of_block_diffusion_are_refused_whatever_the_engine() -> None:
    diffusion = {"model": "llada2.0-mini", "workload_spec": "diffusion-tiny", "block_size": 32}
    with pytest.raises(InputError, match="has no meaning for block diffusion"):
        blis.build(engine="vllm", async_scheduling=True, latency_model="roofline", gpu="h200", **diffusion)


@pytest.mark.parametrize(
    ("given", "prices"),
    [
        ({"mask_row_us": 5.0}, MaskPrices(5_000, 7_000)),
        ({"mask_step_us": 0.0}, MaskPrices(9_000, 0)),
        ({}, MaskPrices(9_000, 7_000)),
    ],
)
def test_a_price_of_masks_that_is_given_leaves_the_other_as_it_was_measured(
    given: dict[str, float], prices: MaskPrices
) -> None:
    config = configure(profile="cpu/tiny-ar", structured_output_ratio=1.0, num_requests=4, **given)
    served = deployed(config)
    assert served.profile is not None
    served = served._replace(profile=replace(served.profile, masks=MaskPrices(9_000, 7_000)))
    assert step_times._mask_prices(served, demand(config).table)[0] == prices


def test_saved_results_are_compared_by_their_settings_and_not_by_which_were_set() -> None:
    one, other = ({"seed": 1, "given": given} for given in (["seed"], []))
    assert changed(one, other) == []
