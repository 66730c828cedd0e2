"""Settings that follow from several flags of an engine together."""

from __future__ import annotations

from collections.abc import Callable

from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.launch.findings import LaunchFindings
from blis_py.launch.layout import GpuDivision

_LARGEST_CHUNK = 16384
"""The largest default of SGLang's `--chunked-prefill-size`, and the default of `--max-prefill-tokens`."""
_BALANCE_STEPS = 50
"""Default of `timeout_iters` (tensorrt_llm/llmapi/llm_args.py)."""
_BLOCK_TOKENS = {"vllm": 16, "sglang": 16, "trtllm": 32}
"""Blocks of the presets, in tokens."""
_TRTLLM_KERNELS = ("trtllm", "cutlass", "deepgemm", "triton")
_ROLES = {
    **dict.fromkeys(("prefill", "context", "kv_producer"), "prefill"),
    **dict.fromkeys(("decode", "generation", "kv_consumer"), "decode"),
}
_SPECULATION = "drafts are verified several tokens at a time: in public runs TPOT is 0.5 to 0.9 of it"
_OFFLOADING = ("lmcache", "offload", "mooncakestore", "hicache", "multi")


def _sizes(findings: LaunchFindings) -> None:
    """CUDA graphs of vLLM: a single size is the largest one."""
    label = findings.labels.get("graph_sizes", "")
    numbers = [int(each) for each in findings.parts.get("graph_sizes", "").split() if each.isdigit()]
    if len(numbers) == 1:
        findings.settings["latency.cuda_graph_max_size"] = numbers[0], label
    elif numbers:
        findings.settings["latency.cuda_graph_sizes"] = numbers, label
    exact = [int(each) for each in findings.parts.get("exact_sizes", "").split() if each.isdigit()]
    if exact:
        findings.settings["latency.cuda_graph_sizes"] = exact, findings.labels["exact_sizes"]


def _vllm(findings: LaunchFindings, division: GpuDivision) -> None:
    _sizes(findings)
    names = ("experts_by_flashinfer", "experts_by_deepgemm")
    off = [findings.parts.get(name, "") for name in names]
    if off == ["0", "0"]:
        # of vLLM's list of kernels for experts with block scales only Triton's is left (oracle/fp8.py)
        label = findings.labels["experts_by_flashinfer"]
        findings.settings.setdefault("latency.moe_backend", ("triton", label))
    elif "0" in off or any(off):
        given = ", ".join(findings.labels[name] for name in names if name in findings.labels)
        findings.unmodelled.append(f"{given}: other kernels multiply experts")
    transfer = findings.parts.get("transfer")
    if transfer is not None:
        _transfer(findings, transfer)


def _transfer(findings: LaunchFindings, text: str) -> None:
    label = findings.labels["transfer"]
    try:
        data = parse_json(text, label)
    except InputError:
        data = {}
    if not isinstance(data, dict):
        data = {}
    role = _ROLES.get(str(data.get("kv_role", "")).lower())
    if role is not None:
        findings.parts.setdefault("role", role)
    connector = str(data.get("kv_connector", ""))
    if any(part in connector.lower() for part in _OFFLOADING):
        would = "KV is kept outside the GPU: more prompts are found in the cache"
        findings.unmodelled.append(f"{label} {connector}: {would}")
    else:
        findings.idle.append(label)


def _sglang(findings: LaunchFindings, division: GpuDivision) -> None:
    parts, labels = findings.parts, findings.labels
    chunk = int(parts.get("chunk", "0"))
    if chunk > 0:
        # the server divides both among replicas of attention
        tokens = max(chunk // division.attention_dp, 1)
        findings.settings["scheduler.max_num_batched_tokens"] = tokens, labels["chunk"]
    if "requests" in parts:
        requests = max(int(parts["requests"]) // division.attention_dp, 1)
        findings.settings["scheduler.max_num_seqs"] = requests, labels["requests"]
    if chunk < 0:
        tokens = int(parts.get("prompts", str(_LARGEST_CHUNK)))
        findings.settings["scheduler.max_num_batched_tokens"] = tokens, labels["chunk"]
        longer = f"longer prompts are computed whole, here in chunks of {tokens:,} tokens"
        findings.unmodelled.append(f"{labels['chunk']} {chunk}: {longer}")
    elif "prompts" in parts:
        label = f"{labels['prompts']} {parts['prompts']}"
        if int(parts["prompts"]) >= (chunk or _LARGEST_CHUNK):
            findings.idle.append(label)
        else:
            would = "a step takes no further prompt once it has so many tokens; chunks are larger here"
            findings.unmodelled.append(f"{label}: {would}")
    exchange = parts.get("a2a", "none").lower()
    if exchange == "deepep":
        findings.settings.setdefault("latency.moe_backend", ("deepep", labels["a2a"]))
    elif exchange not in ("none", ""):
        findings.unmodelled.append(f"{labels['a2a']} {exchange}: another exchange among experts")


def _trtllm(findings: LaunchFindings, division: GpuDivision) -> None:
    parts, labels = findings.parts, findings.labels
    kernels = parts.get("moe_backend", "auto").lower()
    if kernels in _TRTLLM_KERNELS:
        findings.settings["latency.moe_backend"] = kernels, labels["moe_backend"]
    elif kernels != "auto":
        findings.unmodelled.append(f"{labels['moe_backend']} {kernels}: other kernels multiply experts")
    if division.attention_dp > 1 and parts.get("balance") == "True":
        steps = int(parts.get("balance_steps", _BALANCE_STEPS))
        findings.settings["attention_dp_timeout_iters"] = steps, labels["balance"]
    if "buffer" in parts:
        findings.settings["disaggregation.max_tokens_in_buffer"] = int(parts["buffer"]), labels["buffer"]


_OF_ENGINES: dict[str, Callable[[LaunchFindings, GpuDivision], None]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}


def combine(engine: str, findings: LaunchFindings, division: GpuDivision) -> None:
    """Add the settings that follow from several flags together."""
    _OF_ENGINES[engine](findings, division)
    if "speculation" in findings.parts:
        findings.unmodelled.append(f"{findings.labels['speculation']}: {_SPECULATION}")
    if "pool" in findings.parts:
        block, _ = findings.settings.get("scheduler.block_size", (_BLOCK_TOKENS[engine], ""))
        blocks = max(int(findings.parts["pool"]) * division.attention_dp // max(int(block), 1), 1)
        findings.settings["scheduler.num_kv_blocks"] = blocks, findings.labels["pool"]
    if "reserve" in findings.parts:
        reserve = int(findings.parts["reserve"])
        findings.settings["disaggregation.reserved_decode_tokens"] = reserve, findings.labels["reserve"]


def role_of(findings: LaunchFindings) -> str:
    """`prefill`, `decode`, or `both`."""
    return _ROLES.get(findings.parts.get("role", "").lower(), "both")
