"""The configuration of a run as data: frozen dataclasses, named exactly as the YAML keys.

Annotations are evaluated here and no later: every run reads them several times, and text would take long.
"""

from dataclasses import field, fields, is_dataclass, replace
from typing import Any

from blis_py.config.cluster import AdmissionSection, GatewaySection, RoutingSection
from blis_py.config.diffusion import DLLM, DllmSection
from blis_py.config.disaggregation import DisaggregationSection
from blis_py.config.kinds import KindSection
from blis_py.config.pools import PoolSection
from blis_py.config.workload import WorkloadSection
from blis_py.core.bounds import MAX_INSTANCES, MAX_SEED
from blis_py.core.config import (
    Aging,
    Batching,
    LateStops,
    Memory,
    Overlap,
    PrefixCaching,
    queue_order,
)
from blis_py.core.flag_texts import numbers, whole_numbers
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import extended, setting

_HOUR_US, _HOUR_MS = 3.6e9, 3.6e6
DEFAULT_ENGINE, PLAIN_ENGINE = "vllm", "blis"


def _largest_is_never(name: str, value: str) -> str | None:
    """None for the largest 64-bit number, BLIS's default horizon."""
    return None if value == str(2**63 - 1) else value


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _Policy:
    """The order of the waiting queue, under its name in YAML."""

    policy: str = queue_order()
    """Order of the waiting queue (`--scheduler`)."""


@dataclass(frozen=True, kw_only=True)
class SchedulerSection(Aging, LateStops, Overlap, PrefixCaching, Memory, Batching, _Policy):
    """One instance's scheduler and memory, under vLLM's names."""


@dataclass(frozen=True, kw_only=True)
class LatencySection:
    """Step times."""

    model: str = setting(
        "trained-physics",
        flag="--latency-model",
        help="trained, trained-physics, roofline, kernel-tables, fitted, linear.",
    )
    """Model that prices a step: trained, trained-physics, roofline, kernel-tables, fitted or linear."""
    alpha_coeffs: tuple[float, ...] | None = setting(
        None, flag="--alpha-coeffs", help="Three front-end delays, µs.", metavar="A,A,A", read=numbers
    )
    """Three, of `trained-physics`, µs: before enqueue, at the end, per output token."""
    beta_coeffs: tuple[float, ...] | None = setting(
        None, flag="--beta-coeffs", help="Coefficients of trained-physics.", metavar="B,B,…", read=numbers
    )
    """Seven to eleven, of `trained-physics`; given together with `alpha_coeffs`."""
    linear: dict[str, dict[str, float]] = field(default_factory=dict)
    """Coefficients of the `linear` model, ns: parts `gpu`, `host`, `frontend`, each by feature."""
    step_scale: float = setting(1.0, above=0, most=1000)
    """The GPU time of every step of `trained` is multiplied by it: how much slower your server is."""
    step_gap_us: tuple[float, ...] = setting((), least=0, most=_HOUR_US)
    """Between two steps of `trained`, on top of its own: per step and, if there are two, per sequence, µs;
    a third is the number of sequences from which the latter does not grow any further."""
    kernel_profile: str | None = setting(
        None, flag="--kernel-profile", help="Measured kernels of kernel-tables.", metavar="DIR"
    )
    """Folder of kernel times measured layer by layer, of the `kernel-tables` model."""
    kernels: str = setting("vllm", choices=("vllm", "sglang", "trtllm"))
    """Engine whose kernels `trained` prices, as far as they were measured."""
    moe_backend: str = setting(
        "auto",
        choices=(
            "auto",
            "trtllm",
            "flashinfer_trtllm",
            "cutlass",
            "flashinfer_cutlass",
            "deepgemm",
            "deepep",
            "triton",
            "marlin",
        ),
        flag="--moe-backend",
        aliases=("--moe-runner-backend",),
        help="Kernels of experts that the server is set to.",
    )
    """Kernels of experts that the server is set to, where several were measured; auto = the engine's
    default."""
    fused_norms: bool = setting(
        False,
        flag="--fused-norms",
        aliases=("--enable-flashinfer-allreduce-fusion",),
        help="All-reduces add the residual and normalise, too.",
    )
    """Whether an all-reduce of few tokens adds the residual and normalises, too, which then take no kernels
    of their own."""
    cuda_graphs: bool = setting(
        True,
        flag="--cuda-graphs",
        off="--enforce-eager",
        off_aliases=("--disable-cuda-graph",),
        help="Decode steps replay CUDA graphs.",
        off_help="No CUDA graphs: every step launches its kernels.",
    )
    """Whether decode steps of `trained` replay CUDA graphs, which engines capture for some sizes only."""
    cuda_graph_max_size: int | None = setting(
        None,
        least=1,
        most=8192,
        flag="--cuda-graph-max-size",
        aliases=("--cuda-graph-max-bs", "--max-cudagraph-capture-size"),
        help="Largest batch with a CUDA graph.",
    )
    """Largest batch for which a graph is captured; null = the engine's default. Larger ones run
    eagerly. Under vLLM it is the largest step with prompts that launches nothing, too."""
    cuda_graph_sizes: tuple[int, ...] = setting(
        (),
        least=1,
        most=8192,
        flag="--cuda-graph-sizes",
        aliases=("--cuda-graph-bs", "--cudagraph-capture-sizes"),
        help="Batch sizes with a CUDA graph, in place of the engine's own.",
        metavar="N,N,…",
        read=whole_numbers,
    )
    """Batch sizes for which graphs are captured; none = the engine's own."""
    cuda_graph_padding: bool = setting(
        True,
        flag="--cuda-graph-padding",
        off="--disable-cuda-graph-padding",
        help="Batches are padded to the next size with a CUDA graph.",
        off_help="Batches of another size run eagerly.",
    )
    """Whether a batch is padded to the next size that has a graph (`enable_padding` of TensorRT-LLM);
    otherwise it runs eagerly."""
    profile: str | None = setting(
        None, flag="--profile", help="Measured step times; implies fitted.", metavar="DIR"
    )
    """Folder of step times measured by the engine, of the `fitted` model, which it implies; or the name of a
    bundled one."""
    mask_row_us: float | None = setting(
        None,
        least=0,
        most=_HOUR_US,
        flag="--mask-row-us",
        help="Structured outputs: host time of a row's mask.",
    )
    """Structured outputs: host time for the mask of a constrained row; null = as measured by the profile,
    else nothing."""
    mask_step_us: float | None = setting(
        None, least=0, most=_HOUR_US, flag="--mask-step-us", help="The same of a step that has such rows."
    )
    """The same for each step that has such rows, whatever their number."""
    scan_us: float | None = setting(
        None,
        least=0,
        most=_HOUR_US,
        flag="--scan-us",
        help="With lpm: host time to look up one waiting request.",
    )
    """With `lpm`, `hrrn`, `dfs-weight`: host time for each waiting request that is looked up in the prefix
    cache to plan a step; null = as measured by the profile, else nothing."""

    kernel_compile_ms: float = setting(
        0.0,
        least=0,
        most=_HOUR_MS,
        flag="--kernel-compile-ms",
        help="A server that was not warmed up: time to compile kernels of chunked prompts.",
    )
    """A server that was not warmed up: time by which its first step with a prompt in pieces, or with a cached
    beginning, takes longer, because the kernels for it are compiled then; 0 = they are there."""

    def under(self, model: str) -> "LatencySection":
        """The same with another model, without what is of the one here alone."""
        bare = LatencySection()
        dropped = {name: getattr(bare, name) for name, owner in _OF_ONE_MODEL.items() if owner != model}
        return replace(self, model=model, **dropped)


_OF_ONE_MODEL = {
    "alpha_coeffs": "trained-physics",
    "beta_coeffs": "trained-physics",
    "linear": "linear",
    "step_scale": "trained",
    "kernels": "trained",
    "moe_backend": "trained",
    "fused_norms": "trained",
    "cuda_graphs": "trained",
    "cuda_graph_max_size": "trained",
    "cuda_graph_sizes": "trained",
    "cuda_graph_padding": "trained",
    "step_gap_us": "trained",
    "kernel_profile": "kernel-tables",
    "profile": "fitted",
}
"""Settings of step times -> the model that they are of."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings that determine the outcome of a run."""

    engine: str = setting(
        DEFAULT_ENGINE,
        flag="--engine",
        help="Whose engine: vllm (default), vllm-0.12, sglang, trtllm, blis, … or a YAML file.",
        metavar="NAME",
    )
    """Engine that is simulated: a preset under `profiles/engines`, or a file like those. Its
    values are the defaults of settings that are not given elsewhere."""
    model: str | None = setting(
        None, flag="--model", help="Model: a bundled name or its HuggingFace spelling."
    )
    """A bundled model (`blis models`) or its HuggingFace spelling."""
    model_config: str | None = setting(
        None,
        flag="--model-config",
        aliases=("--model-config-folder",),
        help="HuggingFace config.json of any other model.",
        metavar="FILE",
    )
    """Path of a HuggingFace `config.json`; null = the bundled shape of `model`."""
    gpu: str = setting(
        "h100", flag="--gpu", aliases=("--hardware",), help="GPU: a bundled name or a YAML file."
    )
    """A bundled GPU (`blis gpus`), or a YAML file like theirs."""
    tp: int = setting(
        1,
        least=1,
        most=4096,
        flag="--tp",
        aliases=("--tensor-parallel-size", "-tp"),
        help="Tensor-parallel degree.",
    )
    """GPUs of an instance: the tensor-parallel degree."""
    attention_dp: int = setting(
        1,
        least=1,
        most=4096,
        flag="--attention-dp",
        aliases=("--dp-size",),
        help="Replicas of attention among the GPUs of an instance (attention DP).",
    )
    """Replicas of attention among the GPUs of an instance, each with requests and KV of its own. All step
    together; the experts take the tokens of all. `max_num_seqs` and `max_num_batched_tokens` are of a
    replica."""
    ep: int = setting(
        1,
        least=1,
        most=4096,
        flag="--ep",
        aliases=("--ep-size", "--expert-parallel-size"),
        help="Groups of GPUs among which the experts are distributed (expert parallelism).",
    )
    """Groups of an instance's GPUs among which the experts are distributed; within a group each expert is
    split. 1 = all experts are split over all GPUs."""
    redundant_experts: int = setting(
        0,
        least=0,
        most=4096,
        flag="--redundant-experts",
        aliases=("--ep-num-redundant-experts", "--num-redundant-experts"),
        help="Copies of busy experts, with expert parallelism.",
    )
    """Copies of busy experts in each layer, beside the model's own; they take memory, and make numbers of
    groups possible that do not divide the experts. The load of groups is taken as equal, with or without."""
    attention_dp_timeout_iters: int = setting(
        0,
        least=0,
        most=100_000,
        flag="--attention-dp-timeout-iters",
        help="Attention DP of trtllm: most steps that prompts wait for one on every replica; 0 = none.",
    )
    """With `in-flight` batches: most steps that prompts wait until every replica of attention has one
    (`enable_balance` of TensorRT-LLM); 0 = they do not wait."""
    kv_cache_dtype: str = setting(
        "auto",
        choices=("auto", "bfloat16", "fp8", "fp8_e4m3"),
        flag="--kv-cache-dtype",
        help="Number format of the KV cache: auto (the checkpoint's), bfloat16, fp8.",
    )
    """Number format of the KV cache; auto = as the checkpoint says, else 16 bits."""
    link_gbps: float | None = setting(
        None,
        above=0,
        most=1e6,
        flag="--link-gbps",
        help="GB/s between the GPUs of an instance, each way. Default the GPU's.",
    )
    """GB/s that a GPU of an instance sends to the others, on paper; null = what the GPU's profile says."""
    num_instances: int = setting(
        1, least=1, most=MAX_INSTANCES, flag="--num-instances", help="Instances behind the router."
    )
    pools: tuple[PoolSection, ...] = ()
    """Pools of unlike instances, all behind the router, instead of `num_instances` alike ones; each overrides
    some of `engine`, `gpu`, `tp`, `link_gbps`, `memory`, `scheduler` and `latency`."""
    links: tuple[dict[str, Any], ...] = ()
    """Links between two pools that differ from those of `disaggregation`: `from`, `to`, and `link`,
    `bandwidth_gbps`, `latency_ms`, `efficiency`, `node_gbps`, `contended`."""
    seed: int | None = setting(
        None,
        least=0,
        most=MAX_SEED,
        flag="--seed",
        help="Seed of everything random. Default 42.",
        group="Run",
    )
    """null = the spec's own, else 42."""
    horizon: str | int | None = setting(
        None,
        least=1,
        flag="--horizon",
        read=_largest_is_never,
        help="When to stop: 60s, 10m, or µs. By default, when all is done.",
        group="Run",
    )
    """Simulated time at which to stop: "60s", "10m", or a plain number of µs; null = when all is done."""
    drain: bool = setting(
        False, flag="--drain", help="Go on after a workload spec's horizon until all is done.", group="Run"
    )
    """The horizon of a workload spec ends the load only: what is under way then goes on until it ends."""
    frontend_ms: tuple[float, ...] | None = setting(
        None,
        least=0,
        most=_HOUR_MS,
        flag="--frontend-ms",
        read=numbers,
        help="Delay in front of the engine, behind it, and its growth with each sequence.",
        metavar="MS,MS,MS",
        group="Latency",
    )
    """Delays of the API server: in front of the engine and, if given, behind it, and what each sequence that
    gets tokens at the same time adds to the latter; null = those of the latency model."""
    memory: str = setting("blis", choices=("blis", "vllm", "sglang", "trtllm"))
    """Accounting of GPU memory that decides how many KV blocks there are; see `hardware.memory_overheads`."""
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    latency: LatencySection = field(default_factory=LatencySection)
    workload: WorkloadSection = setting(
        factory=WorkloadSection,
        flag="--workload",
        help="Preset, bundled workload, or spec file.",
        metavar="NAME|FILE",
        group="Workload",
    )
    routing: RoutingSection = field(default_factory=RoutingSection)
    admission: AdmissionSection = field(default_factory=AdmissionSection)
    gateway: GatewaySection = field(default_factory=GatewaySection)
    disaggregation: DisaggregationSection = field(default_factory=DisaggregationSection)
    dllm: DllmSection = field(default_factory=DllmSection)
    slo: tuple[str, ...] = setting(
        (), flag="--slo", help="Target: ttft.p99=500ms (repeatable).", metavar="TARGET", group="Run"
    )
    """Targets such as `ttft.p99=500ms`."""
    goodput: tuple[str, ...] = setting(
        (),
        flag="--goodput",
        help="What a good request meets: ttft:500 tpot:50 (ms).",
        metavar="TARGET",
        group="Run",
    )
    """Targets every request should meet, such as `ttft:500` (ms)."""
    goodput_by_class: dict[str, str] = field(default_factory=dict)
    """More of them by SLO class, for `ttft`, `itl` and `e2e`: `critical=100ms,standard=500ms`."""
    given: tuple[str, ...] | None = field(default=None, compare=False)
    """Written, not set: the keys that a user set. The values of all others follow from these, from the
    engine, the GPU and the profile, and follow anew where one of those is set to something else; null =
    unknown."""

    @property
    def instances(self) -> int:
        """Number of instances in all pools."""
        return sum(pool.count for pool in self.all_pools) if self.all_pools else self.num_instances

    @property
    def all_pools(self) -> tuple[PoolSection, ...]:
        """The pools as written, or those of prefill and decode; empty = one of `num_instances`."""
        return self.pools or self.disaggregation.pools()

    @property
    def is_disaggregated(self) -> bool:
        """Whether there is a pool for prefill or for decode alone."""
        return any(pool.role != "both" for pool in self.all_pools)


SECTIONS: dict[str, type[Any]] = {
    f.name: f.type for f in fields(RunConfig) if isinstance(f.type, type) and is_dataclass(f.type)
}
"""The sections by their keys."""
KIND_SECTIONS: dict[str, KindSection] = {"dllm": DLLM}
"""Those among them that are of a kind of requests."""
DESCRIPTIONS = tuple(f"{name}.{kind.description}" for name, kind in KIND_SECTIONS.items())
"""Settings that name a description of all requests."""


def descriptions(config: RunConfig) -> tuple[str | None, ...]:
    """The values of `DESCRIPTIONS`."""
    return tuple(getattr(getattr(config, name), kind.description) for name, kind in KIND_SECTIONS.items())


def _names() -> dict[str, str]:
    """The flag of every setting without dashes; of most also the key without its section."""
    by_key: dict[str, type[Any]] = {
        **{f"{key}.": section for key, section in SECTIONS.items()},
        "": RunConfig,
    }
    key_of: dict[str, str] = {}
    for section in ("scheduler.", "workload."):
        key_of |= {f.name: f"{section}{f.name}" for f in fields(extended(by_key[section]))}
    for name in KIND_SECTIONS:
        key_of |= {f"{name}_{f.name}": f"{name}.{f.name}" for f in fields(extended(SECTIONS[name]))}
    del key_of["policy"], key_of["timeout_s"]
    known = set(key_of.values())
    for prefix, model in by_key.items():
        for each in fields(extended(model)):
            key = f"{prefix}{each.name}"
            spelling = each.metadata.get("spelling")
            if not prefix:
                if each.name != "given":
                    key_of[each.name] = key
            elif spelling is not None and key not in known:
                key_of[spelling.flag.removeprefix("--").replace("-", "_")] = key
    return key_of | {"linear": "latency.linear", "slo_priorities": "admission.slo_priorities"} | _CHOSEN


_CHOSEN = {"scheduler": "scheduler.policy", "workload": "workload", "workload_spec": "workload.spec"}
"""Flags named as their sections, and a second name."""
NAMES = _names()
"""Short names, of flags and of keyword arguments, and the key each one sets."""
