"""Scheduling policies: the order in which waiting requests are admitted.

A policy is a key function and one line in `SCHEDULERS`; the request with the smallest key goes
first. Keys may use what a real scheduler sees, and never `output_tokens`. Policies that look at the prefix
cache have a file each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blis_py.core._dfs_weight import DfsWeight
from blis_py.core._fifo import FifoQueue
from blis_py.core._hrrn import HighestResponseRatio
from blis_py.core.config import SchedulerConfig
from blis_py.core.lpm import LongestPrefixMatch
from blis_py.core.pass_order import (
    HeaviestBranchFirst,
    LongestMatchFirst,
    MostUrgentFirst,
    has_passes,
    sorts_by_pass,
)
from blis_py.core.queues import AgingQueue, SortedQueue, WaitingQueue
from blis_py.core.request import Request


def priority_fcfs(request: Request) -> tuple[Any, ...]:
    """Most urgent class first, then by arrival."""
    return (request.priority, request.arrival_ns, request.id)


def shortest_job_first(request: Request) -> tuple[Any, ...]:
    """Shortest prompt first, then by arrival. Starves long prompts unless aged."""
    return (request.prompt_tokens, request.arrival_ns, request.id)


def reverse_priority(request: Request) -> tuple[Any, ...]:
    """Least urgent first: deliberately wrong, to show the value of priorities."""
    return (-request.priority, request.arrival_ns, request.id)


SCHEDULERS: dict[str, Callable[[SchedulerConfig], WaitingQueue]] = {
    "fcfs": lambda config: FifoQueue(config.constrained_go_first),
    "priority-fcfs": lambda config: (
        MostUrgentFirst(config) if has_passes(config) else SortedQueue(priority_fcfs)
    ),
    "sjf": lambda config: (
        SortedQueue(shortest_job_first)
        if config.sjf_aging_ms is None
        else AgingQueue(shortest_job_first, int(config.sjf_aging_ms * 1e6))
    ),
    "reverse-priority": lambda config: SortedQueue(reverse_priority),
    "lpm": lambda config: LongestMatchFirst(config) if sorts_by_pass(config) else LongestPrefixMatch(config),
    "hrrn": HighestResponseRatio,
    "dfs-weight": lambda config: HeaviestBranchFirst(config) if sorts_by_pass(config) else DfsWeight(config),
}

CACHE_AWARE = ("lpm", "hrrn", "dfs-weight")
"""Policies that look at the prefix cache, see `_cache_aware.CacheAwareQueue`."""


def last_running(running: list[Request]) -> int:
    """Victim of a preemption: the latest in the running list."""
    return len(running) - 1


def least_urgent(running: list[Request]) -> int:
    """Victim of a preemption: largest (priority, arrival); among equals the latest in the list."""
    return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrival_ns, i))


def fewest_tokens(running: list[Request]) -> int:
    """Victim of a retraction: fewest output tokens, among equals the longest prompt, then the latest."""
    return max(range(len(running)), key=lambda i: (-running[i].generated, running[i].prompt_tokens, i))


PREEMPTION_POLICIES: dict[str, Callable[[list[Request]], int]] = {
    "fcfs": last_running,
    "priority": least_urgent,
    "fewest-tokens": fewest_tokens,
}
"""Each maps the running list to the index of the victim."""
