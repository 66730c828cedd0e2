"""The launch of a measured point, as a script of its engine, read like any user's.

Either the table of launch flags says what its server was started with, which is written as the server takes
it, or AIConfigurator's generator wrote its launch: the scripts in `generated`, which take numbers of the row
as variables.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.launch.reader import Launch, read_launch

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
    "vllm": "vllm serve",
    "sglang": "python3 -m sglang.launch_server --model-path",
    "trtllm": "trtllm-serve",
}
_NO_PREFIX_CACHE = {"vllm": "--no-enable-prefix-caching", "sglang": "--disable-radix-cache"}
_NOT_GIVEN = ("", "default", "-")


_IMAGES = {
    "vllm": "vllm/vllm-openai:v",
    "sglang": "lmsysorg/sglang:v",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:",
}
_OF_DYNAMO = "nvcr.io/nvidia/ai-dynamo/{}-runtime:"
"""Images whose tags are releases of Dynamo, `0.5.1-rc0.pre3`."""
_ROLES = {"sglang": ["--disaggregation-mode"], "trtllm": ["--server_role"]}
BY_GENERATOR = "read (settings of the config file)"
"""Status of servers of a pair whose config file Dynamo's generator wrote: decodes have padded CUDA graphs for
batches up to `max_batch_size`, and the prefill side runs without overlap (`gen_yaml.py`, ai-dynamo/dynamo,
`components/backends/trtllm/performance_sweeps`)."""
_GENERATED = Path(__file__).parent / "generated"


@dataclass(frozen=True)
class LaunchedRow:
    """A row with its launch flags.

    Attributes:
        release: of the engine; empty if the row does not say it.
        model: its checkpoint, by the published name.
        concurrency: requests in flight, `CONC` in the table; limits are of one replica of attention.
        role: phase of a server of a pair, `prefill` or `decode`; empty if it is of both.
    """

    engine: str
    release: str
    model: str
    flags: Row
    tp: int
    attention_dp: int
    ep: int
    concurrency: int
    prompt_tokens: int
    role: str = ""

    def published(self) -> Launch:
        """The launch that the table of flags says."""
        return read_launch([self.script()])

    def generated(self) -> Launch:
        """The launch that AIConfigurator's generator writes."""
        numbers = {"TP": self.tp, "DP": self.attention_dp, "EP": self.ep, "CONC": self.concurrency}
        variables = {name: str(number) for name, number in (*numbers.items(), ("ISL", self.prompt_tokens))}
        variables |= {"RELEASE": self.release, "MODEL": self.model}
        return read_launch([str(_GENERATED / f"{self.engine}.sh")], variables)

    def script(self) -> str:
        """The script that starts its server, by the table of flags."""
        words = [*_START[self.engine].split(), self.model, *_width(self.engine, self.tp, self.attention_dp)]
        words += {
            "vllm": ["--enable-expert-parallel"] if self.ep > 1 else [],
            "sglang": ["--ep", str(self.ep)],
            "trtllm": ["--ep_size", str(self.ep)],
        }[self.engine]
        words += [*_ROLES[self.engine], self.role] if self.role else []
        given = dict(_given(self.engine, self.flags, self.concurrency, self.attention_dp))
        env = [word for word in self.flags.get("env", "").split() if re.fullmatch(r"[A-Z_0-9]+=\S*", word)]
        of_dynamo = _OF_DYNAMO.format(self.engine.replace("trtllm", "tensorrtllm"))
        image = of_dynamo if "-" in self.release else _IMAGES[self.engine]
        image = f"IMAGE={image}{self.release}\n"
        if self.engine == "trtllm":
            of_role = _of_role(self.flags, self.role, given)
            options = _nested({**given, **_of_trtllm(self.flags, self.attention_dp), **of_role})
            text = "\n".join(f"{name}: {value}" for name, value in options)
            line = _line([*env, *words, "--config", "options.yml"])
            return f"{image}cat > options.yml <<'EOF'\n{text}\nEOF\n{line}"
        for name, value in given.items():
            words += [name, value]
        switches = [*_switches(self.engine, self.flags), *(_of_sglang_role(self) if self.role else ())]
        return image + _line([*env, *words, *switches])


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
    if row.get("prefix_cache") == "off":
        yield _NO_PREFIX_CACHE[engine]
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
    if row.get("prefix_cache") == "off":
        found["kv_cache_config.enable_block_reuse"] = "false"
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


def _of_role(row: Row, role: str, given: Mapping[str, str]) -> dict[str, str]:
    """Options of TensorRT-LLM's servers of one phase."""
    found: dict[str, str] = {}
    if row.get("status") == BY_GENERATOR and role == "decode":
        found["cuda_graph_config.enable_padding"] = "true"
        found["cuda_graph_config.max_batch_size"] = given["max_batch_size"]
    by_generator = row.get("status") == BY_GENERATOR and role == "prefill"
    if role and (by_generator or row.get("async_scheduling") == "off"):
        found["disable_overlap_scheduler"] = "true"
    received = re.search(r"max_tokens_in_buffer\W*(\d+)", row.get("kv_transfer", ""))
    if role == "decode" and received:
        found["cache_transceiver_config.max_tokens_in_buffer"] = received[1]
    return found


def _of_sglang_role(launched: LaunchedRow) -> Iterator[str]:
    """Flags of SGLang's servers of one phase."""
    other = launched.flags.get("other_flags", "")
    for name, role in (("max-total-tokens", ""), ("num-reserved-decode-tokens", "decode")):
        number = re.search(rf"\b{name}=(\d+)", other)
        if number and role in ("", launched.role):
            yield from (f"--{name}", number[1])
    if launched.flags.get("async_scheduling") == "off":
        yield "--disable-overlap-schedule"
    if launched.role == "prefill" or "load-balance-method" in other:
        method = re.search(r"load-balance-method=(\w+)", other)
        yield from ("--load-balance-method", method[1]) if method else ()


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
