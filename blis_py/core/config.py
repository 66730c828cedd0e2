"""Settings of one instance's scheduler, under the names vLLM uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Everything the scheduler core needs to know. Checked by `Scheduler`; values never change in a run."""

    num_kv_blocks: int
    """KV blocks in the pool."""
    max_model_len: int
    """Longest sequence (prompt + output), in tokens."""
    scheduler: str = "fcfs"
    """Order of the waiting queue: a key of `policies.SCHEDULERS`."""
    preemption_policy: str = "fcfs"
    """Victim when blocks run out: `fcfs` (last of the running list) or `priority`."""
    batch_former: str = "running-first"
    """`running-first` (vLLM: decodes and chunks before new prompts) or `prefill-first`."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    """Longest prefill chunk of one request in one step; 0 = no limit but the budget."""
    block_size: int = 16
    """Tokens per KV block."""
    async_scheduling: bool = False
    """A step is planned and launched before the outcome of the one before it is known (vLLM's name)."""
    late_length_stops: bool = False
    """With it: that a request has reached its length is also learnt from the outcome, as in SGLang."""
    prefix_cache: str = "hash"
    """`hash` (vLLM), `radix` (SGLang) or `none`: a key of `caches.PREFIX_CACHES`."""
    enable_prefix_caching: bool = True
    """False is another way to say `prefix_cache="none"`."""
    radix_eviction_policy: str = "lru"
    """With `radix`: which leaf is given up first, a key of `eviction.EVICTION_POLICIES`."""
    fairness_ms: float | None = None
    """With the cache-aware policies: who has waited this long goes first, by arrival; None = never."""
    fairness_tokens: int | None = None
    """The same, by the prefill tokens the instance has computed since the request came."""
    lpm_max_queue: int = 128
    """With the cache-aware policies: with more requests waiting, the order is that of arrival."""
    in_batch_sharing_tokens: int | None = 32
    """With the cache-aware policies: whoever shares that many uncached tokens with a prompt that is being
    computed waits until they are; None = nobody."""
    sjf_aging_ms: float | None = None
    """With `sjf`: a request that has waited this long goes first, by arrival; None = never."""
