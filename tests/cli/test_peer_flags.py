"""Every flag of BLIS's `run` and `replay`: it does here what it does there, or is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_bad_input import PEER_FLAGS

from blis_py.cli.flags import blis_flags
from blis_py.cli.flags.configure import overrides
from blis_py.cli.verbs import replay, run
from blis_py.errors import InputError
from blis_py.metrics.fitness import COMPONENTS

Blis = Callable[..., tuple[int, str, str]]

SET = """
--admission-latency 5 · --admission-policy token-bucket · --alpha-coeffs 1,2,3 · --beta-coeffs 1,2,3,4,5,6,7
--block-size-in-tokens 32 · --cache-signal-delay 9 · --concurrency 3 · --counterfactual-k 2
--gpu-memory-utilization 0.8 · --hardware A100-80 · --horizon 9000000 · --latency-model roofline
--long-prefill-token-threshold 64 · --max-model-len 4096 · --max-num-batched-tokens 512 · --max-num-seqs 8
--model qwen3-14b · --model-config-folder m · --num-instances 2 · --num-requests 7 · --output-tokens 20
--output-tokens-max 40 · --output-tokens-min 3 · --output-tokens-stdev 5 · --preemption-policy priority
--prefix-tokens 16 · --prompt-tokens 20 · --prompt-tokens-max 40 · --prompt-tokens-min 3
--prompt-tokens-stdev 5 · --rate 2 · --routing-latency 5 · --routing-policy least-loaded
--routing-scorers queue-depth:1 · --scheduler sjf · --seed 7 · --slo-e2e critical=1s · --slo-itl critical=1s
--slo-ttft critical=1s · --snapshot-refresh-interval 0 · --think-time-ms 5 · --timeout 9
--token-bucket-capacity 50 · --token-bucket-refill-rate 5 · --total-kv-blocks 999 · --tp 2
--trace-level decisions · --workload chatbot · --workload-spec s.yaml · --trace-header h.yaml
--trace-data d.csv · --max-num-running-reqs 9 · --max-num-scheduled-tokens 99 · --decode-hardware h200
--decode-instances 2 · --decode-latency-model roofline · --decode-max-model-len 99 · --decode-tp 2
--decode-routing-scorers queue-depth:1 · --pd-decider always · --pd-prefix-threshold 9
--pd-transfer-bandwidth 3 · --pd-transfer-base-latency 0.3 · --prefill-decode-instances 2
--prefill-hardware h200 · --prefill-instances 2 · --prefill-latency-model roofline · --prefill-max-model-len 9
--prefill-routing-scorers queue-depth:1 · --prefill-tp 2
"""
"""What sets a key of the configuration."""
DONE = """
--metrics-path --results-path --trace-output --fitness-weights --policy-config --summarize-trace
--pd-transfer-contention
"""
"""What the command itself does."""
WITHOUT_EFFECT = "--lazy-generation --log"
REFUSED = {
    "encode pictures": "--encode-decider --encode-instances",
    "host memory and on disks": """
        --kv-cpu-blocks --kv-offload-config --kv-offload-threshold --kv-transfer-bandwidth
        --kv-transfer-base-latency
    """,
    "LoRA adapters": """
        --lora-adapter-capacity --lora-config --lora-footprint-bytes-per-rank
        --lora-load-bandwidth-bytes-us --lora-load-base-latency-us --lora-scorer-weight
    """,
    "the number of instances does not change": "--model-autoscaler-interval-us",
    "--attention-dp": "--dp",
    "--engine": "--moe-comm-backend",
    "--gpu": "--defaults-filepath --hardware-config",
}
"""Why, and which."""
DEFAULTS = {
    "--dp": "1",
    "--encode-decider": "never",
    "--kv-offload-threshold": "0.9",
    "--lora-scorer-weight": "0",
}


def refused() -> list[tuple[str, str]]:
    return [(flag, why) for why, flags in REFUSED.items() for flag in flags.split()]


def settings() -> list[tuple[str, str]]:
    return [(pair.split()[0], pair.split()[1]) for pair in re.split(r"·|\n", SET) if pair.strip()]


def kinds() -> dict[str, Any]:
    """What the flags take, by every spelling."""
    groups = (*run.GROUPS, *replay.GROUPS)
    return {name: flag.kind for _, flags in groups for flag in flags for name in (flag.name, *flag.aliases)}


@pytest.mark.parametrize(("flag", "value"), settings())
def test_a_flag_that_states_how_to_run_sets_that(flag: str, value: str) -> None:
    typed = kinds()[flag](value)
    blis_flags.refuse({flag: typed})
    ((name, key, _),) = overrides({flag: typed})
    assert name == flag
    assert key


@pytest.mark.parametrize(("flag", "why"), refused())
def test_a_flag_of_what_is_not_simulated_is_refused_with_the_reason(flag: str, why: str) -> None:
    assert flag in kinds()
    with pytest.raises(InputError) as error:
        blis_flags.refuse({flag: "7"})
    assert str(error.value).startswith(f"{flag}: is a BLIS flag that blis-py does not have yet")
    assert why in str(error.value)


@pytest.mark.parametrize(("flag", "default"), DEFAULTS.items())
def test_its_default_changes_nothing_and_is_accepted(flag: str, default: str) -> None:
    blis_flags.refuse({flag: default})


def test_no_flag_is_refused_that_is_not_named_here() -> None:
    own = {flag.name for flag in blis_flags.FLAGS[1]} - set(WITHOUT_EFFECT.split())
    here = {flag for flag, _ in refused()}
    assert here <= own
    assert own - here == set(LEFT.split()) & own
    assert set(DONE.split()) <= kinds().keys()


def test_these_are_all_flags_that_it_has() -> None:
    groups = (DONE, WITHOUT_EFFECT, LEFT, *REFUSED.values())
    here = {flag for group in groups for flag in group.split()} | {flag for flag, _ in settings()}
    assert {f"--{name}" for name in PEER_FLAGS.split()} == here


LEFT = """
    --flow-control --in-flight-eviction --queue-shedding --dispatch-order --dispatch-tick-interval
    --fairness-policy --kv-cache-util-threshold --max-gateway-queue-depth --per-band-capacity
    --queue-depth-threshold --request-ttl --saturation-detector --slo-targets --usage-limit-threshold
    --detectors --saturation-config --saturation-final-window --saturation-report --max-concurrency
    --enable-expert-parallel
"""
"""Whose features other tests are about, as soon as they are there."""


# -- what the command does -----------------------------------------------------------------------------


def test_trace_output_is_a_trace_that_replays_to_the_same(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    code, out, _ = blis("run", *small, "--trace-output", tmp_path / "sent")
    assert code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"sent.yaml", "sent.csv"}
    header, data = tmp_path / "sent.yaml", tmp_path / "sent.csv"
    again = blis("replay", "--model", "qwen3-14b", "--trace-header", header, "--trace-data", data)
    assert again[:2] == (0, out)


def test_trace_output_beside_nothing_is_refused_before_the_run(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    code, out, err = blis("run", *small, "--trace-output", tmp_path / "nowhere" / "sent")
    assert (code, out) == (2, "")
    assert "--trace-output: no such folder" in err


def test_fitness_is_the_weighted_sum_of_its_components(blis: Blis, small: tuple[str, ...]) -> None:
    weights = {name: index + 1 for index, name in enumerate(COMPONENTS)}
    flag = ",".join(f"{name}:{weight}" for name, weight in weights.items())
    code, out, _ = blis("run", *small, "--fitness-weights", flag)
    report = json.loads(out)
    score, *_ = (fitness := report["fitness"]).values()
    assert code == 0
    assert set(fitness) == {"score", *COMPONENTS}
    assert score == pytest.approx(sum(weight * fitness[name] for name, weight in weights.items()))
    cluster = report["cluster"]
    assert fitness["p99_ttft"] == pytest.approx(1 / (1 + cluster["ttft_ms"]["p99"]))
    assert fitness["mean_e2e"] == pytest.approx(1 / (1 + cluster["e2e_ms"]["mean"]), rel=1e-3)
    seconds = json.loads(blis("run", *small, "--format", "blis")[1])["vllm_estimated_duration_s"]
    assert fitness["throughput"] == pytest.approx(12 / seconds / (12 / seconds + 100))


def test_fitness_stands_where_blis_prints_it(blis: Blis, small: tuple[str, ...]) -> None:
    flags = ("--fitness-weights", "throughput:0.5,p99_ttft:0.5", "--format", "blis-text")
    _, _, behind = blis("run", *small, *flags)[1].rpartition("\n}\n")
    title, score, *parts = behind.splitlines()
    assert title == "=== Fitness Evaluation ==="
    assert re.fullmatch(r"Score: 0\.\d{6}", score)
    assert [part.split(":")[0] for part in parts[:2]] == ["  p99_ttft", "  throughput"]


@pytest.mark.parametrize(
    "text", ["throughput", "speed:1", "throughput:x", "throughput:-1", "throughput:1,throughput:1"]
)
def test_weights_that_are_none_are_reported(blis: Blis, small: tuple[str, ...], text: str) -> None:
    code, out, err = blis("run", *small, "--fitness-weights", text)
    assert (code, out) == (2, "")
    assert err.startswith("error: --fitness-weights: ")
