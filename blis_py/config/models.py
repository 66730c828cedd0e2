"""The configuration of a run as data: frozen dataclasses, named exactly as the YAML keys.

Annotations are evaluated here and no later: every run reads them several times, and text would take long.
"""

from dataclasses import dataclass, field, fields, replace

from blis_py.config.cluster import AdmissionSection, GatewaySection, RoutingSection
from blis_py.config.layers import setting
from blis_py.config.workload import WorkloadSection
from blis_py.core.bounds import (
    LAST_NS,
    MOST_INSTANCES,
    MOST_KV_BLOCKS,
    MOST_SEED,
    MOST_TOKENS,
    SECOND_NS,
)
from blis_py.core.caches import PREFIX_CACHES
from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.policies import PREEMPTION_POLICIES, SCHEDULERS

_LAST_S, _LAST_MS, _LAST_US = LAST_NS / SECOND_NS, LAST_NS / 10**6, LAST_NS // 1000
_HOUR_US, _HOUR_MS = 3.6e9, 3.6e6
DEFAULT_ENGINE, PLAIN_ENGINE = "vllm", "blis"


@dataclass(frozen=True, kw_only=True)
class SchedulerSection:
    """One instance's scheduler and memory, under vLLM's names."""

    policy: str = setting("fcfs", choices=SCHEDULERS)
    """Order of the waiting queue (`--scheduler`)."""
    preemption_policy: str = setting("fcfs", choices=PREEMPTION_POLICIES)
    """Who gives up KV blocks when they run out: the latest admitted, or the least urgent."""
    batch_former: str = setting("running-first", choices=("running-first", "prefill-first"))
    """Whose tokens come first in a step: decodes and begun prompts (vLLM), or new prompts."""
    max_num_seqs: int = setting(256, least=1, most=MOST_TOKENS)
    """Requests that run at once on an instance, at most."""
    max_num_batched_tokens: int = setting(2048, least=1, most=MOST_TOKENS)
    """Tokens that a step computes, at most: the budget."""
    long_prefill_token_threshold: int = setting(0, least=0, most=MOST_TOKENS)
    """0 = no limit on a prefill chunk but the token budget."""
    block_size: int = setting(16, least=1, most=MOST_TOKENS)
    """Tokens of a KV block."""
    num_kv_blocks: int | None = setting(None, least=1, most=MOST_KV_BLOCKS)
    """null = what fits in the GPU's memory."""
    gpu_memory_utilization: float = setting(0.9, above=0, most=1)
    """Share of the GPU memory that weights, activations and KV blocks may take."""
    max_model_len: int | None = setting(None, least=1, most=MOST_TOKENS)
    """null = the model's own, as far as the KV cache holds it."""
    prefix_cache: str = setting("hash", choices=PREFIX_CACHES)
    """`hash` as in vLLM, `radix` as in SGLang, `none`."""
    enable_prefix_caching: bool = True
    """false is vLLM's way to say `prefix_cache: none`."""
    radix_eviction_policy: str = setting("lru", choices=EVICTION_POLICIES)
    """With `radix`: which cached prefix that nobody uses is given up first."""
    fairness_ms: float | None = setting(None, least=0, most=_LAST_MS)
    """With `lpm`, `hrrn`, `dfs-weight`: who has waited this long goes first, by arrival; null = never."""
    fairness_tokens: int | None = setting(None, least=0, most=MOST_TOKENS)
    """The same, by the prefill tokens that the instance has computed since the request came."""
    lpm_max_queue: int = setting(128, least=1, most=MOST_TOKENS)
    """With `lpm`, `hrrn`, `dfs-weight`: with more requests waiting the order is that of arrival."""
    in_batch_sharing_tokens: int | None = setting(32, least=1, most=MOST_TOKENS)
    """With `lpm`, `hrrn`, `dfs-weight`: whoever shares so many uncached tokens with a prompt that is being
    computed waits until they are; null = nobody."""
    async_scheduling: bool = False
    """A step is planned and launched before the outcome of the one before it is known."""
    late_length_stops: bool = False
    """With it: that a request has reached its length is learnt from the outcome too, as in SGLang."""
    sjf_aging_ms: float | None = setting(None, above=0, most=_LAST_MS)
    """With `sjf`: a request that has waited this long goes first; null = never."""


@dataclass(frozen=True, kw_only=True)
class LatencySection:
    """What prices a step."""

    model: str = "trained-physics"
    """What prices a step: trained, trained-physics, roofline, kernel-tables, fitted or linear."""
    alpha_coeffs: tuple[float, ...] | None = setting(None)
    """Three, of `trained-physics`, µs: before enqueue, at the end, per output token."""
    beta_coeffs: tuple[float, ...] | None = setting(None)
    """Seven to eleven, of `trained-physics`; given together with `alpha_coeffs`."""
    linear: dict[str, dict[str, float]] = field(default_factory=dict)
    """Coefficients of the `linear` model, ns: parts `gpu`, `host`, `frontend`, each by feature."""
    step_scale: float = setting(1.0, above=0, most=1000)
    """The GPU time of every step of `trained` is multiplied by it: how much slower your server is."""
    step_gap_us: tuple[float, ...] = setting((), least=0, most=_HOUR_US)
    """Between two steps of `trained`, on top of its own: per step and, if there are two, per sequence, µs."""
    kernel_profile: str | None = None
    """Folder of kernel times measured layer by layer, of the `kernel-tables` model."""
    profile: str | None = None
    """Folder of step times measured by the engine, of the `fitted` model, which it implies; or the name of a
    bundled one."""
    mask_row_us: float | None = setting(None, least=0, most=_HOUR_US)
    """Structured outputs: host time for the mask of a constrained row; null = as measured by the profile,
    else nothing."""
    mask_step_us: float | None = setting(None, least=0, most=_HOUR_US)
    """The same for each step that has such rows, whatever their number."""
    scan_us: float | None = setting(None, least=0, most=_HOUR_US)
    """With `lpm`, `hrrn`, `dfs-weight`: host time for each waiting request that is looked up in the prefix
    cache to plan a step; null = as measured by the profile, else nothing."""

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
    "step_gap_us": "trained",
    "kernel_profile": "kernel-tables",
    "profile": "fitted",
}
"""Settings of step times -> the model that they are of."""


@dataclass(frozen=True, kw_only=True)
class DllmSection:
    """Block diffusion: how the blocks of a workload of `kind: diffusion` are executed."""

    workload: str | None = None
    """YAML with `kind: diffusion` that holds for all requests of a trace, or of the flags."""
    algorithm: str | None = None
    """Whose step counts to take, where the workload has those of several; null = the first."""
    config: str | None = None
    """YAML with parameters of the algorithm that its step counts must have been measured with."""
    fdfo: bool = True
    """First done, first out; false = a batch runs until all its blocks are final."""
    in_place_reuse: bool = True
    """An unfinished block keeps its request slot and KV blocks."""
    re_loop: bool = True
    """Another round without the scheduler while no block is final and nobody can come in."""
    schedule_us: float = setting(0.0, least=0, most=_HOUR_US)
    """Host time of a return to the scheduler, on top of the latency model's steps: what `re_loop` saves."""
    allocator_call_us: float = setting(0.0, least=0, most=_HOUR_US)
    """Host time to take or give back a slot or KV blocks: what `in_place_reuse` saves."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides the outcome of a run."""

    engine: str = DEFAULT_ENGINE
    """Whose engine is simulated: a preset under `profiles/engines`, or a file like those. What it says of
    settings holds where nobody else gives them."""
    model: str | None = None
    """A bundled model (`blis models`) or its HuggingFace spelling."""
    model_config: str | None = None
    """Path of a HuggingFace `config.json`; null = the bundled shape of `model`."""
    gpu: str = "h100"
    """A bundled GPU (`blis gpus`), or a YAML file like theirs."""
    tp: int = setting(1, least=1, most=4096)
    """GPUs of an instance: the tensor-parallel degree."""
    link_gbps: float | None = setting(None, above=0, most=1e6)
    """GB/s that a GPU of an instance sends to the others, on paper; null = what the GPU's profile says."""
    num_instances: int = setting(1, least=1, most=MOST_INSTANCES)
    """Instances behind the router."""
    seed: int | None = setting(None, least=0, most=MOST_SEED)
    """null = the spec's own, else 42."""
    horizon: str | int | None = setting(None, least=1)
    """Simulated time at which to stop: "60s", "10m", or a plain number of µs; null = when all is done."""
    drain: bool = False
    """The horizon of a workload spec ends the load only: what is under way then goes on until it ends."""
    frontend_ms: tuple[float, ...] | None = setting(None, least=0, most=_HOUR_MS)
    """Delays of the API server: in front of the engine and, if given, behind it, and what each sequence that
    gets tokens at the same time adds to the latter; null = those of the latency model."""
    memory: str = setting("blis", choices=("blis", "vllm"))
    """Whose accounting of GPU memory decides how many KV blocks there are; see `latency.memory_overheads`."""
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    latency: LatencySection = field(default_factory=LatencySection)
    workload: WorkloadSection = field(default_factory=WorkloadSection)
    routing: RoutingSection = field(default_factory=RoutingSection)
    admission: AdmissionSection = field(default_factory=AdmissionSection)
    gateway: GatewaySection = field(default_factory=GatewaySection)
    dllm: DllmSection = field(default_factory=DllmSection)
    slo: tuple[str, ...] = ()
    """Targets such as `ttft.p99=500ms`."""
    goodput: tuple[str, ...] = ()
    """Targets every request should meet, such as `ttft:500` (ms)."""
    goodput_by_class: dict[str, str] = field(default_factory=dict)
    """More of them by SLO class, for `ttft`, `itl` and `e2e`: `critical=100ms,standard=500ms`."""
    given: tuple[str, ...] | None = field(default=None, compare=False)
    """Written, not set: the keys that a user set. The values of all others follow from these, from the
    engine, the GPU and the profile, and follow anew where one of those is set to something else; null =
    unknown."""


NAMES: dict[str, str] = {
    **{f.name: f"scheduler.{f.name}" for f in fields(SchedulerSection) if f.name != "policy"},
    **{f.name: f"workload.{f.name}" for f in fields(WorkloadSection) if f.name != "timeout_s"},
    **{f"dllm_{f.name}": f"dllm.{f.name}" for f in fields(DllmSection)},
    **{f.name: f.name for f in fields(RunConfig) if f.name != "given"},
    "scheduler": "scheduler.policy",
    "latency_model": "latency.model",
    "linear": "latency.linear",
    "kernel_profile": "latency.kernel_profile",
    "profile": "latency.profile",
    "mask_row_us": "latency.mask_row_us",
    "mask_step_us": "latency.mask_step_us",
    "scan_us": "latency.scan_us",
    "alpha_coeffs": "latency.alpha_coeffs",
    "beta_coeffs": "latency.beta_coeffs",
    "timeout": "workload.timeout_s",
    "workload_spec": "workload.spec",
    "workload": "workload",
    "routing_policy": "routing.policy",
    "routing_latency": "routing.latency_us",
    "routing_scorers": "routing.scorers",
    "snapshot_refresh_interval": "routing.snapshot_refresh_interval_us",
    "cache_signal_delay": "routing.cache_signal_delay_us",
    "any_model": "routing.any_model",
    "trace_level": "routing.trace_level",
    "counterfactual_k": "routing.counterfactual_k",
    "admission_policy": "admission.policy",
    "admission_latency": "admission.latency_us",
    **{
        f.name: f"admission.{f.name}"
        for f in fields(AdmissionSection)
        if f.name not in ("policy", "latency_us", "slo_priorities")
    },
    "slo_priorities": "admission.slo_priorities",
    **{f.name.removesuffix("_us"): f"gateway.{f.name}" for f in fields(GatewaySection)},
}
"""Short names, of flags and of keyword arguments, and the key each one sets."""
