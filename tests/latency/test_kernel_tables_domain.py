"""Step times of measured kernels where nothing was measured: they go on, never fall, and are counted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_profiles import LAYERS, write
from latency_cases import decode

from blis_py import api
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.kernel_profile import Curve, continued_curve, slope_beyond, value_at, weighted_sum
from blis_py.latency.kernel_tables import KernelTables
from blis_py.models.model_shape import load_model

REAL = {"RTX4090": "rtx-4090", "RTXPRO6000": "rtx-pro-6000"}


def tables(folder: Path, gpu: str = "h100", tp: int = 1) -> KernelTables:
    model = build(
        "kernel-tables", shape=load_model("llama-3.1-8b"), gpu=load_gpu(gpu), tp=tp, kernel_profile=folder
    )
    assert isinstance(model, KernelTables)
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> KernelTables:
    """Eight decodes measured beside a chunk, where they cost three times as much; 64 by themselves."""
    return tables(write(tmp_path_factory.mktemp("edges"), mixed_decodes=8, beside=3.0))


@pytest.fixture(scope="module", params=REAL)
def real(request: pytest.FixtureRequest, shared_data: Path) -> KernelTables:
    folder = shared_data / "vllm_runs" / "kernel_profiles" / f"{request.param}__Llama-3.1-8B__tp1"
    if not folder.is_dir():
        pytest.skip("no kernel profiles")
    return tables(folder, REAL[request.param])


def mixed(chunk: int, past: int, seqs: int, context: int) -> StepFeatures:
    return StepFeatures(
        prefill_seqs=min(chunk, 1),
        prefill_tokens=chunk,
        prefill_pairs=chunk * past + chunk * (chunk + 1) // 2,
        prefill_kv_tokens=past,
        decode_seqs=seqs,
        decode_kv_tokens=seqs * context,
        max_context=context,
        emitted_rows=seqs + min(chunk, 1),
    )


def never_falls(model: KernelTables, steps: Sequence[StepFeatures]) -> bool:
    return all(a <= b for a, b in pairwise(map(model.step_ns, steps)))


# --- curves ------------------------------------------------------------------------------------------


def test_beyond_a_staircase_a_curve_goes_on_with_the_slope_of_its_last_octave() -> None:
    at = np.arange(64, 2049, 64).astype(np.float64)
    stairs = 1000.0 + 100.0 * np.ceil(at / 256)
    for noise in (0.0, 60.0):
        ns = stairs.copy()
        ns[-2] += noise  # the last slope is 0, or falls
        curve = continued_curve(Curve(at, ns, at[-1]))
        for tokens in (2048.0, 2093.0, 4096.0, 7431.0):
            assert value_at(curve, tokens) == pytest.approx(1800 + (tokens - 2048) * 100 / 256)


@settings(max_examples=50)
@given(ns=st.lists(st.floats(1.0, 1e9), min_size=1, max_size=12))
def test_whatever_the_noise_the_slope_lies_between_nothing_and_twice_the_mean_cost_of_a_unit(
    ns: list[float],
) -> None:
    at = (2 ** np.arange(len(ns))).astype(np.float64)
    for points in (at, at + 1000):  # over octaves, and all of them within one
        assert 0 <= slope_beyond(points, np.array(ns)) <= 2 * ns[-1] / points[-1]


def test_a_sum_is_measured_as_far_as_all_its_parts_and_each_goes_on_beyond_its_end() -> None:
    short = Curve(np.array([1.0, 4.0, 8.0]), np.array([10.0, 40.0, 80.0]), 8.0)
    formula = Curve(np.array([0.0, 100.0]), np.array([5.0, 5.0]), float("inf"))
    both = weighted_sum([(2.0, short), (1.0, formula)])
    assert both.measured_to == 8
    assert value_at(both, 100.0) == pytest.approx(2 * 1000 + 5)


# --- prices ------------------------------------------------------------------------------------------


def test_more_decodes_beside_a_chunk_than_measured_cost_what_those_measured_do(model: KernelTables) -> None:
    def price(seqs: int, context: int) -> int:
        return model.step_ns(mixed(64, 16, seqs, context))

    # 8 -> 64 decodes: the measured rate of 0.0002 µs a token, times three, plus operators and LM head.
    more_us = LAYERS * (0.0002 * 3 * 4096 * 56 + 0.25 * 56) + 56
    assert price(64, 4096) - price(8, 4096) == pytest.approx(1e3 * more_us, rel=1e-6)


DECODES = (0, 1, 2, 3, 7, 8, 9, 12, 40, 63, 64, 65, 80, 128, 129, 500)
CONTEXTS = (1, 15, 16, 200, 4000, 4096, 4097, 6000, 8192, 8193, 40_000)
CHUNKS = (0, 1, 16, 100, 255, 256, 257, 300, 512, 513, 1000, 2047, 2048, 2049, 4096, 9000)
PASTS = (0, 16, 300, 512, 513, 900, 1024, 1025, 5000)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    chunk=st.integers(0, 6000),
    past=st.integers(0, 6000),
    seqs=st.integers(1, 300),
    context=st.integers(1, 9000),
)
def test_a_price_never_falls_with_decodes_tokens_or_contexts(
    model: KernelTables, chunk: int, past: int, seqs: int, context: int
) -> None:
    assert never_falls(model, [mixed(chunk, past, n, context) for n in DECODES])
    assert never_falls(model, [mixed(chunk, past, seqs, n) for n in CONTEXTS])
    assert never_falls(model, [mixed(n, past, seqs, context) for n in CHUNKS])
    assert never_falls(model, [mixed(max(chunk, 1), n, seqs, context) for n in PASTS])


def test_an_outlier_does_not_make_the_prices_beyond_it_fall(tmp_path: Path) -> None:
    folder = write(tmp_path, mixed_decodes=8)
    rows = (folder / "attention.csv").read_text().splitlines()
    for i, row in enumerate(rows):
        chunk, _, seqs, context, us = row.split(",")
        if (chunk, seqs, context) in (("64", "8", "4096"), ("0", "2", "4096")):
            rows[i] = row[: -len(us)] + str(50 * float(us))
    (folder / "attention.csv").write_text("\n".join(rows) + "\n")
    model = tables(folder)
    assert not never_falls(model, [mixed(n, 0, 8, 4096) for n in (64, 256)])
    assert never_falls(model, [mixed(n, 0, 64, 4096) for n in (16, 64, 256)])
    assert not never_falls(model, [decode(n, n * 4096) for n in (2, 8)])
    assert never_falls(model, [decode(n, n * 8192) for n in (1, 2, 8, 64)])


@pytest.mark.slow
def test_measured_prices_never_fall_from_the_edge_of_the_profile_on(real: KernelTables) -> None:
    """Inside, they fall where the measured kernels got faster."""
    decodes = (64, 128, 129, 160, 192, 224, 256, 257, 300, 400, 512, 700)
    for chunk in (16, 512, 1800):
        for context in (32, 700, 4096):
            assert never_falls(real, [mixed(chunk, 0, n, context) for n in decodes])
    contexts = (8192, 16384, 16385, 20_000, 32_768, 32_769, 100_000)
    tokens = (1024, 2048, 2049, 2093, 3000, 4096, 4097, 7431, 16_384)
    for seqs in (1, 32, 200, 300):
        assert never_falls(real, [decode(seqs, seqs * n, n) for n in contexts])
        assert never_falls(real, [mixed(n, 0, seqs, 500) for n in tokens])


def test_a_measured_prompt_a_little_beyond_the_profile_costs_a_little_more(real: KernelTables) -> None:
    def price(tokens: int) -> int:
        return real.step_ns(mixed(tokens, 0, 0, 0))

    edge = price(2048)
    assert price(2049) == pytest.approx(edge, rel=0.005)
    assert price(2093) == pytest.approx(edge * 2093 / 2048, rel=0.03)
    # Operators in proportion, and the attention of a long prompt on top.
    assert 7431 / 2048 < price(7431) / edge < 1.5 * 7431 / 2048


def test_tensor_parallel_ranks_pay_for_their_operators_beyond_the_profile_too(tmp_path: Path) -> None:
    folder = write(tmp_path)
    text = (folder / "meta.yaml").read_text().replace("[1]", "[1, 2]")
    (folder / "meta.yaml").write_text(text)
    one, two = tables(folder), tables(folder, tp=2)
    step = mixed(8192, 0, 0, 0)
    assert two.step_ns(step) > one.step_ns(step)


# --- counting ----------------------------------------------------------------------------------------


def test_a_note_names_what_went_beyond_the_profile_and_how_often(tmp_path: Path) -> None:
    model = tables(write(tmp_path, mixed_decodes=8))
    for step in (mixed(256, 512, 8, 4096), decode(64, 64 * 4096, 9000), mixed(0, 0, 1, 1)):
        model.step_ns(step)
    assert model.outside.priced == 3
    assert not model.outside.notes()
    model.step_ns(mixed(64, 0, 12, 200))
    assert model.outside.notes() == [
        "25.0 % of the steps lie outside the measured domain: "
        "decodes beside a chunk up to 12, measured up to 8"
    ]
    model.outside.clear()
    model.step_ns(mixed(300, 700, 0, 0))
    model.step_ns(decode(70, 70 * 10))
    model.step_ns(decode(3, 3 * 5000))
    (note,) = model.outside.notes()
    assert note.startswith("100.0 % of the steps lie outside the measured domain: ")
    for report in (
        "chunk up to 300, measured up to 256",
        "cached tokens before a chunk up to 700, measured up to 512",
        "decodes up to 70, measured up to 64",
        "context of a decode up to 5,000, measured up to 4,096",
    ):
        assert report in note


def test_batches_left_out_of_a_sweep_lie_outside_too(tmp_path: Path) -> None:
    model = tables(write(tmp_path, too_large=70_000))
    model.step_ns(decode(64, 64 * 256))
    model.step_ns(decode(8, 8 * 4096))
    assert not model.outside.notes()
    model.step_ns(decode(9, 9 * 300))
    assert model.outside.farthest == {"context of a decode": (300, 256)}


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seqs=st.integers(1, 80),
    context=st.integers(1, 5000),
    steps=st.integers(1, 60),
    until_ns=st.integers(0, 10**9),
    skew=st.sampled_from([0.0, 0.25]),
)
def test_a_run_counts_the_steps_outside_as_single_steps_do(
    tmp_path_factory: pytest.TempPathFactory, seqs: int, context: int, steps: int, until_ns: int, skew: float
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"counted{skew}"
    if not folder.exists():
        write(folder)
        with (folder / "meta.yaml").open("a") as file:
            file.write(f"skew_fit: {{enabled: true, per_tp: {{1: {{alpha_default: {skew}}}}}}}\n")
    at_once, singly = tables(folder), tables(folder)
    first = decode(seqs, seqs * context, max_context=context + 40)
    run = at_once.decode_run(first, steps, until_ns=until_ns)
    assert run.steps == steps or run.end_ns >= until_ns
    for done in range(run.steps):
        singly.step_ns(first.after(done))
    assert at_once.outside == singly.outside


def test_a_run_shows_its_steps_outside(tmp_path: Path) -> None:
    folder = write(tmp_path)
    settings: dict[str, object] = {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "latency_model": "kernel-tables",
        "kernel_profile": str(folder),
        "num_requests": 4,
        "prompt_tokens_stdev": 0,
        "seed": 1,
    }
    inside = api.build(**settings, prompt_tokens=100, output_tokens=5).run()
    assert not any("measured domain" in note for note in inside.notes)
    outside = api.build(**settings, prompt_tokens=1000, output_tokens=5).run()
    assert any("chunk up to " in note for note in outside.notes)


def test_a_table_without_decodes_or_chunks_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    header, *rows = (folder / "attention.csv").read_text().splitlines()
    for column, key in ((2, "n_decode"), (0, "prefill_chunk")):
        kept = [row for row in rows if row.split(",")[column] == "0"]
        (folder / "attention.csv").write_text("\n".join([header, *kept]) + "\n")
        with pytest.raises(InputError, match=key):
            tables(folder)
