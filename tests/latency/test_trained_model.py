"""The trained model: its formula, the protocol it keeps, and that its coefficients come from the data."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latency_cases import PLANTED, decode, prefill

from blis_py.errors import InputError
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency import build
from blis_py.latency.trained import (
    COEFFICIENT_NAMES,
    Basis,
    Coefficients,
    Trained,
    Training,
    bundled_training,
    read_training,
)
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import Weights

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))
from train_fit import SampleGroup, ServedRun, predict, train

ROOT = Path(__file__).resolve().parents[2]
H100, RTX = load_gpu("h100"), load_gpu("rtx-4090")
NONE = Coefficients(*(0.0 for _ in COEFFICIENT_NAMES))


def only(
    shape_name: str = "llama-3.1-8b", gpu: GpuSpec = H100, tp: int = 1, **coefficients: float
) -> Trained:
    """The model with all other coefficients 0."""
    return Trained(load_model(shape_name), gpu, tp, Training(replace(NONE, **coefficients), ("Planted",)))


def test_each_coefficient_multiplies_its_own_datasheet_term() -> None:
    # llama-3.1-8b: 32 layers, d 4096, 32 and 8 heads of 128, I 14336, V 128256
    step, context, seqs = decode(8, 8 * 500), 500, 8
    weights = 32 * (2 * 4096 * 40 * 128 + 3 * 4096 * 14336)
    flops = 2 * seqs * (weights + 128_256 * 4096)
    pairs = 32 * 4 * 32 * 128 * seqs * (context + 1)
    kv_bytes = 32 * 2 * 8 * 128 * 2 * seqs * (context + 2)
    expected = {
        "matmul_arithmetic": flops / 989.5e3,
        "unhidden_arithmetic": flops / 989.5e3,
        "attention_pairs": pairs / 989.5e3,
        "kv_traffic": kv_bytes / 3350,
        "layer_ns": 32,
        "host_step_ns": 1,
        "host_seq_ns": seqs,
        "rank_wait_ns": 0,
        "sparse_layer_ns": 0,
        "sparse_arithmetic": 0,
        "sparse_unhidden": 0,
        "all_reduce_latency": 0,
    }
    for name, ns in expected.items():
        found = only(**{name: 1e4}).step_ns(step)  # large, so that the whole ns does not matter
        assert found == pytest.approx(1e4 * ns, rel=1e-6, abs=1), name  # a GPU takes 1 ns at least
    assert only(traffic=1.0).step_ns(step) > 2 * (weights + 128_256 * 4096) / 3350


def test_8_bit_products_kv_and_launches_have_coefficients_of_their_own() -> None:
    shape = fp8(load_model("llama-3.1-8b"))
    step = decode(8, 8 * 500)
    weights = 32 * (2 * 4096 * 40 * 128 + 3 * 4096 * 14336)
    expected = {
        "narrow_arithmetic": 2 * 8 * weights / 1979e3,
        "narrow_unhidden": 2 * 8 * weights / 1979e3,
        "narrow_kv_traffic": 32 * 2 * 8 * 128 * 8 * 502 / 3350,
        "narrow_layer_ns": 32,
        "kv_traffic": 0,
        "matmul_arithmetic": 2 * 8 * 128_256 * 4096 / 989.5e3,  # the LM head stays in 16 bits
    }
    for name, ns in expected.items():
        model = Trained(shape, H100, 1, Training(replace(NONE, **{name: 1e4}), ("Planted",)))
        assert model.step_ns(step) == pytest.approx(1e4 * ns, rel=1e-6, abs=1), name


@pytest.mark.parametrize(
    ("tp", "seqs", "stages", "messages"),
    [
        (2, 500, 1, 1),  # two ranks have one stage always
        (4, 63, 1, 3),  # below 512 KiB every rank reads the data of all others
        (4, 64, 2, 2 * 3 / 4),  # from there on, as much as a ring moves, in two stages
        (8, 31, 1, 7),  # 256 KiB
        (8, 32, 2, 2 * 7 / 8),
    ],
)
def test_an_all_reduce_costs_its_stages_and_what_a_rank_reads_twice_a_layer(
    tp: int, seqs: int, stages: int, messages: float
) -> None:
    """llama-3.1-8b: 8 KiB a token, 64 all-reduces a step. Each stage waits for the other ranks."""
    step = decode(seqs, 100 * seqs)
    found = only(tp=tp, all_reduce_latency=1e3).step_ns(step)
    assert found == pytest.approx(1e3 * 64 * stages * H100.all_reduce_overhead_ns)
    volume = 64 * messages * seqs * 4096 * 2
    assert only(tp=tp, all_reduce_traffic=1e3).step_ns(step) == pytest.approx(1e3 * volume / 450, rel=1e-6)
    assert only(tp=tp, rank_wait_ns=1e3).step_ns(step) == 64 * stages * (tp - 1) * 1000


def test_cards_on_pcie_make_a_ring_of_more_than_two_whatever_the_size() -> None:
    """vLLM's one-shot all-reduce needs a fast link between every two of them."""
    for seqs in (8, 500):
        step = decode(seqs, 100 * seqs)
        ring_bytes = 64 * 2 * 3 / 4 * seqs * 4096 * 2
        found = only(gpu=RTX, tp=4, all_reduce_traffic=1e3).step_ns(step)
        assert found == pytest.approx(1e3 * ring_bytes / 32, rel=1e-6)
        assert only(gpu=RTX, tp=4, rank_wait_ns=1e3).step_ns(step) == 64 * 3 * 1000


def test_one_gpu_reduces_nothing() -> None:
    alone = only(all_reduce_latency=1e3, all_reduce_traffic=1e3, rank_wait_ns=1e3)
    assert alone.step_ns(decode(100, 100)) == 1  # a step takes 1 ns at least


def test_products_of_experts_have_coefficients_of_their_own() -> None:
    """qwen3-30b-a3b: 48 layers, d 2048, a router, 8 of 128 experts of width 768; 32 and 4 heads of 128."""
    step, tokens = decode(60, 60), 60
    experts = 2 * tokens * 48 * (8 * 3 * 2048 * 768 + 2048 * 128)
    for name in ("sparse_arithmetic", "sparse_unhidden"):
        found = only("qwen3-30b-a3b", **{name: 1e4}).step_ns(step)
        assert found == pytest.approx(1e4 * experts / 989.5e3, rel=1e-6), name
    others = 2 * tokens * (48 * 2048 * 128 * (2 * 32 + 2 * 4) + 151_936 * 2048)
    found = only("qwen3-30b-a3b", matmul_arithmetic=1e4).step_ns(step)
    assert found == pytest.approx(1e4 * others / 989.5e3, rel=1e-6)


def test_a_decode_beside_a_prefill_fills_whole_tiles_where_attention_is_not_packed() -> None:
    step = replace(decode(8, 4000), prefill_seqs=1, prefill_tokens=1)
    pairs = 64 * (4000 + 128 * 8)
    expected = 32 * 4 * 32 * 128 * pairs / 165.2e3
    assert only(gpu=RTX, mixed_decode_tiles=100.0).step_ns(step) == pytest.approx(100 * expected, rel=1e-6)
    assert only(gpu=RTX, mixed_decode_tiles=100.0).step_ns(decode(8, 4000)) == 1
    assert only(gpu=H100, mixed_decode_tiles=100.0).step_ns(step) == 1


def test_smaller_weights_are_read_faster() -> None:
    shape = load_model("llama-3.1-8b")
    times = [
        build("trained", shape=replace(shape, weights=Weights.of(b)), gpu=H100).step_ns(decode(1, 9))
        for b in (2.0, 1.0, 0.5)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.4 * times[1]


def test_an_unmeasured_gpu_is_priced_from_its_datasheet() -> None:
    shape = load_model("llama-3.1-8b")
    mine = replace(H100, name="Mine", hbm_bytes_per_s=H100.hbm_bytes_per_s / 2)
    slow, fast = (build("trained", shape=shape, gpu=gpu) for gpu in (mine, H100))
    assert 1.5 < slow.step_ns(decode(8, 8000)) / fast.step_ns(decode(8, 8000)) < 2
    assert "trained on" in slow.provenance
    assert "none of them on Mine" in slow.provenance
    assert "none of them" not in fast.provenance


def test_roofline_efficiencies_of_the_profile_do_not_matter() -> None:
    shape = load_model("llama-3.1-8b")
    other = replace(
        H100, gemm_efficiency=0.1, hbm_efficiency=0.1, attention_efficiency=0.1, layer_overhead_ns=1e9
    )
    for step in (decode(8, 8000), prefill(2000)):
        times = [build("trained", shape=shape, gpu=gpu).step_ns(step) for gpu in (H100, other)]
        assert times[0] == times[1]


def test_a_tp_degree_that_splits_a_head_is_refused() -> None:
    with pytest.raises(InputError, match="does not divide the 40 heads"):
        Trained(load_model("qwen3-14b"), H100, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("traffic: ", "traffic: -"), "coefficients.traffic: must be"),
        (("traffic: ", "traffic: fast"), "coefficients.traffic: must be"),
        (("  traffic: ", "  trafic: "), "coefficients.traffic: must be"),
        (("coefficients:\n", "coefficients:\n  more: 1.0\n"), "coefficients.more: unknown key"),
        (("coefficients:", "coefs:"), "no trained coefficients"),
        (("longest_tokens: ", "longest_tokens: .inf #"), "no trained coefficients"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = (ROOT / "profiles" / "trained" / "coefficients.yaml").read_text()
    (tmp_path / "c.yaml").write_text(text.replace(*change, 1))
    with pytest.raises(InputError, match=message):
        read_training(tmp_path / "c.yaml")


# --- training ----------------------------------------------------------------------------------------


def fp8(shape: ModelShape) -> ModelShape:
    return replace(shape, weights=Weights.of(1.0, "fp8"), kv_dtype_bytes=1)


def planted(
    model: str, gpu: str, tp: int, seed: int, quantised: bool = False, with_host: bool = False
) -> SampleGroup:
    """Prices of the planted coefficients, in whole ns as the model gives them; the host's only if wanted."""
    draw, shape, spec = random.Random(seed), load_model(model), load_gpu(gpu)
    shape = fp8(shape) if quantised else shape
    steps = []
    for _ in range(60):
        seqs = draw.choice((0, 1, 8, 60, 250))
        step = decode(seqs, seqs * draw.randint(50, 4000))
        if not seqs or draw.random() < 0.5:
            whole = prefill(draw.randint(16, 4000), draw.choice((0, 900)))
            step = step + whole
        steps.append(step)
    shown = PLANTED if with_host else replace(PLANTED, host_step_ns=0, host_seq_ns=0, rank_wait_ns=0)
    latency = Trained(shape, spec, tp, Training(shown, ("Planted",)))
    ns = np.array([latency.step_ns(step) for step in steps], dtype=float)
    basis = Basis(shape, spec, tp)
    return SampleGroup("planted", model, gpu, tp, basis, steps, ns, with_host=with_host, quantised=quantised)


@pytest.fixture(scope="module")
def planted_groups() -> list[SampleGroup]:
    cases = [("llama-3.1-8b", "h100", 1), ("qwen3-0.6b", "rtx-4090", 1), ("qwen3-30b-a3b", "h100", 2)]
    cases += [("qwen3-32b", "h200", 4), ("mixtral-8x7b", "rtx-pro-6000", 8)]
    groups = [planted(*case, seed=i) for i, case in enumerate(cases)]
    groups += [planted("llama-3.1-8b", "h100", tp, seed=20 + tp, with_host=True) for tp in (1, 2)]
    quantised = [("llama-3.1-8b", "h100", 1), ("llama-3.1-70b", "h200", 4), ("qwen3-32b", "b200", 1)]
    return groups + [planted(*case, seed=10 + i, quantised=True) for i, case in enumerate(quantised)]


def test_training_and_model_price_alike(planted_groups: list[SampleGroup]) -> None:
    for group in planted_groups:
        assert np.abs(predict(group, PLANTED) - group.ns).max() <= 1


def test_planted_coefficients_are_found_again(planted_groups: list[SampleGroup]) -> None:
    found = train(planted_groups)
    for name in COEFFICIENT_NAMES:
        assert getattr(found, name) == pytest.approx(getattr(PLANTED, name), rel=2e-3), name


def test_quantised_steps_change_nothing_for_16_bit_models(planted_groups: list[SampleGroup]) -> None:
    slower = [replace(g, ns=g.ns * 1.5) if g.quantised else g for g in planted_groups]
    ours, theirs = asdict(train(planted_groups)), asdict(train(slower))
    changed = {name for name in ours if ours[name] != theirs[name]}
    assert changed
    assert all(name.startswith("narrow_") for name in changed)


def test_what_no_group_shows_is_left_at_nothing(planted_groups: list[SampleGroup]) -> None:
    found = train([replace(group, with_host=False) for group in planted_groups if group.tp == 1])
    assert found.all_reduce_latency == found.all_reduce_traffic == found.sparse_layer_ns == 0
    assert found.host_step_ns == found.host_seq_ns == found.rank_wait_ns == 0


def served(model: str, tp: int, host_ns: float) -> ServedRun:
    """A run whose TPOT is 1.5 times this beyond what kernels tell."""
    basis = Basis(load_model(model), H100, tp)
    return ServedRun(model, model, "h100", basis, 9e6 + 1.5 * host_ns, 9e6, growth=1.5, seqs=0.0)


def test_the_host_is_learned_on_what_clients_of_runs_saw_too(planted_groups: list[SampleGroup]) -> None:
    kernels = [group for group in planted_groups if not group.with_host]
    runs = [served("llama-3.1-8b", 1, 2e5), served("llama-2-70b", 4, 2e5 + 480 * 1500)]
    found = train(kernels, runs)
    assert (found.host_step_ns, found.rank_wait_ns) == pytest.approx((2e5, 1500), rel=1e-3)
    alone = train(kernels, runs[:1])
    assert (alone.host_step_ns, alone.rank_wait_ns) == pytest.approx((2e5, 0), rel=1e-3)


def test_what_the_host_takes_changes_no_price_of_kernels(planted_groups: list[SampleGroup]) -> None:
    slower = [replace(g, ns=g.ns + 1e6) if g.with_host else g for g in planted_groups]
    ours, theirs = asdict(train(planted_groups)), asdict(train(slower))
    changed = {name for name in ours if ours[name] != theirs[name]}
    assert changed
    assert changed <= {"host_step_ns", "host_seq_ns", "rank_wait_ns"}


# --- the committed coefficients ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def committed() -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / "trained.json").read_text())


def test_the_bundled_coefficients_are_those_of_the_committed_run(committed: Any) -> None:
    assert asdict(bundled_training().coefficients) == committed["coefficients"]


@pytest.mark.slow
def test_training_on_a_part_of_the_data_gives_the_committed_result(
    committed: Any, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "accuracy"))
    import train_groups

    groups = train_groups.groups(shared_data, lambda line: None, subset=True)
    assert {group.gpu for group in groups} == {"h100", "rtx-4090", "rtx-pro-6000"}
    found = asdict(train(groups))
    for name in COEFFICIENT_NAMES:
        assert found[name] == pytest.approx(committed["subset"][name], rel=1e-3), name
