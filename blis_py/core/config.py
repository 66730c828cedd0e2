"""Settings of one instance's scheduler, under the names vLLM uses: each is registered here, once.

Annotations are evaluated here and no later: the configuration reads them. The groups of settings are parts of
`SchedulerConfig`, of the section of the configuration and of the engine's: they have no methods of their own.
"""

from dataclasses import dataclass
from typing import Any

from blis_py.core.bounds import LAST_NS, MOST_KV_BLOCKS, MOST_TOKENS
from blis_py.core.settings import setting

_LAST_MS = LAST_NS / 10**6


def queue_order(*aliases: str) -> Any:
    """The order of the waiting queue: `policy` in YAML, where its section is called scheduler."""
    return setting(
        "fcfs",
        choices="scheduler",
        flag="--scheduler",
        aliases=aliases,
        help="fcfs, priority-fcfs, sjf, lpm, hrrn, dfs-weight, reverse-priority.",
    )


class SchedulerSettings:
    """What a scheduler can be set to, in the simulator and in the engine."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Batching(SchedulerSettings):
    """How much runs at once, and what goes first."""

    preemption_policy: str = setting(
        "fcfs", choices="preemption_policy", flag="--preemption-policy", help="Victim: fcfs or priority."
    )
    """Who gives up KV blocks when they run out: the latest admitted, or the least urgent."""
    batch_former: str = setting(
        "running-first",
        choices="batch_former",
        flag="--batch-former",
        help="running-first or prefill-first.",
    )
    """Whose tokens come first in a step: decodes and begun prompts (vLLM), or new prompts."""
    max_num_seqs: int = setting(
        256,
        least=1,
        most=MOST_TOKENS,
        flag="--max-num-seqs",
        aliases=("--max-num-running-reqs",),
        help="Most running requests per instance.",
    )
    """Requests that run at once on an instance, at most."""
    max_num_batched_tokens: int = setting(
        2048,
        least=1,
        most=MOST_TOKENS,
        flag="--max-num-batched-tokens",
        aliases=("--max-num-scheduled-tokens",),
        help="Tokens per step.",
    )
    """Tokens that a step computes, at most: the budget."""
    long_prefill_token_threshold: int = setting(
        0,
        least=0,
        most=MOST_TOKENS,
        flag="--long-prefill-token-threshold",
        help="Longest prefill chunk; 0 = no limit.",
    )
    """0 = no limit on a prefill chunk but the token budget."""
    block_size: int = setting(
        16,
        least=1,
        most=MOST_TOKENS,
        flag="--block-size",
        aliases=("--block-size-in-tokens",),
        help="Tokens per KV block.",
    )
    """Tokens of a KV block."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Memory:
    """How much the KV cache holds, where it is not yet known."""

    num_kv_blocks: int | None = setting(
        None,
        least=1,
        most=MOST_KV_BLOCKS,
        flag="--num-kv-blocks",
        aliases=("--total-kv-blocks", "--num-gpu-blocks-override"),
        help="KV blocks, instead of what fits.",
    )
    """null = what fits in the GPU's memory."""
    gpu_memory_utilization: float = setting(
        0.9, above=0, most=1, flag="--gpu-memory-utilization", help="Share of GPU memory in use."
    )
    """Share of the GPU memory that weights, activations and KV blocks may take."""
    max_model_len: int | None = setting(
        None,
        least=1,
        most=MOST_TOKENS,
        flag="--max-model-len",
        null=0,
        help="Longest sequence; 0 = automatic, the default.",
    )
    """null = the model's own, as far as the KV cache holds it."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Overlap(SchedulerSettings):
    """Planning beside the running step."""

    async_scheduling: bool = setting(
        False,
        flag="--async-scheduling",
        aliases=("--overlap",),
        off="--no-async-scheduling",
        off_aliases=("--no-overlap", "--disable-overlap-schedule"),
        help="Plan and launch a step while the one before it runs.",
        off_help="Steps and their planning take turns.",
    )
    """A step is planned and launched before the outcome of the one before it is known."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LateStops(SchedulerSettings):
    """What asynchronous planning learns late."""

    late_length_stops: bool = setting(
        False,
        flag="--late-length-stops",
        off="--no-late-length-stops",
        help="With asynchronous scheduling, ends by length are learnt late too, as in SGLang.",
    )
    """With it: that a request has reached its length is learnt from the outcome too, as in SGLang."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PrefixCaching(SchedulerSettings):
    """What is kept of prompts, and the orders that go by it."""

    prefix_cache: str = setting(
        "hash",
        choices="prefix_cache",
        flag="--prefix-cache",
        help="hash (vLLM), radix (SGLang) or none.",
    )
    """`hash` as in vLLM, `radix` as in SGLang, `none`."""
    enable_prefix_caching: bool = setting(
        True,
        flag="--enable-prefix-caching",
        off="--no-enable-prefix-caching",
        off_help="Compute every prompt in full: --prefix-cache none.",
    )
    """false is vLLM's way to say `prefix_cache: none`."""
    radix_eviction_policy: str = setting(
        "lru",
        choices="radix_eviction_policy",
        flag="--radix-eviction-policy",
        help="With radix: lru, lfu, fifo, mru, priority, cold-subtree.",
    )
    """With `radix`: which cached prefix that nobody uses is given up first."""
    fairness_ms: float | None = setting(
        None,
        least=0,
        most=_LAST_MS,
        flag="--fairness-ms",
        help="With lpm, hrrn, dfs-weight: who has waited this long goes first; 0 = fcfs. Default: never.",
    )
    """With `lpm`, `hrrn`, `dfs-weight`: who has waited this long goes first, by arrival; null = never."""
    fairness_tokens: int | None = setting(
        None,
        least=0,
        most=MOST_TOKENS,
        flag="--fairness-tokens",
        help="The same, counted in prefill tokens computed meanwhile. Default: never.",
    )
    """The same, by the prefill tokens that the instance has computed since the request came."""
    lpm_max_queue: int = setting(
        128,
        least=1,
        most=MOST_TOKENS,
        flag="--lpm-max-queue",
        help="With lpm, hrrn, dfs-weight: fcfs when more requests wait.",
    )
    """With `lpm`, `hrrn`, `dfs-weight`: with more requests waiting the order is that of arrival."""
    in_batch_sharing_tokens: int | None = setting(
        32,
        least=1,
        most=MOST_TOKENS,
        flag="--in-batch-sharing",
        null=-1,
        help="With these: uncached tokens worth waiting for while another computes them; -1 = off.",
    )
    """With `lpm`, `hrrn`, `dfs-weight`: whoever shares so many uncached tokens with a prompt that is being
    computed waits until they are; null = nobody."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Aging(SchedulerSettings):
    """Limits of waiting."""

    sjf_aging_ms: float | None = setting(None, above=0, most=_LAST_MS)
    """With `sjf`: a request that has waited this long goes first; null = never."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Resolved:
    """What is known once the KV cache has its size."""

    num_kv_blocks: int = setting(least=1, most=MOST_KV_BLOCKS)
    """KV blocks in the pool."""
    max_model_len: int = setting(least=1, most=MOST_TOKENS)
    """Longest sequence (prompt + output), in tokens."""
    scheduler: str = queue_order()
    """Order of the waiting queue: a key of `policies.SCHEDULERS`."""


@dataclass(frozen=True)
class SchedulerConfig(Aging, PrefixCaching, LateStops, Overlap, Batching, _Resolved):
    """Everything the scheduler core needs to know. Checked by `Scheduler`; values never change in a run."""
