"""A command line of vLLM's server or benchmark can be pasted: a flag means the same, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from blis_py.cli import main

Blis = Callable[..., tuple[int, str, str]]
MODEL = ("run", "--model", "llama-3.1-70b", "--seed", "1")


@pytest.mark.slow
def test_the_flags_of_a_server_and_of_its_benchmark(blis: Blis) -> None:
    serve = (
        "--tensor-parallel-size 4 --max-num-seqs 64 --num-gpu-blocks-override 9000 --dtype bfloat16 --port 80"
    )
    bench = "--request-rate inf --max-concurrency 8 --num-prompts 40 --scheduling-policy priority"
    ours = "--tp 4 --max-num-seqs 64 --num-kv-blocks 9000 --concurrency 8 --num-requests 40"
    ours += " --scheduler priority-fcfs"
    pasted = blis(*MODEL, *serve.split(), "--trust-remote-code", *bench.split())
    assert pasted[0] == 0, pasted[2]
    assert pasted == blis(*MODEL, *ours.split())
    assert json.loads(pasted[1])["load"]["verdict"] == "closed loop"


def test_the_short_spelling_of_the_parallel_size_is_vllms(blis: Blis) -> None:
    words = (*MODEL, "--num-requests", "5")
    assert blis(*words, "-tp", "4") == blis(*words, "--tp", "4")


def test_a_finite_rate_is_a_rate(blis: Blis) -> None:
    tp = ("--tp", "4", "--num-requests", "5")
    assert blis(*MODEL, *tp, "--request-rate", "3") == blis(*MODEL, *tp, "--rate", "3")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--enable-eplb",), "--enable-eplb: is a flag of vLLM that cannot be honoured"),
        (("--cpu-offload-gb", "4"), "--cpu-offload-gb: is a flag of vLLM"),
        (("--max-num-partial-prefills", "4"), "--max-num-partial-prefills: is a flag of vLLM"),
        (("--speculative-config", "{}"), "--speculative-config: is a flag of vLLM"),
        (("--request-rate", "inf"), "--request-rate: would send everything at once"),
        (("--scheduling-policy", "sjf"), "--scheduling-policy: unknown value"),
        (
            ("--engine", "blis", "--max-concurrency", "8"),
            "--max-concurrency: has no effect without flow control",
        ),
        (("--rate", "2", "--request-rate", "3"), "--request-rate: disagrees with --rate"),
        (("--dataset-name", "sharegpt"), "or give them with --trace"),
        (("--random-range-ratio", "1.5"), "--random-range-ratio: must be from 0 to 1"),
        (("--random-range-ratio", '{"input": 0.5}'), "--random-range-ratio: must be from 0 to 1"),
        (("--length-law", "uniform", "--prompt-tokens", "9"), "has no effect on uniform lengths"),
        (("--random-input-len", "9", "--prompt-tokens", "8"), "--random-input-len: disagrees with"),
        (("--burstiness", "0"), "--burstiness: must be positive"),
        (("--ramp-up-strategy", "linear"), "--ramp-up-strategy: is a flag of vLLM"),
        (("--enable-lora",), "--enable-lora: is a flag of vLLM"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    blis: Blis, flags: tuple[str, ...], complaint: str
) -> None:
    code, out, err = blis(*MODEL, "--tp", "4", *flags)
    assert (code, out) == (2, "")
    assert complaint in err


def test_of_the_peer_the_flag_is_another_limit_and_its_default_changes_nothing(blis: Blis) -> None:
    words = (*MODEL, "--tp", "4", "--num-requests", "5", "--engine", "blis")
    code, out, err = blis(*words, "--max-concurrency", "100")
    plain = blis(*words)
    note, *rest = err.splitlines()
    assert (code, out, rest) == (*plain[:2], plain[2].splitlines())
    assert "--max-concurrency is the limit of BLIS's saturation detector" in note
    assert "--concurrency limits a client's" in note


def test_the_random_data_set_of_the_benchmark_is_requests_of_one_length(blis: Blis) -> None:
    bench = "--backend vllm --dataset-name random --random-output-len 64 --random-prefix-len 32 --ignore-eos"
    bench += " --burstiness 0.25 --request-rate 3 --num-prompts 20 --save-result --metric-percentiles 99"
    ours = "--prompt-tokens 1024 --prompt-tokens-stdev 0 --output-tokens 64 --output-tokens-stdev 0"
    ours += " --prefix-tokens 32 --arrival gamma --cv 2 --rate 3 --num-requests 20"
    tp = ("--tp", "4")
    pasted = blis(*MODEL, *tp, *bench.split())
    assert pasted[0] == 0, pasted[2]
    assert pasted == blis(*MODEL, *tp, *ours.split())


def test_of_a_length_beyond_the_usual_ones_are_the_bounds_too(blis: Blis) -> None:
    long = blis(*MODEL, "--tp", "4", "--num-requests", "3", "--random-input-len", "9000", "--format", "vllm")
    assert json.loads(long[1])["total_input_tokens"] == 27000


@pytest.mark.parametrize(
    ("flags", "prompts", "outputs"),
    [
        (("--random-range-ratio", "0.2"), (80, 120), (40, 60)),
        (("--random-range-ratio", '{"input": 0.1, "output": 0}'), (90, 110), (50, 50)),
        (("--random-range-ratio", "0.2", "--backend", "sglang-oai"), (20, 100), (10, 50)),
        (("--random-range-ratio", "0"), (100, 100), (50, 50)),
    ],
)
def test_random_lengths_are_uniform_in_the_range_of_the_benchmark(
    tmp_path: Path, flags: tuple[str, ...], prompts: tuple[int, int], outputs: tuple[int, int]
) -> None:
    sizes = ("--random-input-len", "100", "--random-output-len", "50", "--num-requests", "400")
    words = ("run", "--model", "llama-3.1-8b", *sizes, *flags, "--no-cross-check", "--no-plots")
    assert main([*words, "--rate", "100", "--out", str(tmp_path / "run")]) == 0
    rows = pd.read_csv(tmp_path / "run" / "requests.csv")
    for column, (least, most) in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        assert rows[column].between(least, most).all()
        assert rows[column].mean() == pytest.approx((least + most) / 2, rel=0.06)


@pytest.mark.parametrize("model", [("--latency-model", "trained-physics"), ("--engine", "blis")])
def test_expert_parallelism_changes_nothing_under_the_models_of_blis(
    blis: Blis, model: tuple[str, ...]
) -> None:
    words = ("run", "--model", "qwen3-30b-a3b", "--tp", "2", "--num-requests", "3", *model)
    code, out, err = blis(*words, "--enable-expert-parallel")
    assert (code, out) == blis(*words)[:2]
    assert "--enable-expert-parallel has no effect" in err + out
