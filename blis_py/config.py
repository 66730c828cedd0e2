"""The configuration of a run: one frozen model, named exactly as the YAML keys, and its loader.

Layers, later over earlier: defaults, the config file, a policy bundle, flags, `--set`. `RunConfig` is
what remains, and `dump` writes it so that loading it again gives the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from blis_py import data
from blis_py.config_load import Layers, did_you_mean, flatten, setting
from blis_py.core.policies import PREEMPTION_POLICIES, SCHEDULERS
from blis_py.errors import InputError
from blis_py.workload.yamlfile import load_mapping

_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


@dataclass(frozen=True, kw_only=True)
class SchedulerSection:
    """One instance's scheduler and memory, under vLLM's names."""

    policy: str = setting("fcfs", choices=SCHEDULERS)
    """Order of the waiting queue (`--scheduler`)."""
    preemption_policy: str = setting("fcfs", choices=PREEMPTION_POLICIES)
    batch_former: str = setting("running-first", choices=("running-first", "prefill-first"))
    max_num_seqs: int = setting(256, least=1)
    max_num_batched_tokens: int = setting(2048, least=1)
    long_prefill_token_threshold: int = setting(0, least=0)
    """0 = no limit on a prefill chunk but the token budget."""
    block_size: int = setting(16, least=1)
    num_kv_blocks: int | None = setting(None, least=1)
    """null = what fits in the GPU's memory."""
    gpu_memory_utilization: float = setting(0.9, above=0, most=1)
    max_model_len: int | None = setting(None, least=1)
    """null = the model's own, as far as the KV cache holds it."""
    enable_prefix_caching: bool = True
    sjf_aging_ms: float | None = setting(None, above=0)
    """With `sjf`: a request that has waited this long goes first; null = never."""


@dataclass(frozen=True, kw_only=True)
class LatencySection:
    """What prices a step."""

    model: str = "trained-physics"
    alpha_coeffs: tuple[float, ...] | None = setting(None)
    """Three, of `trained-physics`, µs: before enqueue, at the end, per output token."""
    beta_coeffs: tuple[float, ...] | None = setting(None)
    """Seven to eleven, of `trained-physics`; given together with `alpha_coeffs`."""
    linear: dict[str, dict[str, float]] = field(default_factory=dict)
    """Coefficients of the `linear` model, ns: parts `gpu`, `host`, `frontend`, each by feature."""


@dataclass(frozen=True, kw_only=True)
class WorkloadSection:
    """Where requests come from: a trace, a spec, a preset, or the lengths and rate given here."""

    trace: str | None = None
    trace_header: str | None = None
    """Header YAML of a TraceV2 trace, where it does not lie beside the CSV under the same name."""
    time_scale: float = setting(1.0, above=0)
    """Arrival times of the trace are multiplied by it: 0.5 = twice the rate."""
    limit: int | None = setting(None, least=1)
    """Only the first requests of the trace."""
    slo_shares: dict[str, float] = field(default_factory=dict)
    """SLO classes dealt out at random to the requests of the trace, by share."""
    spec: str | None = None
    """Workload spec: a YAML file, or the name of a bundled one."""
    preset: str | None = None
    rate: float | None = setting(None, above=0)
    """Requests per second; null = the spec's own, else 1."""
    num_requests: int | None = setting(None, least=1)
    """null = the spec's own, else 100; with a horizon, as many as arrive before it."""
    arrival: str = setting("poisson", choices=("poisson", "gamma", "weibull", "constant"))
    cv: float | None = setting(None, above=0)
    """Burstiness of gamma and weibull arrivals: standard deviation of the gaps over their mean."""
    prompt_tokens: int = setting(512, least=1)
    prompt_tokens_stdev: int = setting(256, least=0)
    prompt_tokens_min: int = setting(2, least=1)
    prompt_tokens_max: int = setting(7000, least=1)
    output_tokens: int = setting(512, least=1)
    output_tokens_stdev: int = setting(256, least=0)
    output_tokens_min: int = setting(2, least=1)
    output_tokens_max: int = setting(7000, least=1)
    prefix_tokens: int = setting(0, least=0)
    """Tokens in front of every prompt that all requests share."""
    timeout_s: float | None = setting(300.0, above=0)
    """Patience of generated requests; null = endless. Traces and specs bring their own."""


@dataclass(frozen=True, kw_only=True)
class RoutingSection:
    """From the cluster's entrance to an instance."""

    policy: str = "round-robin"
    latency_us: int = setting(0, least=0)
    snapshot_refresh_interval_us: int = setting(50_000, least=0)
    """Age up to which the router works with old instance state; 0 = live."""


@dataclass(frozen=True, kw_only=True)
class AdmissionSection:
    """Who is let in."""

    policy: str = setting("always-admit", choices=("always-admit",))
    latency_us: int = setting(0, least=0)
    slo_priorities: dict[str, int] = field(default_factory=dict)
    """Urgency by SLO class, larger = more urgent; adds to or replaces the defaults."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides the outcome of a run."""

    model: str | None = None
    model_config: str | None = None
    """Path of a HuggingFace `config.json`; null = the bundled shape of `model`."""
    gpu: str = "h100"
    tp: int = setting(1, least=1)
    num_instances: int = setting(1, least=1)
    seed: int | None = setting(None, least=0)
    """null = the spec's own, else 42."""
    horizon: str | int | None = setting(None, least=1)
    """Simulated time at which to stop: "60s", "10m", or a plain number of µs; null = when all is done."""
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    latency: LatencySection = field(default_factory=LatencySection)
    workload: WorkloadSection = field(default_factory=WorkloadSection)
    routing: RoutingSection = field(default_factory=RoutingSection)
    admission: AdmissionSection = field(default_factory=AdmissionSection)
    slo: tuple[str, ...] = ()
    """Targets such as `ttft.p99=500ms`."""
    goodput: tuple[str, ...] = ()
    """Targets every request should meet, such as `ttft:500` (ms)."""
    goodput_by_class: dict[str, str] = field(default_factory=dict)
    """More of them by SLO class, for `ttft`, `itl` and `e2e`: `critical=100ms,standard=500ms`."""


NAMES: dict[str, str] = {
    **{f.name: f"scheduler.{f.name}" for f in fields(SchedulerSection) if f.name != "policy"},
    **{f.name: f"workload.{f.name}" for f in fields(WorkloadSection) if f.name != "timeout_s"},
    **{f.name: f.name for f in fields(RunConfig)},
    "scheduler": "scheduler.policy",
    "latency_model": "latency.model",
    "linear": "latency.linear",
    "alpha_coeffs": "latency.alpha_coeffs",
    "beta_coeffs": "latency.beta_coeffs",
    "timeout": "workload.timeout_s",
    "workload_spec": "workload.spec",
    "workload": "workload",
    "routing_policy": "routing.policy",
    "routing_latency": "routing.latency_us",
    "snapshot_refresh_interval": "routing.snapshot_refresh_interval_us",
    "admission_policy": "admission.policy",
    "admission_latency": "admission.latency_us",
    "slo_priorities": "admission.slo_priorities",
}
"""Short names, of flags and of keyword arguments, and the key each one sets."""

_FILES = ("model_config", "workload.trace", "workload.trace_header")


def load_config(
    path: str | Path | None = None,
    overrides: Mapping[str, Any] | Sequence[tuple[str, str, Any]] = (),
    *,
    sets: Sequence[str] = (),
    policy_config: str | Path | None = None,
    base: RunConfig | None = None,
) -> RunConfig:
    """The configuration of a run.

    Args:
        path: YAML file; relative paths in it start at its own folder.
        overrides: what goes over it: values by dotted key, or (flag, key, value) triples, where the
            flag's name is what messages call it.
        sets: `a.b.c=value` texts, the last word on everything but a flag that disagrees.
        policy_config: a BLIS policy bundle, over the file and under the overrides.
        base: a configuration to start from, in place of the defaults.

    Raises:
        InputError: unknown key (with its full path and the nearest known one), a value of the wrong
            type or out of bounds, or settings that contradict each other.
    """
    layers = Layers()
    if base is not None:
        layers.add(flatten(as_dict(base), RunConfig), file=None)
    if path is not None:
        leaves = flatten(load_mapping(Path(path)), RunConfig)
        layers.add(_from_folder(leaves, Path(path).resolve().parent), file=path)
    if policy_config is not None:
        from blis_py.config_policy import read_bundle

        layers.add(read_bundle(policy_config), file=policy_config)
    if isinstance(overrides, Mapping):
        layers.add(flatten(overrides, RunConfig), file=None)
    else:
        for name, key, value in overrides:
            _lay_flag(layers, name, key, value)
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError("must look like a.b.c=value", key="--set", value=text)
        _lay_flag(layers, f"--set {key.strip()}", key.strip(), _yaml_value(key, value))
    config = layers.build(RunConfig)
    _check(config, layers)
    return _absolute(config)


def dump(config: RunConfig) -> str:
    """YAML text that `load_config` reads back as an equal configuration."""
    return yaml.safe_dump(as_dict(config), sort_keys=False, allow_unicode=True, width=110)


def as_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain data with every key, defaults included."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return {key: plain(value) for key, value in asdict(config).items()}


def duration_ns(value: str | int, key: str = "horizon") -> int:
    """`"60s"`, `"1.5h"`, `"500ms"`, or a plain number of µs, as nanoseconds."""
    text = str(value).strip()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzµ")
    unit = text[len(digits) :] or "us"
    try:
        span = round(float(digits) * _NS[unit]) if "." in digits else int(digits) * _NS[unit]
    except (KeyError, ValueError, OverflowError):
        span = 0
    if span <= 0:
        raise InputError(
            "must be a positive duration", key=key, value=value, fix='write "60s", "10m", or a number of µs'
        )
    return span


def _yaml_value(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError("not valid YAML", key=f"--set {key}", value=text, fix="quote the value") from None


def _lay_flag(layers: Layers, name: str, key: str, value: Any) -> None:
    """A flag that names a section (a mapping given to the Python API) sets what is in it."""
    section = {f.name: f.default_factory for f in fields(RunConfig)}.get(key)
    if key == "workload" and isinstance(value, str):
        source = workload_source(value)
        if source is not None:
            layers.flag(name, source, value)
    elif isinstance(value, Mapping) and isinstance(section, type) and is_dataclass(section):
        for path, item in flatten(value, section, f"{key}.").items():
            layers.flag(f"{name}.{path.partition('.')[2]}", path, item)
    else:
        layers.flag(name, key, value)


def _from_folder(leaves: dict[str, Any], folder: Path) -> dict[str, Any]:
    def resolve(key: str, value: Any) -> Any:
        is_path = isinstance(value, str) and (key in _FILES or looks_like_file(value))
        return str(folder / value) if is_path and key in (*_FILES, "gpu", "workload.spec") else value

    return {key: resolve(key, value) for key, value in leaves.items()}


def workload_source(name: str) -> str | None:
    """The key that `--workload NAME` sets: a preset, a bundled spec or a file.

    None for `distribution`, BLIS's name for the workload of the flags alone.
    """
    from blis_py.workload.presets import PRESETS

    bundled = {path.stem for path in data.root("workloads").glob("*.yaml")}
    if name == "distribution":
        return None
    if name in PRESETS:
        return "workload.preset"
    if name in bundled or looks_like_file(name):
        return "workload.spec"
    raise InputError(
        "no such workload",
        key="--workload",
        value=name,
        fix=did_you_mean(name, {*PRESETS, *bundled, "a .yaml file"}),
    )


def looks_like_file(name: str) -> bool:
    """Whether a GPU or a workload is given as a file rather than by name."""
    return name.endswith((".yaml", ".yml", ".json")) or name.startswith(("/", "./", "../", "~"))


def _absolute(config: RunConfig) -> RunConfig:
    """Files by their full path, so that the saved configuration works from any folder."""

    def full(name: str | None, is_file: bool = True) -> str | None:
        return str(Path(name).expanduser().resolve()) if name is not None and is_file else name

    load = config.workload
    workload = replace(
        load,
        trace=full(load.trace),
        trace_header=full(load.trace_header),
        spec=full(load.spec, load.spec is not None and looks_like_file(load.spec)),
    )
    gpu = full(config.gpu, looks_like_file(config.gpu)) or config.gpu
    return replace(config, model_config=full(config.model_config), gpu=gpu, workload=workload)


def _check(config: RunConfig, layers: Layers) -> None:
    """Names that lead nowhere, and settings that contradict each other."""
    from blis_py.cluster.router import ROUTING_POLICIES
    from blis_py.latency import LATENCY_MODELS

    for path, name, known in (
        ("latency.model", config.latency.model, LATENCY_MODELS),
        ("routing.policy", config.routing.policy, ROUTING_POLICIES),
    ):
        if name not in known:
            raise layers.error("unknown value", path, value=name, fix=did_you_mean(name, known))
    _check_source(config.workload, layers)
    if config.horizon is not None:
        duration_ns(config.horizon, layers.label("horizon"))
    latency = config.latency
    if (latency.alpha_coeffs is None) != (latency.beta_coeffs is None):
        given = "alpha" if latency.beta_coeffs is None else "beta"
        other = "beta" if given == "alpha" else "alpha"
        raise layers.error(
            f"needs {other}-coeffs as well", f"latency.{given}_coeffs", fix="give both or neither"
        )
    if latency.alpha_coeffs is not None and latency.model != "trained-physics":
        raise layers.error(
            f"belongs to trained-physics, not to {latency.model}",
            "latency.alpha_coeffs",
            fix="drop the coefficients or the latency model",
        )
    if latency.linear and latency.model != "linear":
        raise layers.error("belongs to the linear model", "latency.linear", fix="set latency.model to linear")
    if config.scheduler.sjf_aging_ms is not None and config.scheduler.policy != "sjf":
        raise layers.error("belongs to sjf", "scheduler.sjf_aging_ms", fix="set the scheduler to sjf")


def _default(spec: Any) -> Any:
    return {} if spec.default is MISSING else spec.default


_TRACE_ONLY = ("trace_header", "time_scale", "limit", "slo_shares")
_LENGTHS = tuple(
    f.name
    for f in fields(WorkloadSection)
    if f.name.startswith(("prompt_", "output_", "prefix_", "arrival", "cv"))
)


def _check_source(load: WorkloadSection, layers: Layers) -> None:
    given = [
        f.name
        for f in fields(load)
        if getattr(load, f.name) != _default(f) or layers.by_flag(f"workload.{f.name}")
    ]
    sources = [name for name in ("trace", "spec", "preset") if name in given]
    if len(sources) > 1:
        first, second = (layers.label(f"workload.{name}") for name in sources[:2])
        raise InputError(f"cannot be combined with {second}", key=first, fix="name one source of requests")
    source = sources[0] if sources else "generated"
    useless = {
        "trace": (*_LENGTHS, "rate", "num_requests", "timeout_s"),
        "spec": (*_TRACE_ONLY, *_LENGTHS, "timeout_s"),
        "preset": (*_TRACE_ONLY, *(name for name in _LENGTHS if name not in ("arrival", "cv"))),
        "generated": _TRACE_ONLY,
    }[source]
    for name in given:
        if name in useless:
            what = {"generated": "needs a trace"}.get(source, f"has no effect on a {source}")
            raise layers.error(what, f"workload.{name}", fix="drop it or change the source of requests")
    for side in ("prompt", "output"):
        if getattr(load, f"{side}_tokens_min") > getattr(load, f"{side}_tokens_max"):
            raise layers.error(
                f"is more than {side}_tokens_max", f"workload.{side}_tokens_min", fix="swap the two"
            )
