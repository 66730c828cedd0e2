"""The scheduler of an instance: one, or one for each of its ranks."""

from __future__ import annotations

from dataclasses import replace

from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.emission import Emission
from blis_py.core.kv_source import KVSource
from blis_py.core.scheduler import Scheduler
from blis_py.core.step_scheduler import StepScheduler
from blis_py.errors import InputError

_SHARED = ("max_num_seqs", "max_num_batched_tokens", "num_kv_blocks")


def scheduler_of(
    config: SchedulerConfig,
    track_longest: bool = False,
    source: KVSource | None = None,
    emission: Emission | None = None,
) -> StepScheduler:
    """A scheduler with these settings; see `Scheduler` and `RankedScheduler`.

    Args:
        config: valid settings; a cluster checks those of its pools.

    Raises:
        InputError: the parts of its ranks would be empty.
    """
    if config.ranks == 1:
        return Scheduler(config, track_longest, source, emission, check=False)
    from blis_py.core.ranks import RankedScheduler

    one, counters = of_one_rank(config), Counters()
    ranks = [Scheduler(one, track_longest, source, emission, counters, False) for _ in range(config.ranks)]
    return RankedScheduler(config, ranks, counters, source)


def of_one_rank(config: SchedulerConfig) -> SchedulerConfig:
    """The settings of one rank: an equal part of the limits.

    Raises:
        InputError: the parts would be empty.
    """
    parts = {name: getattr(config, name) // config.ranks for name in _SHARED}
    for name, part in parts.items():
        if part < 1:
            fix = f"give at least {config.ranks}"
            problem = f"leaves nothing for each of {config.ranks} ranks"
            raise InputError(problem, key=name, value=getattr(config, name), fix=fix)
    return replace(config, ranks=1, rank_balance_steps=0, prefill_interval_needs_ranks=False, **parts)
