"""Whose engine is simulated: presets under everything that a user gives, and where their values are from."""

from __future__ import annotations

from pathlib import Path

import pytest

import blis_py as blis
from blis_py.config.engine import load_engine, names
from blis_py.config.loader import as_dict, load_config
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError

SMALL = {"model": "llama-3.1-8b", "rate": 2, "num_requests": 20, "seed": 1}


@pytest.mark.parametrize("name", names())
def test_a_preset_makes_a_configuration_and_every_value_states_where_it_is_from(name: str) -> None:
    preset = load_engine(name)
    assert preset.sources.keys() == preset.on({}).keys()
    assert all(len(source) > 10 for source in preset.sources.values())
    config = load_config(overrides={"engine": name})
    said = {key: value for key, value in preset.on({"gpu": "h100"}).items() if "." in key}
    said = {
        key: value for key, value in said.items() if preset.applies(key, config.scheduler.async_scheduling)
    }
    sections = as_dict(config)
    assert said == {key: sections[key.split(".")[0]][key.split(".")[1]] for key in said}


def test_flags_go_before_the_preset_and_the_gpu_decides_what_it_leaves_open() -> None:
    large = load_config(overrides={"engine": "vllm"})
    assert (large.scheduler.max_num_seqs, large.scheduler.max_num_batched_tokens) == (1024, 8192)
    assert large.scheduler.async_scheduling
    small = load_config(overrides={"engine": "vllm", "gpu": "rtx-4090"})
    assert (small.scheduler.max_num_seqs, small.scheduler.max_num_batched_tokens) == (256, 2048)
    given = load_config(
        overrides={"engine": "vllm", "scheduler.max_num_seqs": 7, "latency.model": "roofline"}
    )
    assert (given.scheduler.max_num_seqs, given.latency.model) == (7, "roofline")


def test_another_engine_replaces_what_the_first_one_said_and_nothing_else() -> None:
    config = blis.build(engine="vllm", max_num_seqs=7, **SMALL).config
    again = blis.build(config, engine="blis").config
    assert (again.scheduler.max_num_seqs, again.frontend_ms, again.latency.model) == (
        7,
        None,
        "trained-physics",
    )
    assert not again.scheduler.async_scheduling


def test_an_engine_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text("title: Ours\nsettings:\n  scheduler.block_size: {value: 64, source: our servers}\n")
    simulation = blis.build(engine=str(file), **SMALL)
    assert simulation.scheduler.block_size == 64
    assert "1 instance of Ours (" in simulation.models


def test_a_preset_may_say_that_its_engine_learns_of_lengths_late(tmp_path: Path) -> None:
    """Each answer that ends by its length then costs a forward without use."""
    file = tmp_path / "late.yaml"
    settings = "scheduler.async_scheduling: {value: true, source: us}"
    late = "scheduler.late_length_stops: {value: true, source: us}"
    discarded = []
    for said in (f"{settings}, {late}", settings):
        file.write_text(f"title: Late\nsettings: {{{said}}}\n")
        record = blis.run(engine=str(file), **SMALL).record
        discarded.append(sum(instance.discarded_tokens for instance in record.instances))
    assert discarded == [20, 0]


def test_without_asynchronous_scheduling_nothing_is_learnt_late() -> None:
    with pytest.raises(InputError, match="late_length_stops: synchronously nothing comes late"):
        blis.build(late_length_stops=True, engine="blis", **SMALL)


def test_what_a_preset_states_of_late_lengths_goes_with_its_asynchronous_scheduling() -> None:
    assert blis.build(engine="sglang-0.5.14", **SMALL).scheduler.late_length_stops
    config = blis.build(engine="sglang-0.5.14", async_scheduling=False, **SMALL).config
    assert not config.scheduler.late_length_stops
    assert blis.build(config, async_scheduling=True).scheduler.late_length_stops


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("title: Ours\nsettings: {scheduler.block_sise: {value: 64, source: us}}", "block_sise"),
        ("title: Ours\nsettings: {scheduler.block_size: {value: 64}}", "where it is from"),
        ("title: Ours\nsettings: {scheduler.block_size: 64}", "where it is from"),
        ("title: Ours\nsetings: {}", "must have the keys title and settings"),
        ("settings: {}", "must have the keys title and settings"),
    ],
)
def test_an_engine_that_is_not_understood_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=complaint):
        load_config(overrides={"engine": str(file)})


def test_an_unknown_engine_is_refused_with_a_near_one() -> None:
    with pytest.raises(InputError, match=r"--engine: no such engine .*did you mean 'vllm'"):
        load_config(overrides={"engine": "vlm"})


@pytest.mark.parametrize("model", ["trained", "roofline", "trained-physics"])
def test_a_front_end_delays_what_clients_see_under_every_latency_model(model: str) -> None:
    """With one request after the other the delays are all there is: they shift it, and nothing else."""
    far_apart = {**SMALL, "rate": 0.05, "arrival": "constant", "latency_model": model, "timeout": None}
    plain = blis.run(**far_apart, frontend_ms=[0]).requests
    delayed = blis.run(**far_apart, frontend_ms=[5, 2.5]).requests
    for column in ("ttft_ms", "e2e_ms"):
        assert (delayed[column] - plain[column]).to_numpy() == pytest.approx([7.5] * 20, abs=2e-3)
    assert delayed.tpot_ms.to_numpy() == pytest.approx(plain.tpot_ms.to_numpy(), abs=2e-3)


def test_a_front_end_grows_with_the_sequences_it_streams_to() -> None:
    """Eight requests at once, all of which get their first token with the same step: each is late for all."""
    together = {**SMALL, "num_requests": 8, "concurrency": 8, "rate": None, "prompt_tokens_stdev": 0}
    plain = blis.run(**together, frontend_ms=[1]).requests
    grown = blis.run(**together, frontend_ms=[1, 0, 0.25]).requests
    for column in ("ttft_ms", "e2e_ms"):
        assert (grown[column] - plain[column]).to_numpy() == pytest.approx([8 * 0.25] * 8, abs=2e-3)


def test_a_front_end_takes_longer_for_longer_prompts() -> None:
    far_apart = {**SMALL, "rate": 0.05, "arrival": "constant", "timeout": None}
    plain = blis.run(**far_apart, frontend_ms=[1]).requests
    longer = blis.run(**far_apart, frontend_ms=[1, 0, 0, 0.002]).requests
    assert plain.prompt_tokens.nunique() > 1
    for column in ("ttft_ms", "e2e_ms"):
        assert (longer[column] - plain[column]).to_numpy() == pytest.approx(
            0.002 * plain.prompt_tokens.to_numpy(), abs=2e-3
        )


@pytest.mark.parametrize("given", [[], [1, 2, 3, 4, 5], [-1], ["soon"]])
def test_a_front_end_that_cannot_be_is_refused(given: list[object]) -> None:
    with pytest.raises(InputError, match="frontend_ms"):
        blis.build(frontend_ms=given, **SMALL)


def test_a_synchronous_engine_waits_for_its_host() -> None:
    alike = {"model": "qwen3-32b", "tp": 4, "num_requests": 20, "rate": 100.0, "output_tokens_stdev": 0}
    older = blis.run(engine="vllm-0.10", **alike)
    without = blis.run(engine="vllm-0.10", latency={"step_gap_us": []}, **alike)
    tpot = [result.summary["cluster"]["tpot_ms"]["mean"] for result in (older, without)]
    assert tpot[0] - tpot[1] > 1.5
    assert "+ 906 us a step, + 52.2 us a sequence" in older.summary["models"]


@pytest.mark.parametrize(
    ("release", "asynchronous"),
    [
        ("vllm-0.8", False),
        ("vllm-0.10", False),
        ("vllm-0.13.1", False),
        ("vllm-0.14", True),
        ("vllm-0.33", True),
        ("sglang-0.5.14", True),
        ("trtllm-1.3.0rc20", True),
    ],
)
def test_a_release_is_the_preset_that_behaves_as_it_does(release: str, asynchronous: bool) -> None:
    config = load_config(overrides={"engine": release})
    assert config.engine == release
    assert config.scheduler.async_scheduling is asynchronous
    titles = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
    name, _, number = release.partition("-")
    assert load_engine(release).title == f"{titles[name]} {number}"


def test_a_run_says_what_of_its_release_is_not_priced() -> None:
    said, silent = (blis.build(engine=release, **SMALL).notes for release in ("vllm-0.10", "vllm-0.11"))
    assert any("launches the attention of decode steps outside its CUDA graphs" in note for note in said)
    assert not any("CUDA graphs" in note for note in silent)


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("vllm-0.15", (False, False, False, True, 8192)),
        ("vllm-0.19.1", (True, False, False, True, 8192)),
        ("vllm-0.23", (True, False, False, True, 8192)),
        ("vllm-0.24", (True, True, False, True, 8192)),
        ("vllm-0.28", (True, True, False, True, 16384)),
        ("vllm-0.31", (True, True, True, True, 16384)),
        ("vllm-0.33", (True, True, True, False, 16384)),
        ("vllm", (True, True, True, False, 16384)),
    ],
)
def test_rules_and_defaults_are_those_of_the_release(release: str, expected: tuple[object, ...]) -> None:
    found = load_config(overrides={"engine": release, "gpu": "b200"}).scheduler
    rules = (
        found.scheduler_reserve_full_isl,
        found.reuse_unhashed_first,
        found.lone_prefill_has_no_threshold,
        found.self_preemption_ends_step,
        found.max_num_batched_tokens,
    )
    assert rules == expected
    assert found.preemption_skips_next is (release in ("vllm-0.15", "vllm-0.19.1", "vllm-0.23", "vllm-0.24"))


def test_vllm_says_its_number() -> None:
    assert (load_engine("vllm").title, load_engine("vllm").release) == ("vLLM 0.33", (0, 33))


def test_blocks_await_outcomes_only_where_there_are_steps_in_flight() -> None:
    values = [
        load_config(overrides={"engine": "vllm", "scheduler.async_scheduling": loop}).scheduler
        for loop in (True, False)
    ]
    assert [each.blocks_await_outcome for each in values] == [True, False]


@pytest.mark.parametrize(
    ("release", "note"),
    [
        ("vllm-0.33", None),
        ("vllm", None),
        ("vllm-0.34", "it is simulated as vLLM 0.33, the newest that was"),
        ("vllm-1.0", "batches of vLLM 1.0 were not compared"),
    ],
)
def test_a_release_that_was_not_compared_says_so(release: str, note: str | None) -> None:
    notes = [each for each in blis.build(engine=release, **SMALL).notes if "compared" in each]
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]


def test_an_interval_without_effect_is_said() -> None:
    interval = {"prefill_schedule_interval": 4, **SMALL}
    older, newest = (blis.build(engine=name, **interval).notes for name in ("vllm-0.29", "vllm-0.33"))
    text = "prefill_schedule_interval has no effect in vLLM 0.29 without attention DP"
    assert text in older
    assert not any("prefill_schedule_interval" in note for note in newest)


def test_settings_of_an_engine_file_may_begin_and_end_with_a_release(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    entries = (
        'scheduler.block_size: {value: 64, source: us, since: "0.2"}',
        'scheduler.max_num_seqs: {value: 9, source: us, until: "0.1"}',
    )
    file.write_text(f"title: Ours\nsettings: {{{', '.join(entries)}}}\n")
    found = load_config(overrides={"engine": str(file)}).scheduler
    assert (found.block_size, found.max_num_seqs) == (64, 256), "without a release it is the newest"
    file.write_text("title: Ours\nsettings: {scheduler.block_size: {value: 64, source: us, since: new}}\n")
    with pytest.raises(InputError, match=r"scheduler.block_size.since: is no release"):
        load_config(overrides={"engine": str(file)})


@pytest.mark.parametrize("release", ["vllm-0.7", "vllm-0.x", "sglang-0.6"])
def test_a_release_that_was_not_read_is_refused(release: str) -> None:
    with pytest.raises(InputError, match="no such engine"):
        load_config(overrides={"engine": release})


def test_what_a_preset_states_of_trained_steps_is_of_no_other_latency_model() -> None:
    other = blis.run(engine="vllm-0.10", model="llama-3.1-8b", latency_model="roofline", num_requests=2)
    assert "a sequence" not in other.summary["models"]


@pytest.mark.parametrize(
    ("latency", "message"),
    [
        ({"model": "roofline", "step_scale": 1.1}, "takes no such coefficients"),
        ({"step_gap_us": [1.0, 2.0, 3.0, 4.0]}, "must be one to three numbers"),
        ({"step_gap_us": [-1.0]}, "step_gap_us"),
        ({"step_scale": 0}, "step_scale"),
    ],
)
def test_terms_of_a_server_that_make_no_sense_are_refused(latency: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        blis.build(model="llama-3.1-8b", latency=latency)


def test_a_server_twice_as_slow_takes_twice_the_gpu_time() -> None:
    plain, slow = (blis.build(model="llama-3.1-8b", latency={"step_scale": s}).latency for s in (1.0, 2.0))
    step = StepFeatures(decode_seqs=8, decode_kv_tokens=4000, emitted_rows=8)
    assert slow.step(step).gpu_ns == pytest.approx(2 * plain.step(step).gpu_ns, rel=1e-6)
    assert slow.step(step).host_ns == plain.step(step).host_ns


def test_the_newest_engine_waits_for_its_host_where_its_steps_take_turns() -> None:
    alike = {"model": "qwen3-32b", "tp": 4, "num_requests": 20, "rate": 100.0, "output_tokens_stdev": 0}
    usual, turns, older = (
        blis.run(engine=engine, **loop, **alike)
        for engine, loop in (
            ("vllm", {}),
            ("vllm", {"async_scheduling": False}),
            ("vllm-0.12", {}),
        )
    )
    assert "906" not in usual.summary["models"]
    assert "+ 906 us a step, + 52.2 us a sequence" in turns.summary["models"]
    tpot_ms = [result.summary["cluster"]["tpot_ms"]["mean"] for result in (usual, turns, older)]
    assert tpot_ms[1] - tpot_ms[0] > 1.5
    assert tpot_ms[1] == tpot_ms[2]
