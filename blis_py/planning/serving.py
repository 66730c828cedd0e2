"""The planned configuration as start commands of real engines."""

from __future__ import annotations

import shlex
from typing import Any

from blis_py.files.profiles import listed_as, published_name
from blis_py.files.yaml_files import dump_yaml
from blis_py.planning.result import Candidate

_VLLM = {"fcfs": "fcfs", "priority-fcfs": "priority"}
_SGLANG = {"fcfs": "fcfs", "lpm": "lpm", "dfs-weight": "dfs-weight"}
_SIMULATED_ONLY = "is simulated, and not what would run"


def published_model(name: str | None) -> str:
    """The model's name on the hub; the name itself if it is not a bundled one."""
    stem = listed_as("models", name or "")
    return published_name("models", stem) if stem else str(name)


def vllm_arguments(best: Candidate) -> list[str]:
    """Arguments of `vllm serve`, for one instance."""
    settings, served = _scheduler(best), best.config.scheduler
    arguments = [
        *("--tensor-parallel-size", str(best.config.tp)),
        *("--max-num-seqs", str(settings["max_num_seqs"])),
        *("--max-num-batched-tokens", str(settings["max_num_batched_tokens"])),
        *("--block-size", str(settings["block_size"])),
        *("--gpu-memory-utilization", f"{served.gpu_memory_utilization:g}"),
    ]
    if served.max_model_len is not None:
        arguments += ["--max-model-len", str(served.max_model_len)]
    if served.num_kv_blocks is not None:
        arguments += ["--num-gpu-blocks-override", str(served.num_kv_blocks)]
    if settings["scheduler"] in _VLLM and settings["scheduler"] != "fcfs":
        arguments += ["--scheduling-policy", _VLLM[settings["scheduler"]]]
    if settings["long_prefill_token_threshold"]:
        arguments += ["--long-prefill-token-threshold", str(settings["long_prefill_token_threshold"])]
    if not _caches(settings):
        arguments.append("--no-enable-prefix-caching")
    arguments.append("--async-scheduling" if settings["async_scheduling"] else "--no-async-scheduling")
    return arguments


def sglang_arguments(best: Candidate) -> list[str]:
    """Arguments of `python -m sglang.launch_server`, for one instance."""
    settings, served = _scheduler(best), best.config.scheduler
    arguments = [
        *("--tp", str(best.config.tp)),
        *("--max-running-requests", str(settings["max_num_seqs"])),
        *("--chunked-prefill-size", str(settings["max_num_batched_tokens"])),
        *("--page-size", str(settings["block_size"])),
        *("--schedule-policy", _SGLANG.get(settings["scheduler"], "fcfs")),
    ]
    if best.config.memory == "sglang":
        arguments += ["--mem-fraction-static", f"{served.gpu_memory_utilization:g}"]
    if settings["scheduler"] == "priority-fcfs":
        arguments += ["--enable-priority-scheduling", "--schedule-low-priority-values-first"]
    if served.max_model_len is not None:
        arguments += ["--context-length", str(served.max_model_len)]
    if not _caches(settings):
        arguments.append("--disable-radix-cache")
    if not settings["async_scheduling"]:
        arguments.append("--disable-overlap-schedule")
    return arguments


def vllm_script(best: Candidate) -> str:
    """A shell script that starts one vLLM instance."""
    command = ["vllm", "serve", published_model(best.config.model), *vllm_arguments(best)]
    return _script(best, command, _cannot_vllm(best))


def sglang_script(best: Candidate) -> str:
    command = ["python", "-m", "sglang.launch_server", "--model-path", published_model(best.config.model)]
    return _script(best, [*command, *sglang_arguments(best)], _cannot_sglang(best))


def llmd_values(best: Candidate) -> str:
    """Values for the chart llm-d-modelservice."""
    model = published_model(best.config.model)
    container = {
        "name": "vllm",
        "modelCommand": "vllmServe",
        "args": vllm_arguments(best),
        "mountModelVolume": True,
        "resources": {part: {"nvidia.com/gpu": str(best.config.tp)} for part in ("limits", "requests")},
    }
    values = {
        "modelArtifacts": {"name": model, "uri": f"hf://{model}"},
        "decode": {
            "create": True,
            "replicas": best.instances,
            "parallelism": {"tensor": best.config.tp},
            "containers": [container],
        },
        "prefill": {"create": False, "replicas": 0},
    }
    lines = [f"# {best}", "# Add image, secrets and gateway; the router is llm-d's own."]
    return "\n".join([*lines, *(f"# {line}" for line in _cannot_vllm(best)), dump_yaml(values)])


def _script(best: Candidate, command: list[str], cannot: list[str]) -> str:
    routed = best.config.routing.policy
    behind = f", {best.instances} of them behind a {routed} router" if best.instances > 1 else ""
    lines = ["#!/bin/sh", f"# One instance on {best.config.tp} × {best.config.gpu}{behind}."]
    lines += [f"# {line}" for line in cannot]
    return "\n".join([*lines, "exec " + shlex.join(command), ""])


def _cannot_vllm(best: Candidate) -> list[str]:
    settings = _scheduler(best)
    lines = []
    if settings["scheduler"] not in _VLLM:
        lines.append(f"vLLM has no scheduling policy {settings['scheduler']}: it {_SIMULATED_ONLY}")
    if settings["prefix_cache"] == "radix":
        lines.append(f"vLLM's prefix cache is by hash: the radix tree {_SIMULATED_ONLY}")
    return lines + _cannot_any(settings)


def _cannot_sglang(best: Candidate) -> list[str]:
    settings = _scheduler(best)
    lines = []
    if settings["scheduler"] not in (*_SGLANG, "priority-fcfs"):
        lines.append(f"SGLang has no schedule policy {settings['scheduler']}: it {_SIMULATED_ONLY}")
    if settings["prefix_cache"] == "hash":
        lines.append("SGLang's prefix cache is a radix tree; what was simulated is vLLM's, by hash")
    if best.config.memory != "sglang":
        lines.append(
            "SGLang sizes its KV pool by --mem-fraction-static: compare the pool with the capacity simulated"
        )
    return lines + _cannot_any(settings)


def _cannot_any(settings: dict[str, Any]) -> list[str]:
    former = settings["batch_former"]
    return [f"batches formed {former} {_SIMULATED_ONLY}"] if former != "running-first" else []


def _scheduler(best: Candidate) -> dict[str, Any]:
    """The scheduler settings as resolved."""
    resolved: dict[str, Any] = best.outcome.facts["scheduler"]
    return resolved


def _caches(settings: dict[str, Any]) -> bool:
    return bool(settings.get("enable_prefix_caching", True)) and settings["prefix_cache"] != "none"
