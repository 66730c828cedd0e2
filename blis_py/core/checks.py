"""Settings of the scheduler that cannot work."""

from __future__ import annotations

from collections.abc import Collection

from blis_py.core.config import SchedulerConfig
from blis_py.core.policies import PREEMPTION_POLICIES, SCHEDULERS
from blis_py.errors import InputError

CHOICES: dict[str, Collection[str]] = {
    "scheduler": SCHEDULERS,
    "preemption_policy": PREEMPTION_POLICIES,
    "batch_former": ("running-first", "prefill-first"),
}
_POSITIVE = ("num_kv_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")


def check_scheduler_config(config: SchedulerConfig) -> None:
    """Raises one clear `InputError` for the first setting that cannot work."""
    for key, allowed in CHOICES.items():
        value = getattr(config, key)
        if value not in allowed:
            raise InputError("unknown choice", key=key, value=value, fix=f"use one of {', '.join(allowed)}")
    for key in _POSITIVE:
        if getattr(config, key) < 1:
            raise InputError("must be at least 1", key=key, value=getattr(config, key))
    if config.long_prefill_token_threshold < 0:
        raise InputError(
            "must not be negative",
            key="long_prefill_token_threshold",
            value=config.long_prefill_token_threshold,
            fix="use 0 to switch it off",
        )
    if config.sjf_aging_ms is not None:
        if config.scheduler != "sjf":
            raise InputError("applies to sjf only", key="sjf_aging_ms", fix="use --scheduler sjf")
        if config.sjf_aging_ms < 0:
            raise InputError("must not be negative", key="sjf_aging_ms", value=config.sjf_aging_ms)
