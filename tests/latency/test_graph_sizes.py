"""Sizes of CUDA graphs by the engines' own rules, and what a decode step costs between them."""

from __future__ import annotations

import pytest

from blis_py.core.features import StepFeatures
from blis_py.core.rank_features import RankedFeatures
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency import build
from blis_py.latency.base import LatencyModel
from blis_py.latency.graph_sizes import GraphSizes, default_sizes
from blis_py.models.model_shape import load_model


@pytest.mark.parametrize(
    ("engine", "seqs", "size"),
    [
        ("vllm", 3, 4),
        ("vllm", 250, 256),
        ("vllm", 257, 272),
        ("vllm", 513, 0),
        ("sglang", 9, 12),
        ("sglang", 258, 272),
        ("sglang", 513, 0),
        ("trtllm", 9, 16),
        ("trtllm", 129, 0),
    ],
)
def test_a_batch_is_padded_to_the_next_size_or_runs_eagerly(engine: str, seqs: int, size: int) -> None:
    sizes = default_sizes(engine, load_gpu("h100"), tp=8, max_num_seqs=1024, most=None, padded=True)
    assert sizes.of(seqs) == size


def test_without_padding_only_captured_sizes_have_a_graph() -> None:
    sizes = default_sizes("trtllm", load_gpu("h100"), tp=8, max_num_seqs=2048, most=300, padded=False)
    assert [sizes.of(seqs) for seqs in (31, 33, 64, 100, 256, 300, 301)] == [31, 0, 64, 0, 256, 300, 0]


def test_the_largest_size_of_vllm_follows_from_the_most_sequences() -> None:
    sizes = default_sizes("vllm", load_gpu("h100"), tp=1, max_num_seqs=20, most=None, padded=True)
    assert sizes.sizes[-1] == 40


TP4 = Layout(4)


def model(graphs: GraphSizes | None, name: str = "llama-3.1-70b-fp8", layout: Layout = TP4) -> LatencyModel:
    return build(
        "trained",
        shape=load_model(name),
        gpu=load_gpu("h100"),
        tp=layout.gpus,
        layout=layout,
        kernels="trtllm",
        graphs=graphs,
    )


def decode(seqs: int, context: int = 1000) -> StepFeatures:
    return StepFeatures(decode_seqs=seqs, decode_kv_tokens=seqs * context, emitted_rows=seqs)


def test_a_padded_step_computes_the_tokens_of_its_graph() -> None:
    padded, exact = model(GraphSizes((64, 256))), model(None)
    assert padded.step_ns(decode(64)) == exact.step_ns(decode(64))
    assert exact.step_ns(decode(65)) < padded.step_ns(decode(65)) < exact.step_ns(decode(256))


def test_a_step_without_a_graph_takes_the_launches_of_its_kernels() -> None:
    eager, exact = model(GraphSizes()), model(None)
    assert eager.step_ns(decode(1)) > exact.step_ns(decode(1))


# -- ranks -------------------------------------------------------------------------------------------------

EP = Layout(8, 8, 8)


@pytest.mark.parametrize("graphs", [None, GraphSizes((8, 16, 64)), GraphSizes()])
def test_a_run_of_ranks_ends_where_single_steps_end(graphs: GraphSizes | None) -> None:
    ranked = model(graphs, "deepseek-r1", EP)
    step = RankedFeatures([decode(3, 700), decode(9, 50), decode(9, 800), StepFeatures()])
    now, ends = 0, []
    for done in range(200):
        now += ranked.step_ns(step.after(done))
        ends.append(now)
    assert ranked.decode_run(step, 200).ends_ns().tolist() == ends


def test_a_group_waits_for_its_slowest_rank() -> None:
    ranked = model(None, "deepseek-r1", EP)
    even = RankedFeatures([decode(8)] * 8)
    uneven = RankedFeatures([decode(57), *[decode(1)] * 7])
    assert even.decode_seqs == uneven.decode_seqs
    assert ranked.step_ns(uneven) > ranked.step_ns(even)


def test_ranks_beside_one_with_a_prompt_wait_for_it() -> None:
    ranked = model(None, "deepseek-r1", EP)
    prompt = StepFeatures(prefill_seqs=1, prefill_tokens=4000, prefill_pairs=8_002_000, emitted_rows=1)
    alone = RankedFeatures([prompt, *[StepFeatures()] * 7])
    beside = RankedFeatures([prompt, *[decode(8)] * 7])
    assert ranked.step_ns(decode(56)) < ranked.step_ns(alone) <= ranked.step_ns(beside)
