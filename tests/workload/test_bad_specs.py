"""Every wrong spec gives one InputError that names the file and the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blis_py.errors import InputError
from blis_py.workload import generate
from blis_py.workload.presets import preset, synthesise
from blis_py.workload.spec import load_spec

GOOD = """\
version: "2"
aggregate_rate: 10
num_requests: 10
clients:
  - id: a
    rate_fraction: 1
    arrival: {process: poisson}
    input_distribution: {type: gaussian, params: {mean: 100, std_dev: 10, min: 1, max: 200}}
    output_distribution: {type: constant, params: {value: 5}}
  - id: b
    rate_fraction: 1
    arrival: {process: gamma, cv: 2}
    input_distribution: {type: exponential, params: {mean: 100}}
    output_distribution: {type: empirical, params: {10: 0.5, 20: 0.5}}
"""
SHARED = (
    "{num_unique_system_prompts: 1, num_users_per_system_prompt: 1, "
    "system_prompt_len: 1, question_len: 1, output_len: 1}"
)

BAD = [
    # (what is replaced, by what, parts of the message)
    ("process: gamma", "procces: gamma", ["clients[1].arrival.procces", "did you mean process?"]),
    ("aggregate_rate: 10", "agregate_rate: 10", ["agregate_rate", "did you mean aggregate_rate?"]),
    ("aggregate_rate: 10\n", "", ["aggregate_rate", "missing key"]),
    ("aggregate_rate: 10", "aggregate_rate: 0", ["aggregate_rate", "greater than 0", "0"]),
    ("aggregate_rate: 10", "aggregate_rate: -3", ["aggregate_rate", "-3"]),
    ("aggregate_rate: 10", "aggregate_rate: .nan", ["aggregate_rate", "finite"]),
    ("aggregate_rate: 10", "aggregate_rate: fast", ["aggregate_rate", "must be a number", "'fast'"]),
    ("num_requests: 10", "num_requests: -1", ["num_requests", "-1"]),
    ("num_requests: 10", "num_requests: 1.5", ["num_requests", "1.5"]),
    ("num_requests: 10", "horizon: -5", ["horizon", "-5"]),
    ("num_requests: 10", "category: novel", ["category", "'novel'", "'language'"]),
    ("num_requests: 10\n", "", ["num_requests", "horizon"]),
    ("num_requests: 10", "horizon: 1000000000000000", ["horizon", "too many"]),
    ('version: "2"', 'version: "3"', ["version", "'3'"]),
    ("clients:", "cohorts: [{id: x}]\nclients:", ["cohorts[0].input_distribution", "missing key"]),
    ("clients:", "servegen_data: {path: x}\nclients:", ["servegen_data.path", "no data of ServeGen"]),
    (
        "clients:",
        f"inference_perf: {{stages: [], shared_prefix: {SHARED}}}\nclients:",
        ["inference_perf.stages", "at least one stage"],
    ),
    ("- id: b", "- id: b\n    concurrency: 4", ["clients[1].concurrency", "depends on its answers"]),
    ("- id: b", "- id: b\n    concurrency: -4", ["clients[1].concurrency", "-4"]),
    ("- id: b", "- id: b\n    think_time_us: 4", ["clients[1].think_time_us", "closed loop"]),
    ("    rate_fraction: 1\n    arrival: {process: gamma", "    arrival: {process: gamma", ["rate_fraction"]),
    ("    arrival: {process: gamma, cv: 2}\n", "    concurrency: 2\n", ["clients[1].arrival", "concurrency"]),
    (
        "- id: b",
        "- id: b\n    concurrency: 2\n    closed_loop: false",
        ["clients[1].closed_loop", "contradicts"],
    ),
    (
        "- id: b",
        "- id: b\n    concurrency: 2\n    reasoning: {multi_turn: {max_rounds: 4, single_session: true}}",
        ["clients[1].reasoning.multi_turn.single_session", "one after another"],
    ),
    ("- id: b", "- id: b\n    lifecycle: {windows: []}", ["clients[1].lifecycle.windows", "at least one"]),
    (
        "- id: b",
        "- id: b\n    lifecycle: {windows: [{start_us: 5, end_us: 5}]}",
        ["clients[1].lifecycle.windows[0].end_us", "after start_us (5)"],
    ),
    (
        "- id: b",
        "- id: b\n    lifecycle: {windows: [{start_us: 0, end_us: 9, arrival: {process: poisson}}, "
        "{start_us: 8, end_us: 12}]}",
        ["clients[1].lifecycle.windows[1].start_us", "overlaps clients[1].lifecycle.windows[0]"],
    ),
    (
        "- id: b",
        "- id: b\n    lifecycle: {windows: [{start_us: 0, end_us: 9, trace_rate: 3}]}",
        ["clients[0]", "requests/s", "every client"],
    ),
    (
        "- id: b",
        "- id: b\n    concurrency: 2\n    lifecycle: {windows: [{start_us: 0, end_us: 9, trace_rate: 3}]}",
        ["clients[1].concurrency", "windows"],
    ),
    (
        "    rate_fraction: 1\n    arrival: {process: gamma, cv: 2}\n",
        "    concurrency: 2\n    lifecycle: {windows: [{start_us: 0, end_us: 9}]}\n",
        ["clients[1].lifecycle", "have none"],
    ),
    (
        "- id: b",
        "- id: b\n    lifecycle: {windows: [{start_us: 0, end_us: 9, traced_rate: 3}]}",
        ["clients[1].lifecycle.windows[0]", "did you mean trace_rate?"],
    ),
    ("aggregate_rate: 10", "aggregate_rate: 10\nrate_profile: x.csv", ["aggregate_rate", "rate_profile"]),
    ("- id: b", "- id: b\n    reasoning: {x: 1}", ["clients[1].reasoning.x", "unknown key"]),
    (
        "- id: b",
        "- id: b\n    closed_loop: false\n    reasoning: {multi_turn: {max_round: 4}}",
        ["clients[1].reasoning.multi_turn.max_round", "did you mean max_rounds?"],
    ),
    (
        "- id: b",
        "- id: b\n    closed_loop: false\n    reasoning: {multi_turn: {max_rounds: 0}}",
        ["clients[1].reasoning.multi_turn.max_rounds", "greater than or equal to 1", "0"],
    ),
    (
        "- id: b",
        "- id: b\n    reasoning: {multi_turn: {max_rounds: 4, planned_itl_us: 5}}",
        ["clients[1].reasoning.multi_turn.planned_itl_us", "closed_loop: false"],
    ),
    (
        "- id: b",
        "- id: b\n    closed_loop: false\n    reasoning: {multi_turn: {max_rounds: 4, think_time_us: 5, "
        "think_time_ms_distribution: {type: constant, params: {value: 5}}}}",
        ["clients[1].reasoning.multi_turn.think_time_ms_distribution", "remove one"],
    ),
    (
        "- id: b",
        "- id: b\n    closed_loop: false\n    reasoning: {multi_turn: {max_rounds: 4, "
        "rounds_distribution: {type: constant, params: {value: 0}}}}",
        ["clients[1].reasoning.multi_turn.rounds_distribution.params.value", "at least 1"],
    ),
    ("- id: b", "- id: b\n    prefixes: [{name: s}]", ["clients[1].prefixes[0].tokens", "how long"]),
    (
        "- id: b",
        "- id: b\n    prefixes: [{name: s, tokens: 9}, {name: s, tokens: 9}]",
        ["clients[1].prefixes[1].name", "'s'"],
    ),
    (
        "- id: b",
        "- id: b\n    prefixes: [{name: s, tokens: 9, popularity: 1}]",
        ["clients[1].prefixes[0].popularity", "unknown key"],
    ),
    (
        "- id: b",
        "- id: b\n    prefixes: [{name: s, tokens: 9, zipf: -1}]",
        ["clients[1].prefixes[0].zipf", "-1"],
    ),
    (
        "- id: b",
        "- id: b\n    prefixes: [{name: s, tokens: 9, pool: 0}]",
        ["clients[1].prefixes[0].pool", "0"],
    ),
    (
        "- id: b",
        "- id: b\n    prefix_group: g\n    prefixes: [{name: s, tokens: 9}]",
        ["clients[1].prefix_group", "'g'", "not both"],
    ),
    (
        "- id: a",
        "- id: c\n    rate_fraction: 1\n    arrival: {process: poisson}\n"
        "    prefixes: [{name: s, tokens: 8}]\n    input_distribution: {type: constant, params: {value: 5}}\n"
        "    output_distribution: {type: constant, params: {value: 5}}\n"
        "  - id: a\n    prefixes: [{name: s, tokens: 9, zipf: 1.0}]",
        ["clients[1].prefixes[0].name", "another client", "or another name"],
    ),
    ("- id: b", "- id: b\n    closed_loop: true", ["clients[1].closed_loop", "no turns"]),
    ("- id: b", "- id: b\n    adapter: lora", ["clients[1].adapter", "not supported yet"]),
    ("- id: b", "- id: a", ["clients[1].id", "'a'", "two clients"]),
    (
        "- id: b",
        "- id: b\n    slo_class: gold",
        ["clients[1].slo_class", "'gold'", "critical, standard, batch"],
    ),
    ("- id: b", "- id: b\n    slo_class: realtime", ["clients[1].slo_class", "critical"]),
    ("- id: b", "- id: b\n    timeout: -1", ["clients[1].timeout", "-1"]),
    ("- id: b", "- id: b\n    slo_target_us: soon", ["clients[1].slo_target_us", "'soon'"]),
    ("- id: b", "- id: b\n    streaming: 3", ["clients[1].streaming", "3"]),
    ("- id: b", "- id: b\n    prefix_length: 5", ["clients[1].prefix_length", "prefix_group"]),
    ("- id: b", "- id: b\n    id: c", [":11:", "given twice"]),
    (
        "rate_fraction: 1\n    arrival: {process: gamma",
        "arrival: {process: gamma",
        ["clients[1].rate_fraction"],
    ),
    ("rate_fraction: 1", "rate_fraction: 0", ["clients[0].rate_fraction"]),
    ("process: gamma", "process: uniform", ["clients[1].arrival.process", "'uniform'", "'poisson'"]),
    ("gamma, cv: 2", "gamma, cv: 0", ["clients[1].arrival.cv"]),
    ("gamma, cv: 2", "poisson, cv: 2", ["clients[1].arrival.cv", "gamma"]),
    ("gamma, cv: 2", "weibull, cv: 20", ["clients[1].arrival.cv", "[0.01, 10.4]"]),
    ("gamma, cv: 2", "gamma, shape: 2", ["clients[1].arrival.shape", "pair"]),
    ("gamma, cv: 2", "gamma, cv: 2, shape: 2, scale: 2", ["clients[1].arrival.cv", "remove one"]),
    ("type: constant", "type: normal", ["clients[0].output_distribution.type", "'normal'"]),
    ("value: 5", "value: 0", ["clients[0].output_distribution.params.value", "at least 1"]),
    ("value: 5", "value: 5.5", ["clients[0].output_distribution.params.value", "whole number"]),
    ("value: 5", "val: 5", ["clients[0].output_distribution.params.value", "missing"]),
    (", std_dev: 10", "", ["clients[0].input_distribution.params.std_dev", "missing"]),
    ("std_dev: 10", "std_dev: -10", ["clients[0].input_distribution.params.std_dev", "-10"]),
    ("std_dev: 10", "std_dev: 10, stdev: 3", ["clients[0].input_distribution.params.stdev", "unknown"]),
    ("min: 1, max: 200", "min: 300, max: 200", ["clients[0].input_distribution.params.min", "max (200)"]),
    ("{mean: 100}", "{mean: .inf}", ["clients[1].input_distribution.params.mean", "finite"]),
    ("{10: 0.5, 20: 0.5}", "{ten: 0.5}", ["clients[1].output_distribution.params.ten", "token count"]),
    ("{10: 0.5, 20: 0.5}", "{10: -1}", ["clients[1].output_distribution.params.10", "-1"]),
    ("{10: 0.5, 20: 0.5}", "{10: 0}", ["clients[1].output_distribution.params", "above 0"]),
    ("params: {10: 0.5, 20: 0.5}", "file: nowhere.yaml", ["nowhere.yaml", "check the path"]),
    ("{10: 0.5, 20: 0.5}", "{10: 0.5", ["spec.yaml:", "not valid YAML"]),
]


def message(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_spec_the_bad_ones_are_made_from_is_good(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(GOOD)
    assert len(generate(load_spec(tmp_path / "spec.yaml"))) == 10


@pytest.mark.parametrize(
    ("old", "new", "parts"), BAD, ids=[f"{n}-{new.strip()[:30]}" for n, (_, new, _) in enumerate(BAD)]
)
def test_a_wrong_spec_is_one_clear_error(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    path = tmp_path / "spec.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))

    def load_and_generate() -> None:
        generate(load_spec(path))

    text = message(load_and_generate)
    for part in ["spec.yaml" if "nowhere" not in new else "nowhere", *parts]:
        assert part in text, text


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "must be a mapping"),
        (b"- 1\n", "must be a mapping"),
        (b"a: 1\nb: [\n", "not valid YAML"),
        (b"\xff\xfe\x00", "not a UTF-8 text file"),
        (b"aggregate_rate: 1\nnum_requests: 1\nclients: []\n", "at least one client"),
        (b"aggregate_rate: 1\nnum_requests: 1\nclients: 5\n", "clients"),
        (b"aggregate_rate: 1\nnum_requests: 1\nclients: [5]\n", "clients[0]"),
    ],
)
def test_a_file_that_is_no_spec_is_one_clear_error(tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    text = message(load_spec, path)
    assert str(path) in text
    assert part in text


def test_a_missing_file_and_a_folder_are_clear_errors(tmp_path: Path) -> None:
    assert "No such file" in message(load_spec, tmp_path / "spec.yaml")
    assert "directory" in message(load_spec, tmp_path)


def test_different_prefix_lengths_in_one_group_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    text = GOOD.replace("- id: a", "- id: a\n    prefix_group: g\n    prefix_length: 10")
    path.write_text(text.replace("- id: b", "- id: b\n    prefix_group: g\n    prefix_length: 20"))
    assert "clients[1].prefix_length" in message(load_spec, path)


def test_a_rate_cannot_override_an_explicit_scale(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(GOOD.replace("gamma, cv: 2", "gamma, shape: 2, scale: 1000"))
    assert "clients[1].arrival.scale" in message(generate, load_spec(path), rate=5.0)


def test_users_without_a_rate_need_a_number_of_requests_and_have_no_rate_to_set(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    rate = "    rate_fraction: 1\n    arrival: {{process: {}}}\n".format
    users = GOOD.replace(rate("gamma, cv: 2"), "    concurrency: 2\n")
    path.write_text(users.replace("num_requests: 10", "horizon: 60000000"))
    assert "num_requests" in message(generate, load_spec(path))
    only = users.replace(rate("poisson"), "    concurrency: 2\n")
    path.write_text(only.replace("aggregate_rate: 10\n", ""))
    assert "--rate" in message(generate, load_spec(path), rate=5.0)
    assert "depends on its answers" in message(generate, load_spec(path))


def test_yaml_numbers_names_and_no_ops_of_the_peer_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    text = GOOD.replace("aggregate_rate: 10", "aggregate_rate: 1e1").replace('version: "2"', "version: 2")
    text = text.replace("num_requests: 10", "num_requests: 0\nhorizon: 3.6e9\ncohorts: null")
    text = text.replace("- id: b", "- id: 7\n    tenant_id: 3\n    concurrency: 0\n    closed_loop: false")
    path.write_text(text)
    spec = load_spec(path)
    assert (spec.aggregate_rate, spec.horizon, spec.clients[1].id) == (10.0, 3_600_000_000, "7")


def test_weights_of_an_empirical_distribution_can_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "weights.json").write_text('{"10": 1, "30": 3}')
    path = tmp_path / "spec.yaml"
    path.write_text(GOOD.replace("params: {10: 0.5, 20: 0.5}", "file: weights.json"))
    table = generate(load_spec(path), num_requests=1000)
    assert set(table.output_tokens.tolist()) == {5, 10, 30}


FLAGS = [
    ({"rate": 0}, "--rate"),
    ({"rate": float("nan")}, "--rate"),
    ({"num_requests": 0}, "--num-requests"),
    ({"num_requests": None}, "horizon"),
    ({"prompt_tokens_stdev": -1}, "--prompt-tokens-stdev"),
    ({"prompt_tokens": 9000}, "--prompt-tokens-max"),
    ({"output_tokens_min": 0}, "--output-tokens-min"),
    ({"output_tokens_min": 600}, "--output-tokens"),
    ({"output_tokens_min": 9, "output_tokens_max": 8}, "--output-tokens-max (8)"),
    ({"prefix_tokens": -1}, "--prefix-tokens"),
    ({"timeout_s": 0}, "--timeout"),
    ({"arrival": "evenly"}, "--arrival"),
    ({"cv": 2.0}, "--cv"),
    ({"arrival": "gamma", "cv": -1.0}, "--cv"),
]


@pytest.mark.parametrize(("flags", "part"), FLAGS)
def test_wrong_flags_name_the_flag(flags: dict[str, object], part: str) -> None:
    assert part in message(synthesise, **flags)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    assert "chatbot, contentgen, summarization, multidoc" in message(preset, "chat", rate=1.0)


@pytest.mark.parametrize("kind", ["clients", "cohorts"])
def test_the_arrival_process_of_a_closed_loop_without_a_rate_is_left_out_with_a_note(
    tmp_path: Path, kind: str
) -> None:
    """Specs written for BLIS have both; with a `rate_fraction` the concurrency limits what is due."""
    lengths = {"type": "constant", "params": {"value": 9}}
    source = {
        "id": "a",
        "concurrency": 2,
        "arrival": {"process": "poisson"},
        "input_distribution": lengths,
        "output_distribution": lengths,
        **({"population": 1} if kind == "cohorts" else {}),
    }
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps({"version": "2", "num_requests": 5, kind: [source]}))
    spec = load_spec(path)
    note = f"{kind}[0].arrival has no effect beside a concurrency without a rate_fraction"
    assert spec.notes == (note,)
    spec.resolved()
    del source["concurrency"]
    path.write_text(json.dumps({"version": "2", "num_requests": 5, kind: [source]}))
    assert "rate_fraction: missing key" in message(load_spec, path)
