"""Random runs of the whole simulator, and the comparison of two records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import cycle
from typing import Any

import numpy as np
from hypothesis import strategies as st
from one_pool import simulate

from blis_py.cluster.flow_settings import FlowSettings
from blis_py.cluster.ingress.admission import ADMISSION_POLICIES, AdmissionSettings
from blis_py.cluster.ingress.dispatch_order import DISPATCH_ORDERS
from blis_py.cluster.ingress.fairness import FAIRNESS_POLICIES
from blis_py.cluster.instances.diffusion import BlockDiffusion, DiffusionCosts
from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.routing.scorers import SCORERS
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.policies import CACHE_AWARE
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.base import FrontendDelays, LatencyModel
from blis_py.latency.host_work import MaskPrices, WithHostWork
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.metrics.record import InstanceRecord, RunRecord
from blis_py.models.model_shape import load_model
from blis_py.requests.table import Labels, RequestTable
from blis_py.workload.diffusion import MeasuredSteps, table_rounds
from blis_py.workload.diffusion_steps import MeanAndSpread

CLASSES = ("critical", "standard", "batch", "sheddable", "background", "")


@dataclass(frozen=True)
class Row:
    """One request. Times in us."""

    arrival_us: int
    prompt: int
    output: int
    limit: int = 0
    slo_class: str = ""
    tenant: str = ""
    patience_us: int = -1
    runs: tuple[tuple[str, int], ...] = ()


def linear(step_ns: float = 0.0, frontend: FrontendDelays | None = None, **costs: float) -> Linear:
    """So many ns per step and per unit of each feature."""
    return Linear(
        LinearCoefficients(gpu=LinearCosts(step=step_ns, **costs), frontend=frontend or FrontendDelays())
    )


LATENCIES: dict[str, LatencyModel] = {
    "constant": linear(10_000),
    "linear": Linear(
        LinearCoefficients(
            gpu=LinearCosts(step=7_000.3, prefill_tokens=13.7, decode_seqs=211.1, decode_kv_tokens=3.33),
            host=LinearCosts(step=1_500, emitted_rows=17.9),
            frontend=FrontendDelays(
                before_enqueue_ns=12_345,
                per_token_ns=77,
                at_end_ns=501,
                behind_seq_ns=1_009,
                prompt_token_ns=13,
            ),
        )
    ),
    "masks": WithHostWork(linear(10_000), MaskPrices(row_ns=9_000, step_ns=100)),
    "masks beside the forward": WithHostWork(
        linear(10_000, decode_kv_tokens=30.7), MaskPrices(row_ns=5_000), masks_beside=True
    ),
    "scans": WithHostWork(linear(10_000, decode_kv_tokens=30.7), scan_ns=1_700),
    "trained-physics": build("trained-physics", shape=load_model("qwen3-0.6b"), gpu=load_gpu("h100")),
    "roofline": build("roofline", shape=load_model("qwen3-0.6b"), gpu=load_gpu("h100")),
}


def table_of(rows: list[Row]) -> RequestTable:
    """The rows as columns, in order of arrival."""
    rows = sorted(rows, key=lambda row: row.arrival_us)

    def ints(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    return RequestTable.build(
        ints([1000 * r.arrival_us for r in rows]),
        ints([r.prompt for r in rows]),
        ints([r.output for r in rows]),
        max_tokens=ints([r.limit for r in rows]),
        deadline_ns=ints([-1 if r.patience_us < 0 else 1000 * (r.arrival_us + r.patience_us) for r in rows]),
        slo_class=Labels.of([r.slo_class for r in rows]),
        tenant=Labels.of([r.tenant for r in rows]),
        content=ints([i if r.runs else -1 for i, r in enumerate(rows)]),
        contents=[r.runs for r in rows],
    )


@dataclass(frozen=True)
class Run:
    """All arguments of `simulate`."""

    rows: list[Row]
    config: SchedulerConfig
    latency: str = "constant"
    options: dict[str, Any] = field(default_factory=dict)
    eos_share: float = 0.0
    constrained: float = 0.0
    """Share of the requests whose output a grammar constrains."""

    def record(self, **more: Any) -> RunRecord:
        table = table_of(self.rows)
        if self.eos_share:
            table = table.with_unforeseen_ends(self.eos_share, np.random.default_rng(len(table)))
        if self.constrained:
            table = table.with_structured_outputs(self.constrained, np.random.default_rng(1))
        return simulate(
            table,
            scheduler=self.config,
            latency=LATENCIES[self.latency],
            **{**self.options, **more},
        )


def on_ranks(config: SchedulerConfig, ranks: int, **more: Any) -> SchedulerConfig:
    """That many ranks, each with the limits of the configuration."""
    limits = ("num_kv_blocks", "max_num_seqs", "max_num_batched_tokens")
    whole = {name: ranks * getattr(config, name) for name in limits}
    return replace(config, ranks=ranks, **whole, **more)


@st.composite
def rows(draw: st.DrawFn, longest: int, slowness: int) -> Row:
    """`slowness` stretches arrivals and patience, for models with longer steps."""
    prompt = draw(st.integers(1, max(longest - 1, 1)))
    output = draw(st.integers(1, max(longest - prompt + 3, 1)))
    runs: tuple[tuple[str, int], ...] = ()
    if draw(st.booleans()):
        first = draw(st.sampled_from([prompt, prompt // 2, prompt // 4 * 4]))
        runs = ((draw(st.sampled_from("ab")), first),) if first else ()
        if runs and draw(st.booleans()):  # a second run, that may go on into the answer
            runs += ((draw(st.sampled_from("bc")), prompt + draw(st.sampled_from([0, 4, output])) - first),)
            runs = tuple(run for run in runs if run[1])
    patience = draw(st.sampled_from([-1, -1, -1, 0, 15, 130, 500]))
    return Row(
        arrival_us=slowness * draw(st.one_of(st.just(0), st.integers(0, 600))),
        prompt=prompt,
        output=output,
        limit=draw(st.sampled_from([0, output, output, output + 5])),
        slo_class=draw(st.sampled_from(CLASSES)),
        tenant=draw(st.sampled_from(["", "acme", "beta"])),
        patience_us=patience if patience < 0 else slowness * patience,
        runs=runs,
    )


@st.composite
def caching(draw: st.DrawFn, scheduler: str, slowness: int) -> dict[str, Any]:
    """Settings of the prefix cache, and of the policies that look at it."""
    caches = {"dfs-weight": ["radix"], "lpm": ["radix", "hash"], "hrrn": ["radix", "hash"]}
    cache = draw(st.sampled_from(caches.get(scheduler, ["radix", "hash", "none"])))
    settings: dict[str, Any] = {"prefix_cache": cache}
    if cache == "radix":
        settings["radix_eviction_policy"] = draw(st.sampled_from(["lru", *EVICTION_POLICIES]))
    if scheduler in CACHE_AWARE:
        settings |= {
            "fairness_ms": draw(st.sampled_from([None, None, 0.0, 0.05 * slowness])),
            "fairness_tokens": draw(st.sampled_from([None, None, 0, 30])),
            "lpm_max_queue": draw(st.sampled_from([128, 128, 2])),
            "in_batch_sharing_tokens": draw(st.sampled_from([None, 1, 8, 32])),
        }
    return settings


@st.composite
def routing(draw: st.DrawFn) -> dict[str, Any]:
    """Any policy, any profile."""
    policy = draw(st.sampled_from(["round-robin", "weighted", "weighted", *ROUTING_POLICIES]))
    if policy != "weighted":
        return {"routing_policy": policy}
    names = draw(st.lists(st.sampled_from(list(SCORERS)), unique=True, max_size=4))
    return {"routing_policy": policy, "routing_scorers": {name: draw(st.integers(1, 3)) for name in names}}


@st.composite
def admission(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly all requests are admitted, as by default; else any policy, with limits that small runs reach."""
    policy = draw(st.sampled_from(["always-admit"] * 5 + list(ADMISSION_POLICIES)))
    budgets = {"acme": draw(st.sampled_from([0.0, 0.1])), "beta": 0.5}
    limits = AdmissionSettings(
        token_bucket_capacity=draw(st.sampled_from([40, 100, 10_000])),
        token_bucket_refill_rate=draw(st.sampled_from([1_000, 100_000])),
        tier_shed_threshold=draw(st.sampled_from([0, 1, 3])),
        tier_shed_min_priority=draw(st.sampled_from([0, 3, 4])),
        gaie_qd_threshold=draw(st.sampled_from([0.5, 2])),
        gaie_kv_threshold=draw(st.sampled_from([0.2, 0.8])),
        tenant_budgets=draw(st.sampled_from([{}, {}, budgets])),
    )
    return {"admission_policy": policy, "admission": limits}


def flows() -> st.SearchStrategy[FlowSettings]:
    """Any settings, with limits that small runs reach."""
    some = st.sampled_from
    return st.builds(
        FlowSettings,
        saturation_detector=some(["never", "utilization", "utilization", "concurrency", "concurrency"]),
        queue_depth_threshold=some([0.5, 1, 2]),
        kv_cache_util_threshold=some([0.1, 0.5]),
        max_concurrency_per_instance=some([1, 2, 4]),
        dispatch_order=some(sorted(DISPATCH_ORDERS)),
        fairness_policy=some(sorted(FAIRNESS_POLICIES)),
        max_gateway_queue_depth=some([0, 1, 3]),
        per_band_capacity=some([0, 1, 2]),
        usage_limit_threshold=some([1.0, 0.5]),
        request_ttl_us=some([0, 0, 40, 200]),
        queue_shedding=st.booleans(),
        in_flight_eviction=st.booleans(),
        dispatch_tick_interval_us=some([None, None, 10, 25]),
        slo_targets_us=some([{}, {"critical": 50, "batch": 10}]),
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Any policy, former, cache and latency model; often too few blocks, sometimes a horizon."""
    scheduler = draw(
        st.sampled_from(["fcfs", "priority-fcfs", "sjf", "sjf", "reverse-priority", *CACHE_AWARE])
    )
    block_size = draw(st.sampled_from([1, 4, 16]))
    blocks = draw(st.integers(2, 30))
    latency = draw(st.sampled_from(sorted(LATENCIES)))
    slowness = 300 if latency in ("trained-physics", "roofline") else 1
    config = SchedulerConfig(
        num_kv_blocks=blocks,
        max_model_len=draw(st.sampled_from([4096, 4096, 64])),
        scheduler=scheduler,
        preemption_policy=draw(st.sampled_from(["fcfs", "priority"])),
        batch_former=draw(st.sampled_from(["running-first", "prefill-first"])),
        max_num_seqs=draw(st.sampled_from([1, 2, 8, 256])),
        max_num_batched_tokens=draw(st.sampled_from([1, 3, 8, 2048])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 4])),
        block_size=block_size,
        **draw(caching(scheduler, slowness)),
        sjf_aging_ms=draw(st.sampled_from([None, 0.1 * slowness])) if scheduler == "sjf" else None,
    )
    longest = min(blocks * block_size, config.max_model_len, 100)
    workload = draw(st.lists(rows(longest, slowness), min_size=1, max_size=10))
    instances = draw(st.sampled_from([1, 1, 2, 3]))
    return Run(
        rows=workload,
        config=config,
        latency=latency,
        options={
            "num_instances": instances,
            **draw(routing()),
            **draw(admission()),
            "admission_latency_ns": draw(st.sampled_from([0, 0, 3_000])),
            "routing_latency_ns": draw(st.sampled_from([0, 0, 777])),
            "snapshot_refresh_ns": draw(st.sampled_from([0, 20_000, 50_000_000])),
            "cache_delay_ns": draw(st.sampled_from([0, 0, 35_000, 50_000_000])),
            "horizon_ns": draw(
                st.one_of(st.none(), st.integers(0, 900).map(lambda us: us * 1000 * slowness))
            ),
        },
    )


def differences(one: RunRecord, other: RunRecord) -> list[str]:
    """Names of everything that is not byte for byte the same, but for the compact steps table."""
    found = []
    parts = [(run, run.visits, run.visits.emission) for run in (one, other)]
    for mine, theirs in zip(*parts, strict=True):
        for column in fields(mine):
            a, b = getattr(mine, column.name), getattr(theirs, column.name)
            if isinstance(a, np.ndarray) and (a.dtype != b.dtype or a.tobytes() != b.tobytes()):
                found.append(column.name)
    reasons = [run.rejection and run.rejection.to_list() for run in (one, other)]
    if reasons[0] != reasons[1]:
        found.append("rejection")
    if one.end_ns != other.end_ns:
        found.append("end_ns")
    for index, (a, b) in enumerate(zip(one.instances, other.instances, strict=True)):
        for column in fields(InstanceRecord):
            x, y = getattr(a, column.name), getattr(b, column.name)
            if column.name == "runs":
                continue
            if (x.tobytes() != y.tobytes()) if isinstance(x, np.ndarray) else (x != y):
                found.append(f"instances[{index}].{column.name}")
    return found


def of_diffusion(seed: int, classes: Sequence[str], **options: Any) -> RunRecord:
    """Block diffusion on two instances, which is that of single rounds but for how many were skipped.

    Args:
        classes: of the requests, in turn.
    """
    rng = np.random.default_rng(seed)
    lengths = [(int(rng.integers(1, 99)), int(rng.integers(1, 99))) for _ in range(30)]
    named = zip(lengths, cycle(classes), strict=False)
    table = table_of([Row(4000 * i, *sizes, slo_class=name) for i, (sizes, name) in enumerate(named)])
    rounds = table_rounds(table, {"": MeasuredSteps(MeanAndSpread(6, 0.5))}, 32, seed)
    skipping, single = (
        simulate(
            table,
            scheduler=SchedulerConfig(num_kv_blocks=400, max_model_len=6_000, block_size=32, max_num_seqs=2),
            latency=linear(1_000_000),
            num_instances=2,
            kind=BlockDiffusion(rounds, DiffusionConfig(), DiffusionCosts()),
            single_step=single_step,
            **options,
        )
        for single_step in (False, True)
    )
    not_compared_by_value = {f"instances[{index}].of_kind" for index in range(2)}
    assert set(differences(skipping, single)) <= not_compared_by_value
    return skipping
