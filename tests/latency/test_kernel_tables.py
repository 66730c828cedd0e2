"""Step times added up from measured kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_profiles import LAYERS, attention_us, head_us, qkv_us, write
from latency_cases import decode

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build, kernel_profile
from blis_py.latency.base import LatencyModel
from blis_py.models.model_shape import load_model

DECODE = decode(4, 400)


def tables(folder: Path, tp: int = 1, model: str = "llama-3.1-8b") -> LatencyModel:
    return build("kernel-tables", shape=load_model(model), gpu=load_gpu("h100"), tp=tp, kernel_profile=folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LatencyModel:
    return tables(write(tmp_path_factory.mktemp("profile")))


def operators_us(tokens: float) -> float:
    return LAYERS * (qkv_us(tokens) + 2 * 1.0) + 2 * 1.0


def test_a_decode_step_is_the_sum_of_its_kernels(model: LatencyModel) -> None:
    seqs, context = 6, 1000
    us = operators_us(seqs) + LAYERS * attention_us(0, 0, seqs, context) + head_us(seqs)
    assert model.step_ns(decode(seqs, seqs * context)) == pytest.approx(1e3 * us, abs=1)


def test_a_chunk_is_looked_up_with_what_it_attends_to(model: LatencyModel) -> None:
    chunk, past, seqs, context = 100, 300, 4, 500
    step = StepFeatures(
        prefill_seqs=1,
        prefill_tokens=chunk,
        prefill_pairs=chunk * past + chunk * (chunk + 1) // 2,
        prefill_kv_tokens=past,
        decode_seqs=seqs,
        decode_kv_tokens=seqs * context,
        emitted_rows=seqs,
    )
    us = operators_us(chunk + seqs) + LAYERS * attention_us(chunk, past, seqs, context) + head_us(seqs + 1)
    assert model.step_ns(step) == pytest.approx(1e3 * us, abs=1)


def test_several_prompts_attend_less_than_one_of_their_length(model: LatencyModel) -> None:
    def step(prompts: int) -> int:
        tokens = 240 // prompts
        pairs = prompts * tokens * (tokens + 1) // 2
        return model.step_ns(
            StepFeatures(prefill_seqs=prompts, prefill_tokens=240, prefill_pairs=pairs, emitted_rows=1)
        )

    rows_ns = 7 * 1000 * (head_us(2) - head_us(1))  # seven more through the LM head
    assert step(8) - step(1) < rows_ns


def test_beyond_the_grid_prices_go_on_along_the_last_slope(model: LatencyModel) -> None:
    seqs, context = 128, 9000
    us = operators_us(seqs) + LAYERS * attention_us(0, 0, seqs, context) + head_us(seqs)
    assert model.step_ns(decode(seqs, seqs * context)) == pytest.approx(1e3 * us, rel=1e-6)


def test_points_too_large_to_measure_are_extrapolated(tmp_path: Path, model: LatencyModel) -> None:
    holed = tables(write(tmp_path, too_large=70_000))
    for seqs, context in ((8, 4000), (64, 200), (64, 4000)):
        step = decode(seqs, seqs * context)
        assert holed.step_ns(step) == pytest.approx(model.step_ns(step), rel=1e-6)


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> LatencyModel:
    folder = write(tmp_path_factory.mktemp("skewed"))
    with (folder / "meta.yaml").open("a") as file:
        file.write("skew_fit: {enabled: true, per_tp: {1: {alpha_default: 0.25}}}\n")
    return tables(folder)


@pytest.mark.parametrize(("alpha", "accepted"), [(100, True), (100.5, False), (-100, True), (-100.5, False)])
def test_a_skew_far_outside_what_is_measured_is_refused(tmp_path: Path, alpha: float, accepted: bool) -> None:
    folder = write(tmp_path)
    with (folder / "meta.yaml").open("a") as file:
        file.write(f"skew_fit: {{enabled: true, per_tp: {{1: {{alpha_default: {alpha}}}}}}}\n")
    with nullcontext() if accepted else pytest.raises(InputError, match="alpha_default"):
        tables(folder)


def test_unequal_contexts_cost_the_measured_share_of_the_longest(
    skewed: LatencyModel, model: LatencyModel
) -> None:
    mean, longest, seqs = 500, 3000, 8
    assert skewed.uses_max_context
    assert not model.uses_max_context
    for chunk in (0, 100):
        step = StepFeatures(
            prefill_seqs=min(chunk, 1),
            prefill_tokens=chunk,
            prefill_pairs=chunk * (chunk + 1) // 2,
            decode_seqs=seqs,
            decode_kv_tokens=seqs * mean,
            max_context=longest,
            emitted_rows=seqs,
        )
        extra_us = LAYERS * (attention_us(chunk, 0, seqs, longest) - attention_us(chunk, 0, seqs, mean))
        assert skewed.step_ns(step) - model.step_ns(step) == pytest.approx(0.25e3 * extra_us, abs=2)


@settings(max_examples=50)
@given(seqs=st.integers(1, 100), context=st.integers(1, 6000), steps=st.integers(1, 60))
def test_a_run_of_decode_steps_ends_where_single_steps_end(
    model: LatencyModel, skewed: LatencyModel, seqs: int, context: int, steps: int
) -> None:
    step = decode(seqs, seqs * context, max_context=2 * context)
    for latency in (model, skewed):
        now, ends = 0, []
        for done in range(steps):
            now += latency.step(step.after(done)).synchronous_ns
            ends.append(now)
        assert latency.decode_run(step, steps).ends_ns().tolist() == ends


def test_sweeps_over_different_points_fill_one_grid(tmp_path: Path, model: LatencyModel) -> None:
    folder = write(tmp_path)
    rows = (folder / "attention.csv").read_text().splitlines()
    kept = [row for row in rows if not (row.startswith("64,") and row.split(",")[3] == "256")]
    assert len(kept) < len(rows)
    (folder / "attention.csv").write_text("\n".join(kept) + "\n")
    step = StepFeatures(
        prefill_seqs=1, prefill_tokens=64, prefill_pairs=64 * 65 // 2, decode_seqs=8, decode_kv_tokens=2048
    )
    assert tables(folder).step_ns(step) == pytest.approx(model.step_ns(step), rel=1e-9)


def test_the_tables_name_what_they_were_measured_on(model: LatencyModel) -> None:
    assert "Llama-3.1-8B" in model.provenance
    assert "Testing GPU" in model.provenance


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "meta.yaml").unlink(), "meta.yaml"),
        (lambda f: (f / "meta.yaml").write_text("- 1"), "must be a mapping"),
        (lambda f: (f / "dense.csv").unlink(), "dense"),
        (lambda f: (f / "dense.csv").write_text("layer,time_us\n"), "tokens"),
        (lambda f: (f / "dense.csv").write_text("layer,tokens,time_us\n"), "no measurement"),
        (
            lambda f: (f / "dense.csv").write_text("layer,tokens,time_us\nqkv_proj,1,-3\n"),
            "must be numbers from 0",
        ),
        (lambda f: (f / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,a,3\n"), "numbers"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, spoil: object, message: str) -> None:
    folder = write(tmp_path / "profile")
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        tables(folder)


def test_another_model_or_tp_degree_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.raises(InputError, match="another model"):
        tables(folder, model="qwen3-8b")
    with pytest.raises(InputError, match="TP 2"):
        tables(folder, tp=2)


def sparse_us(tokens: float, active: float) -> float:
    return 20 + 2.0 * active + 0.05 * tokens


def sparse_steps_ns(folder: Path, possible: Callable[[int, int], bool]) -> list[int]:
    """Decode steps of a sparse model whose table of experts has the cells that are `possible`."""
    cells = product((1, 2, 4, 16, 64, 256, 1024, 4096), (1, 8, 16, 32, 64, 128))
    rows = [f"{n},{e},{sparse_us(n, e)}\n" for n, e in cells if possible(n, e)]
    write(folder, model="Qwen/Qwen3-30B-A3B")
    (folder / "moe.csv").write_text("tokens,activated_experts,time_us\n" + "".join(rows))
    latency = tables(folder, model="qwen3-30b-a3b")
    return [latency.step_ns(decode(seqs, 100 * seqs)) for seqs in (1, 2, 3, 8, 40, 64, 200, 256)]


@pytest.mark.parametrize(
    "possible",
    [
        pytest.param(lambda n, e: 8 <= e <= 8 * n, id="triangle"),
        pytest.param(lambda n, e: min(4 * n, 128) <= e <= 8 * n, id="band"),
        pytest.param(lambda n, e: e == min(8 * n, 128), id="line"),
    ],
)
def test_a_table_of_experts_need_not_have_what_cannot_be(
    tmp_path: Path, possible: Callable[[int, int], bool]
) -> None:
    whole = sparse_steps_ns(tmp_path / "whole", lambda n, e: True)
    assert sparse_steps_ns(tmp_path / "part", possible) == pytest.approx(whole, rel=0.15)


def test_a_triangle_of_experts_costs_what_the_whole_table_does_where_it_was_measured(tmp_path: Path) -> None:
    whole = sparse_steps_ns(tmp_path / "whole", lambda n, e: True)
    part = sparse_steps_ns(tmp_path / "part", lambda n, e: e <= 8 * n)
    assert part == pytest.approx(whole, rel=0.005)


@pytest.mark.parametrize(
    ("measured", "fix"),
    [
        ("meta-llama/Llama-3.1-8B", r"use --model meta-llama/Llama-3\.1-8B$"),
        ("someone/Their-Model", r"use --model someone/Their-Model, with its config\.json as --model-config$"),
    ],
)
def test_the_fix_for_another_model_is_one_that_works(tmp_path: Path, measured: str, fix: str) -> None:
    folder = write(tmp_path, model=measured)
    with pytest.raises(InputError, match=fix):
        tables(folder, model="qwen3-8b")
    shape = replace(load_model("llama-3.1-8b"), name=measured)
    assert build("kernel-tables", shape=shape, gpu=load_gpu("h100"), kernel_profile=folder).step_ns(DECODE)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "my-snapshot"])
def test_a_model_may_be_called_otherwise_where_its_sizes_are_those_measured(
    tmp_path: Path, name: str
) -> None:
    folder = write(tmp_path, model="meta-llama/Meta-Llama-3.1-8B-Instruct")
    shape = replace(load_model("llama-3.1-8b"), name=name)
    assert build("kernel-tables", shape=shape, gpu=load_gpu("h100"), kernel_profile=folder).step_ns(DECODE)


def test_it_needs_a_folder_and_only_it_takes_one(tmp_path: Path) -> None:
    shape, gpu = load_model("llama-3.1-8b"), load_gpu("h100")
    with pytest.raises(InputError, match="--kernel-profile"):
        build("kernel-tables", shape=shape, gpu=gpu)
    with pytest.raises(InputError, match="--kernel-profile"):
        build("roofline", shape=shape, gpu=gpu, kernel_profile=tmp_path)


def test_a_step_of_kernels_that_take_no_time_takes_a_nanosecond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: Any = tables(write(tmp_path))
    monkeypatch.setattr(free, "_decodes_ns", lambda seqs, kv_tokens: np.zeros(len(kv_tokens)))
    assert free.decode_run(DECODE, 4).ends_ns().tolist() == [1, 2, 3, 4]


def test_a_table_of_more_combinations_than_are_ever_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_profile, "_MAX_CELLS", 6)
    axes = [np.arange(2.0), np.arange(3.0)]
    assert np.isnan(kernel_profile.empty_grid(axes, tmp_path)).sum() == 6
    with pytest.raises(InputError, match="8 combinations of the sizes in it are more than 6"):
        kernel_profile.empty_grid([*axes[:1], np.arange(4.0)], tmp_path)
