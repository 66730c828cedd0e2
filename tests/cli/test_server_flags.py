"""Launch commands of SGLang's, TensorRT-LLM's and vLLM's servers, with their own flags."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import pytest

from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.parser import parse
from blis_py.cli.verbs import run
from blis_py.config.loader import pool_configs

Blis = Callable[..., tuple[int, str, str]]
OF = {
    "sglang": ("--engine", "sglang", "--model", "deepseek-r1", "--gpu", "b200", "--tp", "8"),
    "trtllm": ("--engine", "trtllm", "--model", "deepseek-v3.1-nvfp4", "--gpu", "b200"),
    "vllm": ("--model", "minimax-m2.5", "--gpu", "b200"),
}


def value_of(engine: str, flags: str, key: str) -> object:
    given = parse([*OF[engine], *flags.split()], run.GROUPS)
    assert given is not None
    return attrgetter(key)(configure(given))


@pytest.mark.parametrize(
    ("engine", "flags", "key", "value"),
    [
        ("sglang", "--context-length 9416", "scheduler.max_model_len", 9416),
        ("sglang", "--disable-radix-cache", "scheduler.prefix_cache", "none"),
        ("sglang", "--attn-dp-size 8", "attention_dp", 8),
        ("sglang", "--enable-dp-attention --attn-dp-size 8", "attention_dp", 8),
        ("sglang", "--cuda-graph-backend-decode disabled", "latency.cuda_graphs", False),
        ("sglang", "--disable-overlap-schedule", "scheduler.async_scheduling", False),
        (
            "sglang",
            "--cuda-graph-bs-decode 1 2 4 --enable-mfu-metrics",
            "latency.cuda_graph_sizes",
            (1, 2, 4),
        ),
        ("vllm", "--no-enable-lora --swap-space 4 --enable-mfu-metrics", "tp", 1),
        ("vllm", "--no-enforce-eager", "latency.cuda_graphs", True),
        ("trtllm", "--custom_tokenizer x --trust_remote_code", "tp", 1),
        ("sglang", "--enable-mixed-chunk", "scheduler.batch_former", "running-first"),
        ("sglang", "--schedule-policy lpm", "scheduler.policy", "lpm"),
        ("sglang", "--enable-dp-attention --dp-size 8", "attention_dp", 8),
        ("sglang", "--max-prefill-tokens 16384 --pp-size 1 --trust-remote-code", "tp", 8),
        ("trtllm", "--tp_size 4", "tp", 4),
        ("trtllm", "--max_batch_size 512", "scheduler.max_num_seqs", 512),
        ("trtllm", "--max_num_tokens 4096", "scheduler.max_num_batched_tokens", 4096),
        ("trtllm", "--max_seq_len 9416", "scheduler.max_model_len", 9416),
        ("trtllm", "--kv_cache_free_gpu_memory_fraction 0.8", "scheduler.gpu_memory_utilization", 0.8),
        ("trtllm", "--tp_size 8 --enable_attention_dp --attention_dp 8", "attention_dp", 8),
        ("vllm", "--enable-expert-parallel --tensor-parallel-size 4", "ep", 4),
        ("vllm", "--tp 4 --stream-interval 20", "tp", 4),
        ("vllm", "--tp 2 --data-parallel-size 4", "tp", 8),
        ("vllm", "--tp 2 --data-parallel-size 4", "attention_dp", 4),
        ("vllm", "--tp 2 --data-parallel-size 4", "ep", 1),
        ("vllm", "--tp 2 -dp 4 --enable-expert-parallel", "ep", 8),
        ("vllm", "-dp 4 --enable-expert-parallel", "tp", 4),
        ("trtllm", "--tp_size 8 --enable_attention_dp", "attention_dp", 8),
        ("sglang", "--max-prefill-tokens 4096 --chunked-prefill-size 4096", "tp", 8),
        ("sglang", "--xpyd 1p1d --prefill-ep 4 --decode-attention-dp 8", "disaggregation.prefill_ep", 4),
    ],
)
def test_a_servers_own_flag_sets_what_it_means(engine: str, flags: str, key: str, value: object) -> None:
    assert value_of(engine, flags, key) == value


@pytest.mark.parametrize(
    ("engine", "flags", "complaint"),
    [
        ("sglang", "--max-total-tokens 90000", "give the number of blocks with --num-kv-blocks"),
        ("sglang", "--moe-a2a-backend deepep", "give --moe-backend deepep"),
        (
            "sglang",
            "--attention-backend fa3",
            "cannot be honoured: other kernels of attention (found 'fa3'); drop it",
        ),
        ("sglang", "--disaggregation-mode prefill", "give its line with --launch"),
        ("vllm", "--max-num-active-seqs 3", "give --max-num-seqs"),
        ("vllm", "--frobnicate", "no such option: --frobnicate"),
        ("sglang", "--cuda-graph-max-bs many", "--cuda-graph-max-bs: must be a whole number"),
        ("sglang", "--speculative-algorithm EAGLE", "is a flag of SGLang that cannot be honoured"),
        ("sglang", "--enable-dp-attention", "does not say how many replicas; add --attention-dp N"),
        ("sglang", "--quantization fp8", "drop it if the checkpoint is quantised so"),
        ("sglang", "--no-enable-prefix-caching", "set prefix_cache to none"),
        ("sglang", "--pp 2", "has no pipeline stages here; --tp divides a model, --instances adds servers"),
        ("vllm", "--pipeline-parallel-size 4", "has no pipeline stages here"),
        (
            "trtllm",
            "--pp_size 2",
            "--pp-size: is a flag of TensorRT-LLM that cannot be honoured: pipeline stages divide",
        ),
        ("vllm", "--enable-expert-parallel", "does not say over how many GPUs; add --tp N"),
        ("vllm", "--tp 4 --enable-expert-parallel --ep 2", "disagrees with"),
        ("vllm", "--tp 4 --data-parallel-size 0", "--data-parallel-size: must be at least 1"),
        ("trtllm", "--enable-attention-dp", "does not say over how many GPUs; add --tp N"),
    ],
)
def test_what_a_server_would_do_otherwise_is_refused_by_name(
    blis: Blis, engine: str, flags: str, complaint: str
) -> None:
    code, out, err = blis("run", *OF[engine], *flags.split(), "--num-requests", "3")
    assert (code, out) == (2, "")
    assert complaint in err


def test_data_parallel_ranks_of_a_dense_model_are_instances() -> None:
    given = parse(["--model", "qwen3-32b", "--tp", "2", "--data-parallel-size", "4"], run.GROUPS)
    assert given is not None
    config = configure(given)
    assert (config.tp, config.attention_dp, config.num_instances) == (2, 1, 4)


def test_pools_that_differ_in_experts_and_replicas_of_attention_are_flags() -> None:
    words = "--xpyd 1p2d --prefill-ep 4 --decode-ep 8 --decode-attention-dp 8 --prefill-attention-dp 1"
    given = parse([*OF["sglang"], *words.split()], run.GROUPS)
    assert given is not None
    pools = pool_configs(configure(given))
    assert [(own.tp, own.attention_dp, own.ep, pool.count) for pool, own in pools] == [
        (8, 1, 4, 1),
        (8, 8, 8, 2),
    ]


def test_what_a_flag_is_taken_for_is_noted(blis: Blis) -> None:
    words = ("run", *OF["sglang"], "--num-requests", "3", "--stream-interval", "20", "--dp-size", "8")
    notes = blis(*words)[2]
    assert "--stream-interval is taken for 1" in notes
    assert "--dp-size is the number of replicas of attention" in notes
    assert "--max-prefill-tokens is not modelled" in blis(*words, "--max-prefill-tokens", "4096")[2]
    assert "--max-prefill-tokens" not in blis(*words, "--max-prefill-tokens", "16384")[2]
    assert "--dp-size" not in blis(*words, "--enable-dp-attention")[2]
