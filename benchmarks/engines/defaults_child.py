"""Defaults that an engine derives from its GPU, by functions of its own from an unpacked wheel.

    python -I -S -B defaults_child.py ROOT RULE < questions.json

Each function is taken out of its module, which needs far more than it, and run with stand-ins for the rest.
Questions and answers are JSON objects. Runs in a bare interpreter, so this file imports the standard library
alone, and its neighbours.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.engines import child_loop, config_defaults, stand_ins
from benchmarks.engines.vllm_config import Section

_MAX_BYTES = 2 << 30
_GIB = 1 << 30
Question = dict[str, Any]


class _Builtins(dict[str, Any]):
    """Builtins of a function on its own: names of its module that are not given are stand-ins."""

    def __missing__(self, name: str) -> Any:
        return stand_ins.stand_in(name)


def _declare(server: Any, who: str, **found: Any) -> None:
    """Note values that SGLang derives."""
    for name, value in found.items():
        setattr(server, name, value)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Accept anything."""


def functions(path: Path, names: dict[str, Any], *wanted: str) -> dict[str, Any]:
    """Functions and methods of a module by name, without decorators.

    Args:
        names: what they find under names of their module.
    """
    namespace = {"__builtins__": _Builtins(vars(builtins)), "logger": Section(warning=_nothing), **names}
    exec(_compiled(path, wanted), namespace)  # the engine's own source
    return namespace


@cache
def _compiled(path: Path, wanted: tuple[str, ...]) -> CodeType:
    found = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]
    for node in found:
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
    return compile(ast.Module(list(found), []), str(path), "exec")


@cache
def _defaults(path: Path) -> dict[str, Any]:
    return config_defaults.of_path(path).get("ServerArgs", {})


def vllm_limits(root: Path, question: Question) -> Question:
    """`max_num_batched_tokens` and `max_num_seqs` of an API server, on a GPU with a name, memory in bytes and
    compute capability."""
    platform = Section(
        get_device_total_memory=lambda: question["memory_bytes"],
        get_device_name=lambda: question["name"],
        is_device_capability=lambda capability: list(capability) == question["capability"],
        is_tpu=lambda: False,
        is_cpu=lambda: False,
    )
    names = {"current_platform": platform, "GiB_bytes": _GIB}
    module = functions(root / "vllm" / "engine" / "arg_utils.py", names, "get_batch_defaults")
    tokens, seqs = module["get_batch_defaults"](None, 1)
    return {"tokens": tokens["server"], "seqs": seqs["server"]}


def vllm_graphs(root: Path, question: Question) -> Question:
    """Batches with a CUDA graph, by limits of a step and compute capability."""
    major = question["capability"][0]
    platform = Section(is_device_capability_family=lambda family: family == 10 * major)
    sys.modules["vllm.platforms"].current_platform = platform  # type: ignore[attr-defined]
    server = Section(
        model_config=Section(enforce_eager=False),
        compilation_config=Section(
            cudagraph_mode="full", pass_config=Section(), post_init_cudagraph_sizes=_nothing
        ),
        scheduler_config=Section(max_num_seqs=question["seqs"], max_num_batched_tokens=question["tokens"]),
        parallel_config=Section(tensor_parallel_size=1),
        num_speculative_tokens=0,
        uniform_decode_query_len=1,
        performance_mode="balanced",
    )
    names = {"CUDAGraphMode": SimpleNamespace(NONE="none")}
    module = functions(root / "vllm" / "config" / "vllm.py", names, "_set_cudagraph_sizes")
    module["_set_cudagraph_sizes"](server)
    return {"sizes": server.compilation_config.cudagraph_capture_sizes}


def vllm_ranks(root: Path, question: Question) -> Question:
    """The rank of a new request, by requests waiting and running and share of KV in use of each rank."""
    ranks = range(len(question["loads"]))
    client = Section(
        lb_engines=[load[: question["fields"]] for load in question["loads"]],
        engine_inflight={rank: sum(question["loads"][rank][:2]) for rank in ranks},
        core_engines=list(ranks),
        reqs_in_flight={},
        streaming_reqs=set(),
        client_count=1,
        eng_start_index=question["turn"],
    )
    names = {"sys": sys, "get_late_interaction_engine_index": lambda *_: None}
    path = root / "vllm" / "v1" / "engine" / "core_client.py"
    choose = functions(path, names, "get_core_engine_for_request")["get_core_engine_for_request"]
    return {"rank": choose(client, Section(request_id="r"))}


class _Server(Section):
    """Arguments of SGLang, and the methods by which they are derived."""

    def __init__(self, question: Question, methods: dict[str, Any], defaults: dict[str, Any]) -> None:
        literals = {key: value for key, value in defaults.items() if value != config_defaults.NO_LITERAL}
        graphs = Section(decode=Section(backend="on"), prefill=Section(backend="on"))
        own = {
            "tp_size": question["gpus"],
            "pp_size": 1,
            "max_running_requests": question["running"],
            "dp_size": question["replicas"],
            "attn_dp_size": question["replicas"],
            "enable_dp_attention": question["replicas"] > 1,
            "disable_piecewise_cuda_graph": question["replicas"] > 1,
            "device": "cuda",
            "model_path": "model",
            "cuda_graph_config": graphs,
            "use_mla_backend": lambda: question["latent"],
            "get_model_config": lambda: Section(is_multimodal=False),
        }
        super().__init__(**{**literals, **own})
        if question["replicas"] > 1:
            graphs.prefill.backend = "off"
        for name, method in methods.items():
            if name.startswith("_generate"):
                setattr(self, name, lambda *args, own=method: own(self, *args))


_SIZES = (
    *("_generate_decode_cuda_graph_batch_sizes", "_generate_prefill_cuda_graph_batch_sizes"),
    *("_generate_cuda_graph_batch_sizes", "_generate_piecewise_cuda_graph_tokens"),
)


def sglang_memory(root: Path, question: Question) -> Question:
    """Chunk, share of memory and largest graph by memory in MiB, GPUs, replicas and kind of attention."""
    srt = root / "sglang" / "srt"
    names: dict[str, Any] = {
        "Backend": SimpleNamespace(DISABLED="off", BREAKABLE="breakable"),
        "envs": Section(SGLANG_SYMM_MEM_PREALLOC_GB_SIZE=Section(is_set=lambda: True)),
        "copy": SimpleNamespace(deepcopy=lambda config: config),
        "is_npu": lambda: False,
        "get_device_memory_capacity": lambda device: question["memory_mib"],
        "resolving_view": lambda server: server,
        "resolved_view": lambda server: server,
        "declare_resolution": _declare,
        "model_config_of": lambda server: Section(is_multimodal=False),
        "use_mla_backend": lambda server: question["latent"],
        "post_capture_kv_sizing_planned": lambda server: False,
        "attn_dp_enabled_of": lambda server: question["replicas"] > 1,
        "get_platform": lambda: Section(),
        "reserve_for_deepep_a2a_mb": lambda server: 0,
    }
    defaults = _defaults(srt / "server_args.py")
    hook = srt / "arg_groups" / "memory_hook.py"
    if hook.exists():
        server = _Server(question, {}, defaults)
        _hooks(srt)
        module = functions(hook, names, "handle_gpu_memory_settings", "reserve_for_graph_mb")
        module["handle_gpu_memory_settings"](server)
    else:
        module = functions(srt / "server_args.py", names, "_handle_gpu_memory_settings", *_SIZES)
        server = _Server(question, module, defaults)
        module["_handle_gpu_memory_settings"](server, question["memory_mib"])
    graph = server.cuda_graph_config.decode.max_bs or server.cuda_graph_max_bs
    return {"chunk": server.chunked_prefill_size, "share": server.mem_fraction_static, "graph": graph}


def _hooks(srt: Path) -> None:
    """Supply what the hook imports when it runs."""
    sizes = ("generate_decode_cuda_graph_batch_sizes", "generate_prefill_cuda_graph_batch_sizes")
    module = functions(
        srt / "arg_groups" / "cuda_graph_hook.py", {"resolving_view": lambda server: server}, *sizes
    )
    groups = "sglang.srt.arg_groups"
    for name in ("sglang", "sglang.srt", groups, f"{groups}.model_overrides"):
        sys.modules.setdefault(name, stand_ins.StandInModule(name))
    hook = sys.modules[f"{groups}.cuda_graph_hook"] = stand_ins.StandInModule("cuda_graph_hook")
    for name in sizes:
        setattr(hook, name, module[name])
    pictures = sys.modules[f"{groups}.model_overrides.qwen3_vl"] = stand_ins.StandInModule("qwen3_vl")
    pictures.expand_multimodal_decode_graph_to_running_limit = _nothing  # type: ignore[attr-defined]


RULES: dict[str, Callable[[Path, Question], Question]] = {
    "vllm-limits": vllm_limits,
    "vllm-graphs": vllm_graphs,
    "vllm-ranks": vllm_ranks,
    "sglang-memory": sglang_memory,
}


def main() -> None:
    """Answer all questions on stdin."""
    root, rule = Path(sys.argv[1]), RULES[sys.argv[2]]
    child_loop.limit_memory(_MAX_BYTES)
    usage = {"UsageContext": SimpleNamespace(LLM_CLASS="offline", OPENAI_API_SERVER="server")}
    stand_ins.install(str(root), "vllm", (), (), {"vllm.usage.usage_lib": usage})
    import vllm.platforms  # type: ignore[import-not-found]  # noqa: F401 a stand-in that functions import, too

    json.dump([rule(root, question) for question in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
