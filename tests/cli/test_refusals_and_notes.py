"""Where a number is not what one would think, the command says so; where it cannot be, it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Blis = Callable[..., tuple[int, str, str]]
RUN = ("run", "--model", "qwen3-14b", "--num-requests", "6", "--rate", "20")
AZURE = "arrival_s,input_tokens,output_tokens,slo_class\n" + "".join(
    f"{5 + n},20,4,critical\n" for n in range(4)
)
HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: real\nwarm_up_requests: 0\n"
ROWS = (
    "request_id,slo_class,input_tokens,output_tokens,arrival_time_us\n0,critical,20,4,10\n1,batch,20,4,20\n"
)
SPEC = """\
aggregate_rate: 20
num_requests: 6
clients:
  - slo_class: gold
    rate_fraction: 1
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 20}}
    output_distribution: {type: constant, params: {value: 4}}
"""


def notes(err: str) -> list[str]:
    return [line.removeprefix("note: ") for line in err.splitlines() if line.startswith("note: ")]


# -- lengths -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lengths_of_flags_keep_their_mean_and_say_what_became_of_the_deviation(blis: Blis) -> None:
    code, out, err = blis(
        *RUN, "--output-tokens", 200, "--output-tokens-stdev", 256, "--num-requests", 2000, "--rate", 100
    )
    tokens = json.loads(out)["cluster"]
    assert code == 0
    assert tokens["output_tokens"] / 2000 == pytest.approx(200, rel=0.08)
    assert notes(err) == [
        "output lengths: the mean of 200 tokens is kept; between 2 and 7,000 their standard deviation is "
        "198, the largest of a truncated normal law, not 256"
    ]
    assert json.loads(out)["notes"] == notes(err)


def test_in_the_words_of_blis_lengths_are_its_own_and_what_the_mean_becomes_is_reported(blis: Blis) -> None:
    code, _, err = blis(
        *RUN, "--workload", "distribution", "--output-tokens", 200, "--output-tokens-stdev", 256
    )
    assert code == 0
    assert notes(err) == [
        "output lengths: clamped to what lies between 2 and 7,000, as in BLIS, their mean becomes "
        "232 tokens, not 200"
    ]


def test_the_words_of_blis_change_nothing_where_no_length_is_given(blis: Blis) -> None:
    assert blis(*RUN, "--workload", "distribution")[1] == blis(*RUN)[1]


# -- the horizon -----------------------------------------------------------------------------------------


def test_a_horizon_without_unit_is_reported_in_seconds(blis: Blis) -> None:
    err = blis(*RUN, "--horizon", 90_000_000)[2]
    assert notes(err) == ["horizon 90000000 is in µs, as in BLIS: the run ends at 90 s"]
    assert notes(blis(*RUN, "--horizon", "90s")[2]) == []


def test_a_horizon_before_the_first_arrival_of_a_trace_is_warned_of(blis: Blis, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    code, out, err = blis("replay", "--model", "qwen3-14b", "--trace", tmp_path / "a.csv", "--horizon", 60)
    assert code == 0
    assert json.loads(out)["cluster"]["requests"]["injected"] == 0
    assert notes(err) == [
        "horizon 60 is in µs, as in BLIS: the run ends at 0.00006 s",
        "the run ends at 0.00006 s, before the first request comes at 5 s",
    ]


def test_a_horizon_before_the_first_arrival_of_a_workload_is_refused_in_seconds(blis: Blis) -> None:
    code, _, err = blis(*RUN, "--horizon", 60)
    assert code == 2
    assert "no request comes before the horizon of 0.00006 s; lengthen it (a plain number is in µs" in err


@pytest.mark.parametrize("rate", ["1e-9", "1e-12"])
def test_requests_that_take_more_than_a_century_are_refused_by_their_flag(blis: Blis, rate: str) -> None:
    code, _, err = blis(*RUN, "--rate", rate)
    assert code == 2
    assert err.startswith("error: --rate: so slow that the requests take more than a century")


# -- targets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["ttft:500", "ttft:500ms", "ttft:0.5s", "ttft:500000us"])
def test_goodput_takes_a_limit_with_or_without_unit(blis: Blis, target: str) -> None:
    code, out, _ = blis(*RUN, "--goodput", target, "tpot:50")
    assert (code, out) == (0, blis(*RUN, "--goodput", "ttft:500", "tpot:50")[1])


@pytest.mark.parametrize("limit", ["9" * 400, "1" + "0" * 30, "1e3", "", "ms", "-5ms", "nan"])
def test_a_limit_that_is_no_time_is_refused(blis: Blis, limit: str) -> None:
    for flags in (
        ("--goodput", f"ttft:{limit}"),
        ("--slo", f"ttft.p99={limit}s"),
        ("--slo-ttft", f"batch={limit}s"),
    ):
        code, out, err = blis(*RUN, *flags)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {flags[0]}: ")


def trace(folder: Path, header: str) -> Path:
    (folder / "x.yaml").write_text(HEADER + header)
    (folder / "x.csv").write_text(ROWS)
    return folder / "x.csv"


def goodput(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)["cluster"]["goodput"]
    return found


def test_goodput_targets_of_a_trace_are_acted_on(blis: Blis, tmp_path: Path) -> None:
    path = trace(
        tmp_path, "goodput_slo_targets: {critical: {ttft_ms: 0.001, e2e_ms: 0}, gold: {itl_ms: 5}}\n"
    )
    code, out, _ = blis("replay", "--model", "qwen3-14b", "--trace", path)
    assert code == 0
    assert (goodput(out)["covered"], goodput(out)["good"]) == (1, 0)


@pytest.mark.parametrize(
    "flags", [("--slo-ttft", "critical=9s"), ("--goodput", "ttft:9000ms"), ("--slo-ttft", "default=9s")]
)
def test_flags_come_before_the_targets_of_a_trace(blis: Blis, tmp_path: Path, flags: tuple[str, str]) -> None:
    path = trace(tmp_path, "goodput_slo_targets: {critical: {ttft_ms: 0.001}}\n")
    out = blis("replay", "--model", "qwen3-14b", "--trace", path, *flags)[1]
    assert goodput(out)["good"] == goodput(out)["covered"] > 0


def test_goodput_targets_of_a_spec_are_acted_on(blis: Blis, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("gold", "batch") + "goodput_slo_targets: {batch: {e2e_ms: 0.001}}\n")
    out = blis("run", "--model", "qwen3-14b", "--workload-spec", path)[1]
    assert (goodput(out)["covered"], goodput(out)["good"]) == (6, 0)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("[1]", "must be a mapping"),
        ("{critical: 5}", "goodput_slo_targets.critical: must be {ttft_ms"),
        ("{critical: {ttft: 5}}", "goodput_slo_targets.critical.ttft: unknown key"),
        ("{critical: {ttft_ms: soon}}", "goodput_slo_targets.critical.ttft_ms: must be a number of ms"),
        ("{critical: {ttft_ms: -1}}", "goodput_slo_targets.critical.ttft_ms: must not be negative"),
        ("{critical: {ttft_ms: .inf}}", "goodput_slo_targets.critical.ttft_ms: must be a finite time"),
    ],
)
def test_targets_that_are_none_are_refused(blis: Blis, tmp_path: Path, targets: str, message: str) -> None:
    path = trace(tmp_path, f"goodput_slo_targets: {targets}\n")
    code, _, err = blis("replay", "--model", "qwen3-14b", "--trace", path)
    assert code == 2
    assert message in err.splitlines()[-1]


# -- classes, bundles, bad rows ----------------------------------------------------------------------------


def test_a_class_with_a_priority_works_in_specs_as_in_traces(blis: Blis, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "a.csv").write_text(AZURE.replace("critical", "gold"))
    for source in ("--workload-spec", tmp_path / "spec.yaml"), ("--trace", tmp_path / "a.csv"):
        code, _, err = blis("run", "--model", "qwen3-14b", *source)
        assert code == 2
        assert "gold" in err
        given = ("--set", "admission.slo_priorities.gold=2")
        code, out, _ = blis("run", "--model", "qwen3-14b", *source, *given)
        assert code == 0
        assert set(json.loads(out)["classes"]) == {"gold"}


def test_an_unknown_class_states_how_to_make_it_known(blis: Blis, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    err = blis("run", "--model", "qwen3-14b", "--workload-spec", tmp_path / "spec.yaml")[2]
    assert "clients[0].slo_class: unknown SLO class (found 'gold')" in err
    assert "give it a priority: --set admission.slo_priorities.gold=N" in err


BUNDLE = """\
admission: {policy: always-admit}
routing: {policy: round-robin}
priority: {policy: slo-based}
scheduler: sjf
"""


def test_a_bundle_of_blis_is_taken_and_what_it_ignores_is_reported(blis: Blis, tmp_path: Path) -> None:
    path = tmp_path / "bundle.yaml"
    path.write_text(BUNDLE)
    code, out, err = blis(*RUN, "--policy-config", path)
    assert code == 0
    assert json.loads(out)["scheduler"]["scheduler"] == "sjf"
    assert [note for note in notes(err) if "priority is ignored, as in BLIS" in note]
    path.write_text(BUNDLE.replace("priority: {policy: slo-based}\n", ""))
    assert (blis(*RUN, "--policy-config", path)[1], notes(blis(*RUN, "--policy-config", path)[2])) == (
        out,
        [],
    )


@pytest.mark.parametrize("section", ["[1]", "slo-based", "{polcy: x}", "5"])
def test_a_priority_section_of_another_shape_is_refused(blis: Blis, tmp_path: Path, section: str) -> None:
    path = tmp_path / "bundle.yaml"
    path.write_text(f"priority: {section}\n")
    code, _, err = blis(*RUN, "--policy-config", path)
    assert code == 2
    assert "bundle.yaml: priority" in err


def test_bad_rows_can_be_skipped_and_are_counted(blis: Blis, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(AZURE + "9,many,4,batch\n10,5,5\n")
    command = ("replay", "--model", "qwen3-14b", "--trace", path)
    code, _, err = blis(*command)
    assert code == 2
    assert "a.csv:6: input_tokens: not a whole number (found 'many')" in err
    assert "leave such rows out with --skip-bad-rows" in err
    code, out, err = blis(*command, "--skip-bad-rows")
    assert code == 0
    assert json.loads(out)["cluster"]["requests"]["injected"] == 4
    assert "a.csv is read as Azure LLM inference trace: it has arrival_s, input_tokens" in err
    assert len(notes(err)) == 1
    assert notes(err)[0].startswith(
        f"2 bad rows of the trace were skipped; the first: {path}:6: input_tokens: "
    )


def test_skipping_needs_a_trace(blis: Blis) -> None:
    code, _, err = blis(*RUN, "--skip-bad-rows")
    assert code == 2
    assert "--skip-bad-rows: needs a trace" in err


# -- what no machine has room for, and no clock time for -----------------------------------------------------

TOO_MUCH = [
    (("--num-instances", 10**9), "--num-instances: must be at most 100,000"),
    (("--num-kv-blocks", 2**70), "--num-kv-blocks: must be at most 100,000,000"),
    (("--max-num-seqs", 2**70), "--max-num-seqs: must be at most"),
    (("--max-num-batched-tokens", 2**70), "--max-num-batched-tokens: must be at most"),
    (("--block-size", 2**70), "--block-size: must be at most"),
    (("--prefix-tokens", 2**40), "--prefix-tokens: must be at most"),
    (("--prompt-tokens-max", 2**40), "--prompt-tokens-max: must be at most"),
    (("--num-requests", 10**9), "--num-requests: must be at most 100,000,000"),
    (("--intervals", 10**9), "--intervals: must be at most 10,000"),
    (("--seed", -1), "--seed: must be at least 0"),
    (("--seed", 2**70), "--seed: must be at most"),
    (("--timeout", 1e30), "--timeout: must be at most"),
    (("--rate", 1e-9, "--horizon", "10s"), "no request comes before the horizon"),
    (("--rate", 1e-300), "--rate: must lie in [1e-12, 1,000,000]"),
    (("--rate", 1e300), "--rate: must be at most 1e+06"),
    (("--horizon", "9" * 400), "--horizon: must be a finite time"),
    (("--horizon", "1000000h"), "--horizon: is more than a century"),
    (("--routing-latency", 2**70), "--routing-latency: must be at most"),
    (("--admission-latency", 2**62), "--admission-latency: must be at most"),
    (("--arrival", "gamma", "--cv", 1e6), "--cv: must lie in [0.001, 100.0] for gamma"),
    (("--arrival", "gamma", "--cv", 1e-300), "--cv: must lie in [0.001, 100.0] for gamma"),
    (("--scheduler", "lpm", "--fairness-ms", 1e300), "--fairness-ms: must be at most"),
    (("--scheduler", "lpm", "--fairness-tokens", 2**70), "--fairness-tokens: must be at most"),
    (("--alpha-coeffs", "1,2,3.6e9", "--beta-coeffs", "1,1,1,1,1,1,1", "--output-tokens-min", "1000000",
      "--output-tokens-max", "2000000", "--output-tokens", "1500000", "--num-kv-blocks", "1000000",
      "--max-model-len", "10000000"), "alpha_coeffs: the delays of one answer come to more than a century"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), TOO_MUCH, ids=lambda part: str(part)[:40])
def test_absurd_sizes_are_refused_before_anything_is_made(
    blis: Blis, flags: tuple[Any, ...], message: str
) -> None:
    code, out, err = blis("run", "--model", "qwen3-14b", "--rate", "20", *flags)
    if "--rate" in flags:
        code, out, err = blis("run", "--model", "qwen3-14b", *flags)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert len(err.splitlines()[-1]) < 600


@pytest.mark.parametrize("rate", ["1e-9", "1e-300"])
def test_a_rate_does_not_stretch_a_trace_beyond_the_clock(blis: Blis, tmp_path: Path, rate: str) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    code, out, err = blis("replay", "--model", "qwen3-14b", "--trace", tmp_path / "a.csv", "--rate", rate)
    assert (code, out) == (2, "")
    assert "a.csv: workload.rate: the last request would come after more than a century (found 1e-" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bootstrap", 10**9), "--bootstrap: must be at most 10,000"),
        (("--bootstrap", -1), "--bootstrap: must be at least 0"),
        (("--seed", -1), "--seed: must be at least 0"),
        (("--seed", 2**70), "--seed: must be at most"),
    ],
)
def test_a_fit_refuses_absurd_numbers(
    blis: Blis, tmp_path: Path, arguments: tuple[Any, ...], message: str
) -> None:
    import shutil
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "calibrate"))
    from fit_cases import made_up

    from blis_py.traces.samples import write_samples

    write_samples(made_up(20), tmp_path / "samples.csv.gz")
    code, out, err = blis("profile", "fit", tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    shutil.rmtree(tmp_path)


def test_an_import_of_a_cut_file_is_bad_input_and_no_interrupt(blis: Blis, tmp_path: Path) -> None:
    import gzip

    text = "experiment,prefill_reqs,decode_reqs,prefill_tokens,kv_used_blocks,next_sampled_gap_steps,"
    text += "cycle_us_mean\n"
    packed = gzip.compress((text + "a,1,2,3,4,1,5000\n" * 9999).encode())
    path = tmp_path / "steps.csv.gz"
    path.write_bytes(packed[: len(packed) // 2])
    code, out, err = blis("profile", "import", path, "--model", "qwen3-14b", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert f"error: {path}: damaged gzip file" in err


# -- models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_model", ["trained-physics", "roofline"])
@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3.2", "glm-5"])
def test_step_times_of_sparse_attention_are_never_those_of_full(
    blis: Blis, latency_model: str, model: str
) -> None:
    server = ("--model", model, "--gpu", "b300", "--tp", "8", "--rate", "2")
    code, out, err = blis("run", *server, "--latency-model", latency_model)
    assert (code, out) == (2, "")
    assert f"--model: {latency_model} does not price sparse attention (found '{model}')" in err
    code, _, err = blis("run", *server, "--num-requests", "4", "--format", "table")
    assert code == 0
    assert "not learned on together: servers of vllm with sparse MLA MoE" in err
