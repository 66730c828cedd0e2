"""The launch of a measured point, as a script of its engine.

What the table of launch flags says is written as the server takes it, and read like any user's script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

Row = Mapping[str, str]
_FLAGS = {
    "vllm": {
        "mem_util": "--gpu-memory-utilization",
        "kv_cache_dtype": "--kv-cache-dtype",
        "token_budget": "--max-num-batched-tokens",
        "max_seqs": "--max-num-seqs",
        "graphs": "--max-cudagraph-capture-size",
        "moe_backend": "--moe-backend",
    },
    "sglang": {
        "mem_util": "--mem-fraction-static",
        "kv_cache_dtype": "--kv-cache-dtype",
        "token_budget": "--chunked-prefill-size",
        "max_seqs": "--max-running-requests",
        "graphs": "--cuda-graph-max-bs",
        "moe_backend": "--moe-runner-backend",
        "scheduler_recv_interval": "--scheduler-recv-interval",
    },
    "trtllm": {
        "mem_util": "kv_cache_config.free_gpu_memory_fraction",
        "kv_cache_dtype": "kv_cache_config.dtype",
        "token_budget": "max_num_tokens",
        "max_seqs": "max_batch_size",
        "graphs": "cuda_graph_config.max_batch_size",
        "moe_backend": "moe_config.backend",
    },
}
"""Columns of the table, and what the server calls them."""
_START = {
    "vllm": "vllm serve model",
    "sglang": "python3 -m sglang.launch_server --model-path model",
    "trtllm": "trtllm-serve model",
}
_NOT_GIVEN = ("", "default", "-")


def launch_script(engine: str, row: Row, *, tp: int, attention_dp: int, ep: int, concurrency: int) -> str:
    """The script that starts the server of a row.

    Args:
        concurrency: requests in flight, `CONC` in the table; limits are of one replica of attention.
    """
    words = [*_START[engine].split(), *_width(engine, tp, attention_dp)]
    words += {"vllm": ["--enable-expert-parallel"] if ep > 1 else [], "sglang": ["--ep", str(ep)]}.get(
        engine, ["--ep_size", str(ep)]
    )
    given = dict(_given(engine, row, concurrency, attention_dp))
    env = [word for word in row.get("env", "").split() if re.fullmatch(r"[A-Z_0-9]+=\S*", word)]
    if engine == "trtllm":
        options = "\n".join(
            f"{name}: {value}" for name, value in _nested({**given, **_of_trtllm(row, attention_dp)})
        )
        return (
            f"cat > options.yml <<'EOF'\n{options}\nEOF\n{_line([*env, *words, '--config', 'options.yml'])}"
        )
    for name, value in given.items():
        words += [name, value]
    return _line([*env, *words, *_switches(engine, row)])


def _width(engine: str, tp: int, attention_dp: int) -> list[str]:
    if engine == "vllm":
        return ["-tp", str(tp // attention_dp), "-dp", str(attention_dp)]
    shared = ["--dp-size", str(attention_dp), "--enable-dp-attention"] if attention_dp > 1 else []
    return ["--tp-size", str(tp), *(shared if engine == "sglang" else [])]


def _line(words: list[str]) -> str:
    assigned = [word for word in words if re.match(r"[A-Z_0-9]+=", word)]
    return " ".join(
        [
            *(f"{w.partition('=')[0]}={shlex.quote(w.partition('=')[2])}" for w in assigned),
            shlex.join([word for word in words if word not in assigned]),
        ]
    )


def _given(engine: str, row: Row, concurrency: int, attention_dp: int) -> Iterator[tuple[str, str]]:
    """`CONC` is of a replica of attention, but for the requests of SGLang, which divides those itself."""
    for column, name in _FLAGS[engine].items():
        text = _graphs(row) if column == "graphs" else row.get(column, "")
        bracketed = re.fullmatch(r"default \(([\d.]+)\)", text)
        if (engine, column, text.partition(" ")[0]) == ("sglang", "moe_backend", "deepep"):
            name = "--moe-a2a-backend"
        text = bracketed[1] if bracketed else text.partition(" ")[0] if column == "moe_backend" else text
        replicas = 1 if (engine, column) == ("sglang", "max_seqs") else attention_dp
        if text not in _NOT_GIVEN:
            yield name, str(max(concurrency // replicas, 1)) if text == "CONC" else text


def _graphs(row: Row) -> str:
    """The largest batch with a CUDA graph, of decodes."""
    decode = row.get("cuda_graph", "").rpartition("decode ")[2]
    most = re.search(r"CONC|\d+", decode)
    return most[0] if most and "PIECEWISE" not in decode and not decode.startswith("[") else ""


def _switches(engine: str, row: Row) -> Iterator[str]:
    other = row.get("other_flags", "")
    if engine == "vllm" and row.get("async_scheduling") == "on":
        yield "--async-scheduling"
    if engine == "sglang" and "allreduce-fusion" in other:
        yield "--enable-flashinfer-allreduce-fusion"
    fused = re.search(r"(fuse_allreduce_rms|enable_fi_allreduce_fusion)\W+true", other)
    if engine == "vllm" and fused:
        yield f'--compilation-config={{"pass_config": {{"{fused[1]}": true}}}}'
    sizes = row.get("cuda_graph", "").rpartition("decode ")[2]
    if sizes.startswith("["):
        yield from (
            "--cuda-graph-bs" if engine == "sglang" else "--cuda-graph-sizes",
            *re.findall(r"\d+", sizes),
        )


def _of_trtllm(row: Row, attention_dp: int) -> dict[str, str]:
    other = f"{row.get('other_flags', '')} {row.get('data_parallel', '')}"
    found = {"enable_attention_dp": "true"} if attention_dp > 1 else {}
    graphs = row.get("cuda_graph", "").rpartition("decode ")[2]
    if graphs.startswith("["):
        found["cuda_graph_config.batch_sizes"] = graphs.partition("]")[0] + "]"
    if "padded" in graphs:
        found["cuda_graph_config.enable_padding"] = "true"
    for name in ("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio"):
        if value := re.search(rf"{name}=([\d.]+)", other):
            found[name] = value[1]
    if '"enable_balance": true' in other:
        found["attention_dp_config.enable_balance"] = "true"
        if value := re.search(r'"timeout_iters": (\d+)', other):
            found["attention_dp_config.timeout_iters"] = value[1]
    return found


def _nested(options: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Options with dotted names, as those of a mapping in a line."""
    inner: dict[str, dict[str, str]] = {}
    for name, value in options.items():
        section, dot, leaf = name.partition(".")
        if not dot:
            yield name, value
        else:
            inner.setdefault(section, {})[leaf] = value
    for section, leaves in inner.items():
        yield section, "{" + ", ".join(f"{leaf}: {value}" for leaf, value in leaves.items()) + "}"
