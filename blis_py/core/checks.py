"""Validation of scheduler settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from blis_py.core._caches import PREFIX_CACHES
from blis_py.core.config import SchedulerConfig
from blis_py.core.eviction import EVICTION_POLICIES
from blis_py.core.policies import CACHE_AWARE, PREEMPTION_POLICIES, SCHEDULERS
from blis_py.core.rank_choice import RANK_CHOICES
from blis_py.errors import InputError

CHOICES: dict[str, Collection[str]] = {
    "scheduler": SCHEDULERS,
    "preemption_policy": PREEMPTION_POLICIES,
    "batch_former": ("running-first", "prefill-first", "prefill-only", "in-flight"),
    "admission_rule": ("blocks", "guaranteed-no-evict", "new-token-ratio", "new-token-ratio-ranks"),
    "prefix_cache": PREFIX_CACHES,
    "rank_choice": RANK_CHOICES,
    "radix_eviction_policy": EVICTION_POLICIES,
}
_OF_CACHE_AWARE = ("fairness_ms", "fairness_tokens", "lpm_max_queue", "in_batch_sharing_tokens")
_DEFAULTS = {f.name: f.default for f in fields(SchedulerConfig) if f.default is not MISSING}


def choices_of(limits: Mapping[str, Any]) -> Collection[str] | None:
    """The allowed values of a text setting; None if it is not limited to some."""
    choices: Collection[str] | str | None = limits.get("choices")
    return CHOICES[choices] if isinstance(choices, str) else choices


def check_scheduler_config(config: SchedulerConfig) -> None:
    """Check the settings of a scheduler.

    Raises:
        InputError: for the first invalid setting.
    """
    check_fields(config)
    for key, problem, fix in contradictions(config.scheduler, config):
        raise InputError(problem, key=key, fix=fix)


def check_fields(settings: Any) -> None:
    """Check every setting of a dataclass against its bounds and choices.

    Raises:
        InputError: for the first invalid setting.
    """
    for field in fields(settings):
        _check(field.name, getattr(settings, field.name), field.metadata)


def _check(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    allowed = choices_of(limits)
    if allowed is not None and value not in allowed:
        raise InputError("unknown choice", key=key, value=value, fix=f"use one of {', '.join(allowed)}")
    if not isinstance(value, int | float):
        return
    least, above, most = (limits.get(name) for name in ("least", "above", "most"))
    if least is not None and not value >= least:
        problem = f"must be at least {least:,}" if least else "must not be negative"
        raise InputError(problem, key=key, value=value)
    if above is not None and not value > above:
        raise InputError(f"must be above {above:,}", key=key, value=value)
    if most is not None and not value <= most:
        raise InputError(f"must be at most {most:,}", key=key, value=value)


def contradictions(policy: str, settings: Any) -> Iterator[tuple[str, str, str]]:
    """Incompatible settings, as (key, problem, fix).

    Args:
        policy: policy of the waiting queue.
        settings: any object with the fields of a `SchedulerConfig`.
    """

    def given(key: str) -> bool:
        return bool(getattr(settings, key) != _DEFAULTS[key])

    caching = settings.enable_prefix_caching and settings.prefix_cache != "none"
    if given("sjf_aging_ms") and policy != "sjf":
        yield "sjf_aging_ms", "belongs to sjf", "set the scheduler to sjf"
    if not settings.enable_prefix_caching and settings.prefix_cache == "radix":
        yield "prefix_cache", "contradicts enable_prefix_caching: false", "set prefix_cache to none"
    if given("radix_eviction_policy") and settings.prefix_cache != "radix":
        yield "radix_eviction_policy", "belongs to the radix cache", "set prefix_cache to radix"
    if settings.late_length_stops and not settings.async_scheduling:
        yield "late_length_stops", "synchronously nothing comes late", "add --async-scheduling, or drop it"
    if settings.prefill_schedule_interval > 1 and settings.batch_former != "running-first":
        yield "prefill_schedule_interval", "is vLLM's, of running-first batches", "drop it"
    if given("schedule_conservativeness") and not settings.admission_rule.startswith("new-token-ratio"):
        yield "schedule_conservativeness", "is SGLang's, of new-token-ratio", "drop it"
    if settings.preemption_policy == "fewest-tokens" and settings.batch_former != "prefill-only":
        yield "preemption_policy", "fewest-tokens is SGLang's, of prefill-only batches", "use another one"
    if policy in CACHE_AWARE and not caching:
        yield "scheduler", f"{policy} orders by the prefix cache, and there is none", "use another scheduler"
    if policy == "dfs-weight" and settings.prefix_cache != "radix":
        yield "scheduler", "dfs-weight walks the radix tree", "set prefix_cache to radix"
    for key in _OF_CACHE_AWARE:
        if given(key) and policy not in CACHE_AWARE:
            yield key, f"belongs to {', '.join(CACHE_AWARE)}", "set the scheduler to one of them"
