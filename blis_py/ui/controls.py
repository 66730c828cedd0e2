"""Sliders and choices of the page, with their bounds, from the registered settings and tables."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.config.described import field_of
from blis_py.config.engine import names as engines
from blis_py.config.loader import as_dict
from blis_py.config.models import RunConfig
from blis_py.core.checks import choices_of
from blis_py.core.policies import SCHEDULERS
from blis_py.files.profiles import known_names
from blis_py.setup.setup import Setup
from blis_py.ui._traffic import SHAPES
from blis_py.ui.state import spec_of

RANGE, CHOICE, TARGETS = "range", "choice", "targets"
MAX_REQUESTS = 100_000
_DERIVED = "Lengths and rates of a recorded trace are as they are."


@dataclass(frozen=True, slots=True)
class Control:
    """One slider, choice or list of targets.

    Attributes:
        key: of the setting; `prompt`, `output`, `shape` and `pools.NAME` are of the page's state.
        values: of a range, the values in order; of a choice, its words.
        why: the reason if it cannot be changed.
    """

    key: str
    group: str
    label: str
    kind: str
    value: Any
    values: tuple[Any, ...] = ()
    unit: str = ""
    why: str = ""


def controls(config: RunConfig, setup: Setup) -> list[dict[str, Any]]:
    """All controls for a configuration."""
    controls = [*_traffic(config, setup), *_cluster(config), *_engine(config)]
    controls.append(Control("slo", "Targets", "Targets", TARGETS, list(config.slo)))
    return [asdict(each) for each in controls]


def _traffic(config: RunConfig, setup: Setup) -> list[Control]:
    load = config.workload
    recorded = _DERIVED if load.trace is not None or load.preset is not None else ""
    rate = load.rate or _offered(setup)
    closed = "A closed loop has no rate." if load.concurrency or setup.loops is not None else ""
    controls = [
        Control("workload.rate", "Traffic", "Rate", RANGE, rate, _around(rate, 0.05, 8), "requests/s", closed)
    ]
    shapes = SHAPES
    controls.append(
        Control("shape", "Traffic", "Shape of the rate", CHOICE, SHAPES[0], shapes, why=recorded or closed)
    )
    if load.spec is None and load.trace is None and load.preset is None:
        for name, label in (
            ("prompt_tokens", "Prompt length, mean"),
            ("output_tokens", "Answer length, mean"),
        ):
            value = getattr(load, name)
            controls.append(
                Control(f"workload.{name}", "Traffic", label, RANGE, value, _lengths(value), "tokens")
            )
        value = load.num_requests or 100
        counts = _whole((100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, MAX_REQUESTS), value)
        controls.append(Control("workload.num_requests", "Traffic", "Requests", RANGE, value, counts))
        return controls
    why = recorded or _scalable(load.spec)
    for key, label in (("prompt", "Prompt lengths"), ("output", "Answer lengths")):
        controls.append(Control(key, "Traffic", label, RANGE, 1.0, _FACTORS, "× as given", why))
    return controls


_FACTORS = (
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1.0,
    1.1,
    1.25,
    1.5,
    1.75,
    2.0,
    2.5,
    3.0,
    4.0,
    6.0,
    8.0,
)


def _scalable(spec: str | None) -> str:
    values = {} if spec is None else spec_of(spec)
    return "" if values.get("clients") or values.get("cohorts") else "This spec has no lengths of its own."


def _offered(setup: Setup) -> float:
    arrivals_ns = setup.table.arrival_ns
    span_s = float(arrivals_ns[-1] - arrivals_ns[0]) / 1e9 if len(arrivals_ns) > 1 else 0.0
    return float(f"{(len(arrivals_ns) - 1) / span_s:.4g}") if span_s else 1.0


def _cluster(config: RunConfig) -> list[Control]:
    group, sizes = "Cluster", (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8))
    if pools := config.all_pools:
        counts = [
            Control(
                f"pools.{pool.name}",
                group,
                f"{pool.name}: instances",
                RANGE,
                pool.count,
                _whole((0, *sizes), pool.count),
            )
            for pool in pools
        ]
    else:
        value = config.num_instances
        counts = [Control("num_instances", group, "Instances", RANGE, value, _whole(sizes, value))]
    fitted = "Step times are measured on one GPU." if config.latency.profile is not None else ""
    gpu, tp = (fitted or _of_pools(config, name) for name in ("gpu", "tp"))
    return [
        *counts,
        Control("gpu", group, "GPU", CHOICE, config.gpu, _words(known_names("gpus"), config.gpu), why=gpu),
        Control(
            "tp",
            group,
            "GPUs per instance (TP)",
            RANGE,
            config.tp,
            _whole((1, 2, 4, 8), config.tp),
            why=tp,
        ),
        Control(
            "routing.policy",
            group,
            "Router",
            CHOICE,
            config.routing.policy,
            _words(ROUTING_POLICIES, config.routing.policy),
        ),
    ]


def _of_pools(config: RunConfig, name: str) -> str:
    """The reason if every pool has its own value of a setting."""
    own = config.all_pools and all(getattr(pool, name) is not None for pool in config.all_pools)
    return "Every pool has its own." if own else ""


def _engine(config: RunConfig) -> list[Control]:
    group, scheduler = "Engine", config.scheduler
    model = config.model or ""
    own = config.model_config is not None or config.latency.profile is not None
    caches = choices_of(field_of("scheduler.prefix_cache").metadata) or ("hash",)
    budget_tokens, most = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    why = "The model is given by a file." if own else ""
    return [
        Control("model", group, "Model", CHOICE, model, _words(known_names("models"), model), why=why),
        Control("engine", group, "Engine", CHOICE, config.engine, _words(engines(), config.engine)),
        Control(
            "scheduler.policy",
            group,
            "Scheduler",
            CHOICE,
            config.scheduler.policy,
            _words(SCHEDULERS, config.scheduler.policy),
        ),
        Control(
            "scheduler.max_num_batched_tokens",
            group,
            "Token budget",
            RANGE,
            budget_tokens,
            _whole([2**n for n in range(8, 16)], budget_tokens),
            "tokens",
        ),
        Control(
            "scheduler.max_num_seqs",
            group,
            "Max sequences",
            RANGE,
            most,
            _whole([2**n for n in range(2, 12)], most),
        ),
        Control(
            "scheduler.prefix_cache",
            group,
            "Prefix cache",
            CHOICE,
            config.scheduler.prefix_cache,
            _words(caches, config.scheduler.prefix_cache),
        ),
    ]


def _words(known: Any, value: str) -> tuple[str, ...]:
    words = tuple(known)
    return words if value in words else (value, *words)


def _whole(values: Any, value: int) -> tuple[int, ...]:
    return tuple(sorted({*values, value}))


def _lengths(value: int) -> tuple[int, ...]:
    return _whole([round(2 ** (n / 2)) for n in range(6, 28)], value)


def _around(value: float, low: float, high: float) -> tuple[float, ...]:
    """Forty values around one, evenly spaced by ratio, the value among them."""
    steps = 40
    ratio = (high / low) ** (1 / steps)
    values = {float(f"{value * low * ratio**n:.3g}") for n in range(steps + 1)}
    return tuple(
        sorted(
            each for each in {*values, value} if not math.isclose(each, value, rel_tol=0.02) or each == value
        )
    )


def settings(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain data."""
    return as_dict(config)
