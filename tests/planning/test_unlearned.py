"""Errors of servers that nothing was learned on: those of what was left out, as many of each server."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from blis_py.api import configure
from blis_py.files.bundled import root
from blis_py.models.model_shape import load_model
from blis_py.planning import unlearned
from blis_py.planning.agreement import known_errors
from blis_py.planning.uncertainty import Regime, errors_of, errors_of_unlearned
from blis_py.planning.unlearned import SERVERS, alike, half_width, is_learned, picked
from blis_py.planning.validated import CLOSED, DENSE, EXPERTS, OPEN, SATURATED, Validated

TARGETS = [("ttft", "mean"), ("tpot", "mean")]


def run(number: int, ratio: float = 1.0, **more: str) -> Validated:
    ratios = {(metric, "mean"): ratio for metric in ("ttft", "tpot")}
    own = Validated(f"run {number}", f"m{number}", "h100", 1, "16-bit", DENSE, CLOSED, "", ratios)
    return replace(own, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "model", "precision", "gpu", "learned"),
    [
        ("vllm", "llama-2-7b", "16-bit", "h100", True),
        ("vllm", "llama-2-7b", "16-bit", "H100", True),
        ("vllm", "llama-2-7b", "16-bit", "a100-80", False),
        ("vllm", "llama-2-7b", "FP8", "h100", False),
        ("sglang", "llama-2-7b", "16-bit", "h100", False),
        ("vllm", "llama-3.1-8b", "16-bit", "h100", False),
        ("vllm", "minimax-m2.5", "FP8", "b200", True),
        ("sglang", "deepseek-r1", "FP8", "b200", True),  # as large as DeepSeek-V3
        ("vllm", "llama-4-scout-fp8", "FP8", "h100", False),
    ],
)
def test_a_server_was_learned_on_if_engine_model_format_and_gpu_were(
    engine: str, model: str, precision: str, gpu: str, learned: bool
) -> None:
    assert is_learned(engine, load_model(model), precision, gpu) == learned


def test_runs_alike_are_of_the_same_kind_and_format_whatever_their_engine() -> None:
    own = [run(i, engine="sglang") for i in range(SERVERS)]
    narrow = [run(20 + i, precision="FP8") for i in range(3)]
    experts = [run(40 + i, kind=EXPERTS) for i in range(3)]
    assert alike(DENSE, "16-bit", OPEN, [*own, *narrow, *experts]) == own
    assert alike(DENSE, "FP8", OPEN, [*own, *narrow, *experts]) == [*own, *narrow]
    assert alike(EXPERTS, "FP4", OPEN, [*own, *narrow, *experts]) == [*own, *narrow, *experts]


def test_near_saturation_those_near_it_count_too() -> None:
    own = [run(i) for i in range(SERVERS)]
    near = run(50, 4.0, kind=EXPERTS, load=SATURATED)
    assert alike(DENSE, "16-bit", SATURATED, [*own, near]) == [*own, near]
    assert alike(DENSE, "16-bit", OPEN, [*own, near]) == own


def test_each_server_is_drawn_as_often_however_many_runs_it_has() -> None:
    runs = [run(0), *[run(1, 1 + i / 100) for i in range(50)], run(2)]
    drawn = picked(runs, 301, np.random.default_rng(0))
    counts = Counter(each.server for each in drawn)
    assert sorted(counts.values()) == [100, 100, 101]
    assert len({each.ratio("ttft", "mean") for each in drawn}) > 20


def test_a_half_width_holds_in_the_share_of_servers() -> None:
    runs = [run(i, 1 + i / 10) for i in range(10)]
    runs += [run(0, 1.0) for _ in range(90)]
    assert half_width(runs, "tpot", "mean", 0.9) == pytest.approx(np.log(1.8))
    assert half_width(runs, "e2e", "mean", 1.0) == pytest.approx(np.log(1.9))  # as TPOT
    assert half_width(runs, "itl", "mean", 0.9) is None


def test_draws_are_the_errors_of_the_runs() -> None:
    runs = [run(i, 2.0) for i in range(SERVERS)]
    found = errors_of_unlearned(Regime("vllm", "a10g", "16-bit", DENSE, OPEN), runs, 9, [("e2e", "mean")])
    assert {draw.step for draw in found.draws} == {2.0}
    assert {draw.residual["e2e", "mean"] for draw in found.draws} == {1.0}
    assert found.runs == SERVERS


@pytest.mark.parametrize(
    ("settings", "not_validated"),
    [
        ({"model": "llama-2-7b"}, ""),
        ({"model": "llama-3.1-8b"}, "llama-3.1-8b 16-bit on H100 under vllm"),
        ({"model": "llama-2-7b", "gpu": "mi300x"}, "llama-2-7b 16-bit on MI300X under vllm"),
        ({"model": "llama-2-7b", "engine": "sglang"}, "llama-2-7b 16-bit on H100 under sglang"),
    ],
)
def test_a_plan_says_what_it_is_not_validated_for(settings: dict[str, str], not_validated: str) -> None:
    errors = errors_of(configure(**{"gpu": "h100", "num_requests": 1, **settings}), 50, TARGETS)
    assert errors is not None
    assert ("not validated for" in errors.source) == bool(not_validated)
    assert not_validated in errors.source


def test_errors_of_what_was_not_learned_on_are_wider_than_those_of_what_was() -> None:
    own, far = (
        known_errors(configure(model=model, gpu="h100", num_requests=1))[0]
        for model in ("llama-2-7b", "llama-3.1-8b")
    )
    assert all(far[name] > 2 * own[name] for name in ("TTFT", "TPOT", "E2E"))


def test_the_table_holds_what_was_measured() -> None:
    known = unlearned.unlearned("trained")
    assert unlearned.unlearned("trained-physics") == ()
    assert {run.engine for run in known} == {"vllm", "sglang", "trtllm"}
    assert {run.kind for run in known} == {DENSE, EXPERTS}
    assert len({run.server for run in known}) > 60
    rows = json.loads((root("results") / unlearned.FILE).read_text())["unlearned"]
    assert len(rows) == len(known)
