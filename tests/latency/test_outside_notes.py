"""Steps outside the measured range are counted one by one, and the note names how far they go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from latency_cases import decode

from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.decode_line import SCALAR_STEPS, DecodeLine, run_along
from blis_py.latency.engine_terms import EngineTerms
from blis_py.latency.fitted_surface import FittedSurface
from blis_py.latency.graph_sizes import GraphSizes
from blis_py.latency.notes import Outside, domain_notes, link_notes
from blis_py.latency.trained import ServerTerms
from blis_py.models.model_shape import load_model


@pytest.mark.parametrize(
    ("kv_limit", "context_limit", "outside"),
    [
        (1_000, 1_000, 0),
        (106, 1_000, 1),  # 100, 102, 104 and 106 of 100 to 108 are inside
        (104, 1_000, 2),
        (1_000, 52, 2),  # contexts of 50 to 54
        (99, 1_000, 5),
        (-1, -2, 5),
    ],
)
def test_of_a_run_of_decodes_the_steps_above_a_limit_are_outside(
    kv_limit: int, context_limit: int, outside: int
) -> None:
    """Five steps of two sequences with 100 cached tokens, the longest of 50."""
    counted = Outside()
    first = decode(2, 100, 50)
    kv = [first.decode_kv_tokens + 2 * step for step in range(5)]
    assert sum(each > kv_limit or 50 + step > context_limit for step, each in enumerate(kv)) == outside
    assert counted.count_run(first, 5, kv_limit, context_limit) == (outside > 0)
    assert (counted.priced, counted.steps) == (5, outside)


def test_the_note_names_the_largest_value_of_each_feature_those_farthest_away_first() -> None:
    counted = Outside(how="; continued")
    counted.count_run(decode(2, 100, 50), 4, 90, 1_000)
    for value in (110, 300, 200):
        counted.record("decode_kv_tokens", value, 90)
    counted.record("decode_seqs", 70, 64)
    counted.record("max_context", 50, 64)
    assert counted.notes() == [
        "100.0 % of the steps lie outside the measured domain: "
        "decode_kv_tokens up to 300, measured up to 90, "
        "decode_seqs up to 70, measured up to 64; continued"
    ]
    counted.clear()
    assert counted.notes() == []


def test_a_batch_above_the_largest_graph_runs_eagerly_and_one_between_two_is_padded() -> None:
    assert [GraphSizes((1, 2, 4)).of(seqs) for seqs in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 0]
    assert [GraphSizes((1, 2, 4), padded=False).of(seqs) for seqs in (1, 3, 4, 5)] == [1, 0, 4, 0]


def test_what_has_no_price_costs_nothing() -> None:
    curve = FittedSurface({"step": 1e6}, knee=100, correction=None).curve(5_000)
    assert (curve.ns, curve.slopes) == ([1e6], [0.0])


def test_a_step_takes_a_unit_at_least_however_it_is_priced() -> None:
    free = DecodeLine(0.0, 0.0, 0.0, 0.0, 0.0, unit_ns=3, fixed_ns=2)
    for steps in (2, SCALAR_STEPS + 5 if SCALAR_STEPS < 99 else 20):
        assert run_along(free, 10, 1, steps, 100, 10**9).end_ns == 100 + 5 * steps


@pytest.mark.parametrize(
    ("model", "gpu"), [("qwen3-14b", "h100"), ("qwen3-30b-a3b", "h200"), ("llama-3.1-8b", "rtx-4090")]
)
def test_a_fitted_gap_per_sequence_grows_up_to_the_batches_it_was_seen_with(model: str, gpu: str) -> None:
    server = ServerTerms(gap_ns=5e4, gap_seq_ns=2e3, most_seqs=8)
    plain, fitted = (
        build("trained", shape=load_model(model), gpu=load_gpu(gpu), **more)
        for more in ({}, {"server": server})
    )
    gaps = []
    for seqs in (4, 8, 30):
        gaps.append(fitted.step_ns(decode(seqs, 400)) - plain.step_ns(decode(seqs, 400)))
        stated = domain_notes(fitted)
        assert ("steps of up to 30 sequences" in " ".join(stated)) == (seqs > 8)
    assert gaps == pytest.approx([5.8e4, 6.6e4, 6.6e4], abs=2)


def test_what_was_not_learned_of_an_engine_costs_nothing() -> None:
    assert EngineTerms() == EngineTerms(1, 1, 0, 1, 0, 0, 0, 0, ())


@pytest.mark.parametrize(
    ("tp", "joined", "noted"), [(1, 8, False), (2, 8, False), (8, 8, False), (2, 1, True), (16, 8, True)]
)
def test_more_gpus_than_a_link_joins_are_noted(tp: int, joined: int, noted: bool) -> None:
    gpu = replace(load_gpu("h100"), link_gpus=joined)
    notes = link_notes(gpu, tp)
    assert [f"TP{tp} is more GPUs than the {joined}" in note for note in notes] == [True] * noted
    assert link_notes(None, tp) == ()


@pytest.mark.parametrize(("tp", "noted"), [(1, False), (2, True)])
def test_a_link_that_is_given_is_stated_where_there_is_one(tp: int, noted: bool) -> None:
    notes = [
        *link_notes(load_gpu("h100").linked_at(50), tp),
        *link_notes(load_gpu("h100").linked_at(400), tp),
    ]
    stated = "all 2 GPUs are linked by {} GB/s, as given; a small all-reduce takes {} µs as on {}"
    known = [stated.format(50, 30, "PCIe cards"), stated.format(400, 5, "the H100's own link")]
    assert notes == known * noted


def test_decodes_above_the_largest_graph_are_noted_with_the_launches_they_wait_for() -> None:
    """129 decodes of an engine whose largest CUDA graph holds 128 take three times as long as 128."""
    shape, gpu = load_model("qwen3-235b-a22b-fp8"), load_gpu("h100")
    graphs = GraphSizes((1, 64, 128))
    model = build("trained", shape=shape, gpu=gpu, tp=8, kernels="trtllm", graphs=graphs)
    model.step_ns(decode(128, 128 * 500, 500))
    assert not [note for note in domain_notes(model) if "CUDA graph" in note]
    model.step_ns(decode(129, 129 * 500, 500))
    model.decode_run(decode(140, 140 * 500, 500), 3)
    [note] = [note for note in domain_notes(model) if "CUDA graph" in note]
    assert note.startswith(
        "decode steps of up to 140 sequences run without a CUDA graph (the largest holds 128)"
    )
    assert "each takes at least 117 ms of launches" in note
