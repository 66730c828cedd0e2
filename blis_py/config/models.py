"""The configuration of a run as data: frozen dataclasses, named exactly as the YAML keys.

Annotations are evaluated here and no later: every run reads them several times, and text would take long.
"""

from dataclasses import field, fields, is_dataclass
from typing import Any

from blis_py.config.cluster import AdmissionSection, GatewaySection, RoutingSection
from blis_py.config.diffusion import DLLM, DllmSection
from blis_py.config.disaggregation import DisaggregationSection
from blis_py.config.kinds import KindSection
from blis_py.config.latency import LatencySection
from blis_py.config.pools import PoolSection
from blis_py.config.workload import WorkloadSection
from blis_py.core.bounds import MAX_INSTANCES, MAX_SEED
from blis_py.core.config import (
    Aging,
    Batching,
    LateStops,
    Memory,
    Overlap,
    PassRules,
    PrefixCaching,
    ReleaseRules,
    queue_order,
)
from blis_py.core.flag_texts import numbers
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import extended, setting

_HOUR_MS = 3.6e6
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
class SchedulerSection(
    Aging, PassRules, ReleaseRules, LateStops, Overlap, PrefixCaching, Memory, Batching, _Policy
):
    """One instance's scheduler and memory, under vLLM's names."""


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
        aliases=("--tensor-parallel-size", "--tp-size", "-tp"),
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
    groups possible that do not divide the experts. Which experts are copied, and where copies are, follows
    from a measured load (`latency.expert_load`); without one their load changes nothing."""
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
    """GB/s that a GPU of an instance sends to the others, on paper, below 200 over PCIe; null = what the
    GPU's profile says."""
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
        help="Delay before the engine, behind it, of each sequence, of each prompt token.",
        metavar="MS,MS,MS,MS",
        group="Latency",
    )
    """Delays of the API server: in front of the engine and, if given, behind it, and what each sequence that
    gets tokens at the same time and each token of the prompt add to the latter; null = those of the latency
    model."""
    memory: str = setting("blis", choices=("blis", "vllm", "sglang", "trtllm"))
    """Accounting of GPU memory that decides how many KV blocks there are; see `hardware.memory_overheads`."""
    graph_memory_gib: float | None = setting(
        None,
        least=0,
        most=1024,
        flag="--graph-memory-gib",
        help="CUDA graphs that vLLM counts before it sizes the KV cache, per GPU.",
        metavar="GIB",
        group="Model and hardware",
    )
    """CUDA graphs of a GPU that are counted before the KV cache is sized, as the log of the server says;
    null = what is typical of the release: none before vLLM 0.20."""
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
