"""Launch settings and clients of the Slurm jobs in Dynamo's repository, which ran GB200 deployments of 2025.

A benchmark names the job's script only; what the script passes is here, as figures, in the columns of
`server_flags.csv`. Source: ai-dynamo/dynamo, branch `ishan/sa-1.1-sgl-dsr1`, in
`examples/backends/sglang/slurm_jobs/scripts/gb200-{precision}/disagg/{script}.sh`. Scripts that a later
recipe of the same deployment repeats are left to that recipe. The paths are those of the repository; the
branch was inferred, and two of the scripts could only be read in part, in forks.
"""

from __future__ import annotations

import re

Row = dict[str, str]

_IN_TURN = "load-balance-method=round_robin"
_LOW_LATENCY: Row = {
    "mem_util": "0.95",
    "kv_cache_dtype": "fp8_e4m3",
    "moe_backend": "flashinfer_trtllm",
    "scheduler_recv_interval": "10",
    "max_seqs": "512",
}
SCRIPTS: dict[tuple[str, str], Row] = {
    ("fp8", "1k1k-low-latency"): {
        **_LOW_LATENCY,
        "token_budget": "8192",
        "cuda_graph": "128",
        "other_flags": f"prefill enable-flashinfer-allreduce-fusion max-total-tokens=8192 {_IN_TURN} "
        "| decode enable-flashinfer-allreduce-fusion",
    },
    ("fp8", "8k1k-low-latency"): {
        **_LOW_LATENCY,
        "token_budget": "prefill 24576 | decode 8192",
        "cuda_graph": "512",
        "other_flags": f"prefill enable-flashinfer-allreduce-fusion max-total-tokens=32768 {_IN_TURN} "
        "| decode enable-flashinfer-allreduce-fusion",
    },
    ("fp4", "1k1k-low-latency"): {
        **_LOW_LATENCY,
        "token_budget": "8192",
        "max_seqs": "prefill 512 | decode -",
        "cuda_graph": "256",
        "other_flags": f"prefill max-total-tokens=8192 {_IN_TURN} | decode prefill-round-robin-balance",
    },
}
"""By precision and `SCRIPT_MODE`."""
ROUNDS = {"dynamo-sglang": 5, "dynamo-trt": 8}
"""Requests for each in flight, by the job that ran servers and client: `num_prompts` of `vllm/bench.sh`
beside these, `MULTI_ROUND` of `components/backends/trtllm/performance_sweeps/benchmark_disagg.slurm`."""
OTHER_ROUNDS = 10
"""Of all other clients of the benchmark."""


def with_script(read: Row) -> Row:
    """Launch settings with those of the script that they name."""
    mode = re.search(r"SCRIPT_MODE=(\S+)", read.get("other_flags", ""))
    script = SCRIPTS.get((read["precision"], mode[1])) if mode else None
    if script is None:
        return read
    other = script["other_flags"].replace(" |", f" {read['other_flags']} |", 1)
    return {**read, **script, "other_flags": other}


def rounds(read: Row) -> int:
    """Requests of a run for each in flight."""
    if read.get("status") == "read":  # by recipes of srt-slurm, and its client
        return OTHER_ROUNDS
    return ROUNDS.get(read.get("config_key", "").rpartition("gb200-")[2], OTHER_ROUNDS)
