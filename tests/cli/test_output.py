from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_py.config.loader import load_config

Blis = Callable[..., tuple[int, str, str]]


def test_stdout_is_json_for_a_pipe_and_stderr_is_talk(blis: Blis, small: tuple[str, ...]) -> None:
    code, out, err = blis("run", *small)
    assert code == 0
    summary = json.loads(out)
    assert summary["cluster"]["requests"]["completed"] == 12
    assert err.splitlines() == [
        "KV capacity: 16,247 blocks of 16 = 259,952 tokens",
        "1 instance of vLLM 0.33, qwen3-14b on H100 TP1; step times: trained (-v and summary.json say more)",
    ]
    assert "roofline trained on kernels and steps" in summary["models"]


def test_the_table_begins_with_the_verdict_and_ends_with_what_it_rests_on(
    blis: Blis, small: tuple[str, ...]
) -> None:
    code, out, err = blis("run", *small, "--format", "table")
    assert code == 0
    first, *_, memory, engine = out.splitlines()
    assert first.startswith("too short to tell")
    assert memory.startswith("KV capacity: ")
    assert engine.startswith("1 instance of vLLM")
    assert err == ""


def test_verbose_begins_with_the_arithmetic_of_memory_and_the_source_of_step_times(
    blis: Blis, small: tuple[str, ...]
) -> None:
    _, out, err = blis("run", *small, "-v")
    summary = json.loads(out)
    assert err.splitlines() == [summary["capacity"], summary["models"]]


def test_notes_follow_the_table(blis: Blis, small: tuple[str, ...]) -> None:
    _, _, err = blis("run", *small, "--routing-scorers", "queue-depth:1", "--format", "table")
    assert err.startswith("note: routing.scorers has no effect on round-robin")


def test_format_vllm_has_the_keys_of_bench_serve(blis: Blis, small: tuple[str, ...]) -> None:
    code, out, _ = blis("run", *small, "--format", "vllm", "--goodput", "ttft:500", "e2el:5000")
    result = json.loads(out)
    assert code == 0
    assert result["completed"] == 12
    assert {
        "duration",
        "mean_ttft_ms",
        "p99_tpot_ms",
        "median_itl_ms",
        "std_e2el_ms",
        "output_throughput",
    } <= set(result)
    assert result["request_goodput"] > 0
    assert len(result["ttfts"]) == len(result["itls"]) == 12


def test_format_blis_has_the_keys_of_its_stdout_and_the_files_those_of_its_files(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    metrics, results = tmp_path / "m.json", tmp_path / "r.json"
    code, out, _ = blis(
        "run", *small, "--format", "blis", "--metrics-path", metrics, "--results-path", results
    )
    assert code == 0
    assert {"instance_id", "completed_requests", "ttft_p99_ms", "responses_per_sec"} <= set(json.loads(out))
    assert "requests" not in json.loads(out)
    assert {"requestID", "ttft_ms", "e2e_ms"} <= set(json.loads(metrics.read_text())["requests"][0])
    assert [row["request_id"] for row in json.loads(results.read_text())] == list(range(12))


def files(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_the_saved_configuration_reproduces_the_run_byte_for_byte(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    flags = ("--scheduler", "sjf", "--num-instances", "2", "--slo", "ttft.p99=1s", "--prefix-tokens", "64")
    code, out, _ = blis("run", *small, *flags, "--out", first, "--no-plots")
    assert code == 0
    assert {"config.yaml", "summary.json", "requests.csv", "steps.csv", "trace.csv", "trace.yaml"} <= set(
        files(first)
    )
    assert (first / "summary.json").read_text() == out
    again = blis("run", "--config", first / "config.yaml", "--out", second, "--no-plots")
    assert again[:2] == (0, out)
    assert files(first) == files(second)


DIFFUSION = "--model llada2.0-mini --workload-spec workloads/diffusion-tiny.yaml --block-size 32"
POOLS = "pools=[{name: large, count: 1}, {name: small, count: 1, gpu: l40s, latency: {model: roofline}}]"
FRONTEND = "latency.linear={gpu: {step: 1e6}, frontend: {before_enqueue_ns: 2e6}}"


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "qwen3-14b"),
        ("--model", "qwen3-14b", "--engine", "sglang", "--async-scheduling", "--scheduler", "lpm"),
        ("--model", "qwen3-14b", "--engine", "vllm", "--set", "latency.model=linear", "--set", FRONTEND),
        ("--model", "qwen3-14b", "--set", POOLS),
        ("--model", "qwen3-14b", "--xpyd", "2p1d", "--engine", "trtllm"),
        ("--profile", "cpu/tiny-ar", "--num-kv-blocks", "300", "--max-num-seqs", "4", "--scheduler", "lpm"),
        (*DIFFUSION.split(), "--max-num-seqs", "16", "--dllm-algorithm", "LowConfidence"),
    ],
    ids=["plain", "overlapped", "coefficients", "pools", "apart", "profile", "diffusion"],
)
def test_the_saved_configuration_is_the_run_even_without_the_list_of_what_was_given(
    blis: Blis, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    spent = ("--num-requests", "12", "--rate", "4", "--no-plots", "--out")
    assert blis("run", *flags, *spent, first)[0] == 0
    settings = yaml.safe_load((first / "config.yaml").read_text())
    del settings["given"]
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump(settings))
    code, _, err = blis("run", "--config", tmp_path / "bare.yaml", "--no-plots", "--out", second)
    assert code == 0, err
    once, again = files(first), files(second)
    assert once.keys() == again.keys()
    assert {name for name in once if once[name] != again[name]} <= {"complete.json", "config.yaml"}
    assert load_config(first / "config.yaml") == load_config(second / "config.yaml")


def test_replaying_a_run_s_own_trace_gives_the_same_summary(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    _, out, _ = blis("run", *small, "--out", tmp_path / "out", "--no-plots")
    replayed = blis("replay", "--model", "qwen3-14b", "--trace", tmp_path / "out" / "trace.csv")
    assert replayed[:2] == (0, out)


def test_results_are_never_replaced_unasked(blis: Blis, small: tuple[str, ...], tmp_path: Path) -> None:
    assert blis("run", *small, "--out", tmp_path / "out", "--no-plots")[0] == 0
    code, out, err = blis("run", *small, "--out", tmp_path / "out", "--no-plots")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --out: folder is not empty (found {str(tmp_path / 'out')!r})")
    assert err.endswith("; name another, or replace the result in it with --force\n")


@pytest.mark.slow
def test_force_replaces_all_of_a_result_so_that_nothing_of_the_former_run_misleads(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert blis("run", *small, "--out", out, "--record-itl")[0] == 0
    assert {"itl.csv"} <= set(files(out))
    assert blis("run", *small, "--out", out, "--force", "--no-plots", "--tp", 2)[0] == 0
    fresh = tmp_path / "fresh"
    assert blis("run", *small, "--out", fresh, "--no-plots", "--tp", 2)[0] == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in fresh.iterdir())
    assert files(out) == files(fresh)


def test_force_destroys_nothing_that_is_no_result(blis: Blis, small: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    code, out, err = blis("run", *small, "--out", tmp_path, "--no-plots", "--force")
    assert (code, out) == (2, "")
    assert err.startswith("error: --out: holds 'mine.txt', which is no part of a result, and would be lost")
    assert files(tmp_path) == {"mine.txt": b"precious"}


def test_a_server_needs_a_folder_to_replace_a_result_in(blis: Blis) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    code, _, err = blis("serve", "--model", "llama-3.1-8b", "--port", 0, "--force")
    assert (code, err) == (2, "error: --force: needs a folder to write to; add --out DIR\n")


def test_a_trace_runs_the_same_under_run_and_replay(blis: Blis, tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0.5,100,10\n1.0,200,20\n9.0,50,5\n")
    model = ("--model", "llama-3.1-8b", "--time-scale", "0.5", "--limit", "2")
    as_run, as_replay = blis("run", *model, "--trace", trace), blis("replay", *model, "--trace", trace)
    assert as_run == as_replay
    assert as_run[0] == 0
    summary = json.loads(as_run[1])
    assert summary["cluster"]["requests"]["injected"] == 2
    assert summary["window"]["first_arrival_s"] == 0.25


def test_a_horizon_without_a_number_of_requests_takes_all_that_arrive_before_it(blis: Blis) -> None:
    flags = ("--rate", "20", "--output-tokens", "5", "--output-tokens-stdev", "0", "--horizon", "10s")
    code, out, _ = blis("run", "--model", "qwen3-14b", *flags)
    assert code == 0
    assert 150 < json.loads(out)["cluster"]["requests"]["injected"] < 250


def test_kv_blocks_can_be_given_and_the_first_line_reports_it(blis: Blis, small: tuple[str, ...]) -> None:
    _, out, err = blis("run", *small, "--num-kv-blocks", "600", "--verbose")
    assert err.startswith("KV capacity: 600 blocks of 16 = 9,600 tokens (as given; by its memory 16,247: ")
    scheduler: Any = json.loads(out)["scheduler"]
    assert (scheduler["num_kv_blocks"], scheduler["max_model_len"]) == (600, 9600)


def test_a_beyond_native_max_model_len_is_noted(blis: Blis, small: tuple[str, ...]) -> None:
    code, _, err = blis("run", *small, "--max-model-len", "60000")
    assert code == 0
    assert "note: max_model_len 60,000 is beyond the model's own 40,960" in err


def test_an_interrupt_exits_with_130(
    blis: Blis, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blis_py.cluster.simulation.simulate", interrupted)
    code, out, err = blis("run", *small)
    assert (code, out, err.splitlines()[-1]) == (130, "", "interrupted")


def test_what_cannot_be_written_is_refused_beforehand(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    code, out, err = blis("run", *small, "--metrics-path", tmp_path)
    assert (code, out) == (2, "")
    assert err == f"error: --metrics-path: is a folder (found {str(tmp_path)!r}); name a file\n"
    twice = tmp_path / "twice.json"
    code, out, err = blis("run", *small, "--metrics-path", twice, "--results-path", twice)
    assert (code, out) == (2, "")
    assert err.startswith("error: --results-path: is the file of --metrics-path, too")


def test_help_and_version(blis: Blis) -> None:
    from blis_py import __version__

    assert blis("--version") == (0, f"{__version__}\n", "")
    assert "replay" in blis()[1]
    code, out, _ = blis("run", "--help-all")
    assert code == 0
    assert "--max-num-batched-tokens" in out
    assert "--encode-decider" not in out


HEAVY = ("pandas", "matplotlib", "scipy", "pydantic", "rich", "torch")
NOT_USED = (
    *(
        "cli.completion",
        "cli.verbs.profile",
        "report._plots",
        "figures",
        "metrics.diffusion",
        "metrics.decisions",
    ),
    *(
        "metrics.intervals",
        "cluster.routing.decisions",
        "cluster.instances.diffusion",
    ),
    *(
        "cluster.ingress.saturation",
        "cluster.ingress.dispatch_order",
        "cluster.ingress.fairness",
        "latency.host_work",
    ),
    *("requests.loops", "requests.think_time", "workload._prefixes", "workload.profile"),
    *("workload._sessions", "workload._turns", "traces"),
)
"""Of this package, what the smallest run of generated requests has no use for."""


@pytest.mark.slow
def test_a_small_run_imports_nothing_that_it_does_not_use() -> None:
    own = [f"blis_py.{name}" for name in NOT_USED]
    assert all(map(find_spec, own)), "a name without a module proves nothing"
    names = (*HEAVY, *own)
    program = (
        "import sys; from blis_py.cli import main\n"
        "assert main('run --model qwen3-14b --num-requests 3'.split()) == 0\n"
        f"print([name for name in {names} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_module_runs_as_a_program_with_its_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blis_py", "xyzzy"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no such command 'xyzzy'")


def test_a_rate_that_the_requests_do_not_come_at_is_named_once(blis: Blis, small: tuple[str, ...]) -> None:
    few = ("run", "--model", "qwen3-8b", "--workload", "chat", "--rate", "17.3", "--num-requests")
    _, _, err = blis(*few, "333", "--format", "table")
    note = "note: these 333 requests arrive at 14/s on average; the rate of 17.3 holds over longer runs"
    assert err.count(note) == 1
    assert "on average" not in blis(*few, "1000", "--format", "table")[2]


def test_a_saturated_run_says_that_requests_give_up_only_where_some_do(blis: Blis) -> None:
    flags = ("run", "--model", "qwen3-14b", "--rate", "150", "--num-requests", "500", "--format", "table")
    out = " ".join(blis(*flags)[1].split())
    assert "requests/s served, queueing times keep growing;" in out
    assert " 0.00 requests/s served" not in out
    impatient = " ".join(blis(*flags, "--set", "workload.timeout_s=2")[1].split())
    assert "% time out;" in impatient
