"""The planned configuration as start commands of real engines."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_py.config.models import RunConfig
from blis_py.core.kv_groups import ALIGNED, STATE
from blis_py.files.profiles import listed_as, published_name
from blis_py.files.yaml_files import dump_yaml
from blis_py.launch.own_settings import lines_of, unsaid
from blis_py.launch.reader import read_text_of
from blis_py.models.published_formats import bundled_as
from blis_py.planning.result import Candidate
from blis_py.planning.trtllm_script import trtllm_lines

_VLLM = {"fcfs": "fcfs", "priority-fcfs": "priority"}
_SGLANG = {"fcfs": "fcfs", "lpm": "lpm", "dfs-weight": "dfs-weight"}
_SIMULATED_ONLY = "is simulated, and not what would run"


def published_model(name: str | None, config: str | None = None) -> str:
    """The model's name on the hub; the name itself if it is not a bundled one.

    Args:
        config: its configuration file, whose folder stands for a model without a name.
    """
    if not name and config:
        return str(Path(config).parent)
    stem = bundled_as(name) if name and listed_as("models", name) else None
    return published_name("models", stem) if stem else str(name)


def model_of(best: Candidate) -> str:
    """The model's name on the hub."""
    return published_model(best.config.model, best.config.model_config)


def vllm_arguments(best: Candidate) -> list[str]:
    """Arguments of `vllm serve`, for one instance."""
    settings, served, ranks = _scheduler(best), best.config.scheduler, best.config.attention_dp
    arguments = [
        *("--tensor-parallel-size", str(max(best.config.tp // ranks, 1))),
        *("--max-num-seqs", str(settings["max_num_seqs"] // ranks)),
        *("--max-num-batched-tokens", str(settings["max_num_batched_tokens"] // ranks)),
        *_block_size(best),
        *("--gpu-memory-utilization", f"{served.gpu_memory_utilization:g}"),
    ]
    if ranks > 1:
        arguments += ["--data-parallel-size", str(ranks)]
    if best.config.ep > 1:
        arguments.append("--enable-expert-parallel")
    if best.config.kv_cache_dtype != "auto":
        arguments += ["--kv-cache-dtype", best.config.kv_cache_dtype]
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
    if best.config.attention_dp > 1:
        arguments += ["--dp", str(best.config.attention_dp), "--enable-dp-attention"]
    if best.config.ep > 1:
        arguments += ["--ep", str(best.config.ep)]
    if best.config.kv_cache_dtype != "auto":
        arguments += ["--kv-cache-dtype", best.config.kv_cache_dtype.replace("fp8_e4m3", "fp8")]
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
    if settings["batch_former"] == "running-first":
        arguments.append("--enable-mixed-chunk")
    return arguments


def vllm_script(best: Candidate) -> str:
    """A shell script that starts one vLLM instance."""
    command = ["vllm", "serve", model_of(best), *vllm_arguments(best)]
    return completed(_script(best, ["exec " + shlex.join(command)], _cannot_vllm(best)), best, "vllm")


def sglang_script(best: Candidate) -> str:
    command = ["python", "-m", "sglang.launch_server", "--model-path", model_of(best)]
    line = "exec " + shlex.join([*command, *sglang_arguments(best)])
    return completed(_script(best, [line], _cannot_sglang(best)), best, "sglang")


def trtllm_script(best: Candidate) -> str:
    """A shell script that writes a file of options and starts one instance of TensorRT-LLM."""
    lines = trtllm_lines(best.config, model_of(best), _caches(_scheduler(best)))
    return completed(_script(best, lines, _cannot_trtllm(best)), best, "trtllm")


def llmd_values(best: Candidate) -> str:
    """Values for the chart llm-d-modelservice."""
    model = model_of(best)
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
            "parallelism": {"tensor": max(best.config.tp // best.config.attention_dp, 1)},
            "containers": [container],
        },
        "prefill": {"create": False, "replicas": 0},
    }
    lines = [f"# {best}", "# Add image, secrets and gateway; the router is llm-d's own."]
    text = "\n".join([*lines, *(f"# {line}" for line in _cannot_vllm(best)), dump_yaml(values)])
    return completed(text, best, "vllm")


def engine_of(config: RunConfig) -> str:
    """The engine that a configuration is of, by its accounting of memory: BLIS simulates vLLM."""
    return "vllm" if config.memory == "blis" else config.memory


def completed(text: str, best: Candidate, engine: str) -> str:
    """The file with the settings that its flags do not set, so that it is read back as what was simulated.

    Files of another engine than the simulated one stay as they are.
    """
    config = best.config if best.config.all_pools else replace(best.config, num_instances=best.instances)
    if engine_of(config) != engine:
        return text
    flags = read_text_of(text, {"engine": config.engine}).values
    del flags["engine"]  # no flag names it, but the image, which is left to the reader
    lines = lines_of(unsaid(config, flags))
    begin, _, rest = text.partition("\n")
    return "\n".join([begin, *lines, rest])


def _script(best: Candidate, commands: list[str], cannot: list[str]) -> str:
    routed = best.config.routing.policy
    behind = f", {best.instances} of them behind a {routed} router" if best.instances > 1 else ""
    lines = ["#!/bin/sh", f"# One instance on {best.config.tp} × {best.config.gpu}{behind}."]
    lines += [f"# {line}" for line in cannot]
    return "\n".join([*lines, *commands, ""])


def cannot(best: Candidate, engine: str) -> list[str]:
    """Lines on what an engine does otherwise than was simulated."""
    return {"vllm": _cannot_vllm, "sglang": _cannot_sglang, "trtllm": _cannot_trtllm}[engine](best)


def _cannot_vllm(best: Candidate) -> list[str]:
    settings = _scheduler(best)
    lines = []
    if settings["scheduler"] not in _VLLM:
        lines.append(f"vLLM has no scheduling policy {settings['scheduler']}: it {_SIMULATED_ONLY}")
    if settings["prefix_cache"] == "radix":
        lines.append(f"vLLM's prefix cache is by hash: the radix tree {_SIMULATED_ONLY}")
    return lines + _cannot_form(settings, "running-first")


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
    return lines + _cannot_form(settings, "prefill-only", "running-first")


def _cannot_trtllm(best: Candidate) -> list[str]:
    settings = _scheduler(best)
    lines = []
    if settings["scheduler"] != "fcfs":
        lines.append(f"TensorRT-LLM has no policy {settings['scheduler']}: it {_SIMULATED_ONLY}")
    if best.config.attention_dp not in (1, best.config.tp):
        lines.append("TensorRT-LLM replicates attention on every GPU or on none: other numbers are simulated")
    if best.config.memory != "trtllm":
        lines.append("TensorRT-LLM's share is of the memory that is free after loading: compare the pools")
    return lines + _cannot_form(settings, "in-flight")


def _cannot_form(settings: dict[str, Any], *formers: str) -> list[str]:
    """A line where batches are formed in none of these ways."""
    former = settings["batch_former"]
    return [f"batches formed {former} {_SIMULATED_ONLY}"] if former not in formers else []


def _scheduler(best: Candidate) -> dict[str, Any]:
    """The scheduler settings as resolved."""
    resolved: dict[str, Any] = best.outcome.facts["scheduler"]
    return resolved


def _block_size(best: Candidate) -> list[str]:
    """The flag for tokens of a block; none where vLLM itself makes blocks as large as a state."""
    settings = _scheduler(best)
    kinds = {group["kind"] for group in settings.get("kv_groups", ())}
    return [] if kinds & {STATE, ALIGNED} else ["--block-size", str(settings["block_size"])]


def caches(best: Candidate) -> bool:
    """Whether prompts are cached."""
    return _caches(_scheduler(best))


def _caches(settings: dict[str, Any]) -> bool:
    return bool(settings.get("enable_prefix_caching", True)) and settings["prefix_cache"] != "none"
