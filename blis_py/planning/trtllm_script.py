"""The planned configuration as a start script of TensorRT-LLM: flags, and a file of options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from blis_py.config.models import RunConfig
from blis_py.files.yaml_files import dump_yaml

OPTIONS = "trtllm-options.yaml"
_CAPACITY = {"guaranteed-no-evict": "GUARANTEED_NO_EVICT", "blocks": "MAX_UTILIZATION"}


def trtllm_lines(config: RunConfig, model: str, caches: bool) -> list[str]:
    """The lines that write the options and start one instance."""
    command = shlex.join(trtllm_command(config, model, OPTIONS))
    return [f"cat > {OPTIONS} <<'EOF'", trtllm_text(config, caches) + "EOF", f"exec {command}"]


def trtllm_command(config: RunConfig, model: str, file: str, role: str = "") -> list[str]:
    """The words that start one instance.

    Args:
        file: path of the file of options.
        role: `CONTEXT` or `GENERATION` where it is for one phase alone.
    """
    served = config.scheduler
    command = [
        *("trtllm-serve", model, "--backend", "pytorch"),
        *("--tp_size", str(config.tp)),
        *("--ep_size", str(config.ep)),
        *("--max_batch_size", str(served.max_num_seqs)),
        *("--max_num_tokens", str(served.max_num_batched_tokens)),
        *("--kv_cache_free_gpu_memory_fraction", f"{served.gpu_memory_utilization:g}"),
    ]
    if served.max_model_len is not None:
        command += ["--max_seq_len", str(served.max_model_len)]
    command += ["--server_role", role] if role else []
    return [*command, "--config", file]


def trtllm_text(config: RunConfig, caches: bool) -> str:
    """The file of options."""
    return dump_yaml(trtllm_options(config, caches))


def trtllm_options(config: RunConfig, caches: bool) -> Mapping[str, Any]:
    """The options that have no flag."""
    served, latency = config.scheduler, config.latency
    cache: dict[str, Any] = {"enable_block_reuse": caches, "tokens_per_block": served.block_size}
    if config.kv_cache_dtype != "auto":
        cache["dtype"] = config.kv_cache_dtype.partition("_")[0]
    if served.num_kv_blocks is not None:
        cache["max_tokens"] = served.num_kv_blocks * served.block_size // config.attention_dp
    graphs: dict[str, Any] = {"enable_padding": latency.cuda_graph_padding}
    if latency.cuda_graph_max_size is not None:
        graphs["max_batch_size"] = latency.cuda_graph_max_size
    if latency.cuda_graph_sizes:
        graphs["batch_sizes"] = list(latency.cuda_graph_sizes)
    options: dict[str, Any] = {
        "kv_cache_config": cache,
        "cuda_graph_config": graphs if latency.cuda_graphs else None,
        "disable_overlap_scheduler": not served.async_scheduling,
    }
    if served.admission_rule in _CAPACITY:
        options["scheduler_config"] = {"capacity_scheduler_policy": _CAPACITY[served.admission_rule]}
    if config.attention_dp > 1:
        options["enable_attention_dp"] = True
    if config.attention_dp > 1 and config.attention_dp_timeout_iters:
        steps = config.attention_dp_timeout_iters
        options["attention_dp_config"] = {"enable_balance": True, "timeout_iters": steps}
    if served.prompt_wait_steps:
        options["batch_wait_timeout_iters"] = served.prompt_wait_steps
        options["batch_wait_max_tokens_ratio"] = served.prompt_wait_share
    if latency.moe_backend in ("trtllm", "cutlass", "deepgemm", "triton"):
        options["moe_config"] = {"backend": latency.moe_backend.upper()}
    return options
