"""What an engine keeps free of KV: activations by its limits, and the peer's constants."""

from __future__ import annotations

from dataclasses import replace

import pytest

import blis_py as blis
from blis_py.errors import InputError
from blis_py.hardware.capacity import KvCapacity, kv_capacity
from blis_py.hardware.gpu import GIB, load_gpu
from blis_py.hardware.memory_overheads import BLIS_OVERHEADS, VLLM_OVERHEADS, MemoryOverheads
from blis_py.models.model_shape import load_model


def capacity(model: str, gpu: str, tp: int = 1, tokens: int = 2048, seqs: int = 256) -> KvCapacity:
    return kv_capacity(
        load_model(model),
        load_gpu(gpu),
        tp,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        overheads=VLLM_OVERHEADS,
    )


def test_the_peers_constants_do_not_depend_on_the_limits_of_a_step() -> None:
    shape, gpu = load_model("qwen3-14b"), load_gpu("H100")
    found = {
        kv_capacity(
            shape, gpu, overheads=BLIS_OVERHEADS, max_num_batched_tokens=tokens, max_num_seqs=seqs
        ).blocks
        for tokens in (256, 8192)
        for seqs in (8, 1024)
    }
    assert found == {15_909}


def test_activations_are_the_larger_of_a_forward_pass_and_sampling() -> None:
    shape = load_model("llama-3.1-8b")  # H 4096, I 14336, 128,256 tokens
    own = MemoryOverheads(hidden_vectors=4, sampling_bytes_per_logit=36)
    found, basis = own.activations(shape, 1, 8192, 1)
    assert found == 8192 * 2 * (4 * 4096 + 3 * 14336)
    assert basis == "a forward pass of 8,192 tokens"
    found, basis = own.activations(shape, 1, 1024, 256)
    assert found == 256 * 128_256 * 36 + 2 * 1024 * 4096 * 2
    assert basis == "sampling 256 sequences"


def test_ranks_share_the_feed_forward_and_not_the_hidden_states() -> None:
    shape = load_model("llama-3.1-70b")
    forward = MemoryOverheads(hidden_vectors=4, sampling_bytes_per_logit=0)
    one, four = (forward.activations(shape, tp, 8192, 1).bytes for tp in (1, 4))
    assert one - four == pytest.approx(8192 * 2 * 3 * 28672 * 3 / 4)


def test_a_fused_layer_of_experts_holds_a_row_for_each_expert_of_a_token() -> None:
    shape = load_model("qwen3-30b-a3b")  # H 2048, eight experts of 768
    forward = MemoryOverheads(hidden_vectors=4, sampling_bytes_per_logit=0)
    assert forward.activations(shape, 1, 8192, 1).bytes == 8192 * 2 * (4 * 2048 + 8 * (2048 + 768))


def test_no_more_sequences_are_sampled_than_a_step_has_tokens() -> None:
    assert capacity("qwen3-8b", "H100", tokens=64, seqs=64) == capacity("qwen3-8b", "H100", tokens=64)


def test_larger_steps_leave_fewer_blocks() -> None:
    blocks = [capacity("llama-3.1-8b", "L40S", tokens=tokens).blocks for tokens in (2048, 16384, 65536)]
    assert blocks == sorted(blocks, reverse=True)
    assert len(set(blocks)) == 3
    blocks = [capacity("llama-3.1-8b", "L40S", tokens=8192, seqs=seqs).blocks for seqs in (256, 512, 1024)]
    assert blocks == sorted(blocks, reverse=True)
    assert len(set(blocks)) == 3


def test_the_utilisation_is_a_share_of_what_cuda_reports() -> None:
    found = capacity("llama-3.1-8b", "RTX 4090")
    assert found.usable_bytes == pytest.approx(0.9 * 23.52 * GIB, rel=1e-6)
    assert "21.2 GiB usable (0.9 of the 23.52 that CUDA sees) - 15.0 weights" in found.describe()


def test_the_line_states_what_the_activations_are_for() -> None:
    assert (
        "1.1 activations (sampling 256 sequences) - 0.07 overhead"
        in capacity("llama-3.1-8b", "RTX 4090").describe()
    )
    assert "(a forward pass of 32,768 tokens)" in capacity("llama-3.1-8b", "H100", tokens=32768).describe()


def test_an_unmeasured_memory_is_reported_as_assumed() -> None:
    shape, gpu = load_model("llama-3.1-8b"), replace(load_gpu("H100"), visible_known=False)
    line = kv_capacity(shape, gpu, overheads=VLLM_OVERHEADS).describe()
    assert "(0.9 of the 79.19 that CUDA is assumed to see)" in line


def test_weights_come_with_a_table_of_rotary_embeddings() -> None:
    shape = load_model("llama-3.1-8b")
    of_blis = kv_capacity(shape, load_gpu("H100"), overheads=BLIS_OVERHEADS).weight_bytes
    found = capacity("llama-3.1-8b", "H100").weight_bytes
    assert found - of_blis == 131_072 * 128 * 2
    assert found / GIB == pytest.approx(14.99, abs=0.005)  # what vLLM says it has loaded


def test_fewer_sequences_are_proposed_where_they_make_the_model_fit() -> None:
    shape, gpu = load_model("qwen3-8b"), load_gpu("L4")
    limits = {"overheads": VLLM_OVERHEADS, "max_num_batched_tokens": 4096}
    with pytest.raises(InputError, match=r"does not fit.*or --max-num-seqs 512"):
        kv_capacity(shape, gpu, max_num_seqs=1024, **limits)  # type: ignore[arg-type]
    assert kv_capacity(shape, gpu, max_num_seqs=512, **limits).tokens >= 2048  # type: ignore[arg-type]


def test_shared_experts_are_part_of_the_widest_layer_and_shared_by_the_ranks() -> None:
    own = MemoryOverheads(hidden_vectors=4)
    tokens, width = 8192, 4096
    sparse = replace(load_model("qwen3-30b-a3b"), shared_intermediate=0)
    for tp in (1, 2):
        without, _ = own.activations(sparse, tp, tokens, 1)
        found, _ = own.activations(replace(sparse, shared_intermediate=width), tp, tokens, 1)
        assert found - without == tokens * sparse.dtype_bytes * 3 * width / tp


def test_experts_in_mxfp4_are_loaded_with_padded_matrices() -> None:
    """Servers report 64.4 to 66.0 GiB of gpt-oss-120b, whose file has 60.7, and do not start on one H100."""
    shape, h100 = load_model("gpt-oss-120b"), load_gpu("h100")
    loaded = kv_capacity(shape, h100, max_num_seqs=64, overheads=VLLM_OVERHEADS).weight_bytes / 2**30
    assert 64.4 < loaded < 66.0
    plain = kv_capacity(shape, load_gpu("h200"), overheads=BLIS_OVERHEADS).weight_bytes / 2**30
    assert round(plain, 1) == 60.7
    with pytest.raises(InputError, match="does not fit on H100 at TP1"):
        kv_capacity(shape, h100, max_num_batched_tokens=8192, max_num_seqs=1024, overheads=VLLM_OVERHEADS)


@pytest.mark.parametrize(
    ("engine", "counted", "uncertain"),
    [
        ("vllm", True, True),
        ("vllm-0.19", False, False),
        ("vllm-0.20", True, False),
        ("vllm-0.33", True, True),
    ],
)
def test_cuda_graphs_are_counted_by_releases_from_0_20_on(
    engine: str, counted: bool, uncertain: bool
) -> None:
    spread = {"model": "minimax-m2.5-nvfp4", "gpu": "b200", "tp": 2, "attention_dp": 2, "ep": 2}
    line = blis.build(**spread, engine=engine, num_requests=1).capacity
    assert ("of the overhead 0.3 GiB are CUDA graphs (logs: 0.2 to 6.2)" in line) is counted
    assert ("pool uncertain" in line) is uncertain
    plain = blis.build(model="qwen3-14b", engine=engine, num_requests=1, cuda_graphs=False).capacity
    assert "CUDA graphs" not in plain


def test_graph_memory_of_a_log_is_counted_whatever_the_release() -> None:
    """The pool is smaller by what the log says, not by the typical term."""
    known = {"model": "qwen3-14b", "num_requests": 1, "graph_memory_gib": 4.5, "gpu_memory_utilization": 0.9}
    built = {engine: blis.build(engine=engine, **known) for engine in ("vllm-0.19", "vllm-0.33")}
    blocks = {engine: one.scheduler.num_kv_blocks for engine, one in built.items()}
    assert blocks["vllm-0.19"] == blocks["vllm-0.33"]
    assert all("of the overhead 4.5 GiB are CUDA graphs (as given)" in one.capacity for one in built.values())
    none = blis.build(engine="vllm-0.33", **known | {"graph_memory_gib": 0}).scheduler.num_kv_blocks
    per_block = 16 * 2 * 40 * 8 * 128 * 2
    assert abs((none - blocks["vllm-0.33"]) * per_block - 4.5 * 2**30) < 2 * per_block
