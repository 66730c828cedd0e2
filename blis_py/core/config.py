"""Settings of one instance's scheduler, under vLLM's names; each is registered here, once.

Annotations are evaluated here and no later, because the configuration reads them. The groups of settings
are parts of `SchedulerConfig`, of the configuration section and of the engine's settings; they have no
methods.
"""

from dataclasses import asdict, replace
from typing import Any

from blis_py.core.bounds import LAST_NS, MAX_KV_BLOCKS, MAX_TOKENS
from blis_py.core.kv_groups import KVGroup
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting

_LAST_MS = LAST_NS / 10**6


def queue_order(*aliases: str) -> Any:
    """The order of the waiting queue: `policy` in YAML, where its section is called scheduler."""
    return setting(
        "fcfs",
        choices="scheduler",
        flag="--scheduler",
        aliases=("--schedule-policy", *aliases),
        help="fcfs, priority-fcfs, sjf, lpm, hrrn, dfs-weight, reverse-priority.",
    )


class SchedulerSettings:
    """Scheduler settings, for the simulator and the engine."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Batching(SchedulerSettings):
    """Batch limits and priorities."""

    preemption_policy: str = setting(
        "fcfs",
        choices="preemption_policy",
        flag="--preemption-policy",
        help="Victim: fcfs, priority or fewest-tokens.",
    )
    """Which request is preempted when KV blocks run out: the latest admitted, the least urgent, or that with
    the fewest output tokens (SGLang)."""
    batch_former: str = setting(
        "running-first",
        choices="batch_former",
        flag="--batch-former",
        help="running-first, prefill-first, prefill-only or in-flight.",
    )
    """Order in which a step is filled: decodes and unfinished prompts first (vLLM), new prompts first,
    prompts alone while there are any (SGLang), or decodes and whole prompts (TensorRT-LLM)."""
    admission_rule: str = setting(
        "blocks",
        choices="admission_rule",
        flag="--admission-rule",
        aliases=("--capacity-scheduler-policy",),
        help="Memory a request needs to start: blocks, guaranteed-no-evict, new-token-ratio or -ranks.",
    )
    """Memory that a waiting request needs to start: blocks for its first step (vLLM; `MAX_UTILIZATION` of
    TensorRT-LLM), for itself and all running ones to their ends (`GUARANTEED_NO_EVICT` of TensorRT-LLM), or
    for a share of what those may still write (SGLang; a smaller one with attention DP)."""
    receive_interval: int = setting(
        1,
        least=1,
        most=MAX_TOKENS,
        flag="--scheduler-recv-interval",
        help="With prefill-only: decode steps from one look for new requests to the next.",
    )
    """With `prefill-only`: decode steps from one look for new requests to the next (SGLang)."""
    prompt_wait_steps: int = setting(
        0,
        least=0,
        most=MAX_TOKENS,
        flag="--batch-wait-timeout-iters",
        help="With in-flight: most steps that prompts wait for others; 0 = none.",
    )
    """With `in-flight`: most steps that prompts wait beside decodes for more prompts (TensorRT-LLM); 0 =
    none."""
    prompt_wait_share: float = setting(
        0.0,
        least=0,
        most=1,
        flag="--batch-wait-max-tokens-ratio",
        help="With it: share of the token budget that ends the wait.",
    )
    """The wait ends once decodes and waiting prompts fill this share of the token budget."""
    rank_choice: str = setting(
        "least-queued",
        choices="rank_choice",
        flag="--load-balance-method",
        help="With --attention-dp, the rank of a new request: least-queued, least-queued-in-turn, "
        "least-loaded, round-robin, follow-bootstrap-room, total-requests, total-tokens or balanced-tokens.",
    )
    """With attention DP, the rank that a new request goes to: the one with the smallest 4 * waiting + running
    (vLLM; equal ones in turn from 0.25), or waiting + running where queues weigh more on full KV (vLLM from
    0.27), in turn, with the fewest requests or the fewest prompt tokens (SGLang), by the random number of
    the hand-over (SGLang's prefill, where decode is apart), or with the fewest prompt tokens of those with
    room for an equal share of the requests (TensorRT-LLM)."""
    max_num_seqs: int = setting(
        256,
        least=1,
        most=MAX_TOKENS,
        flag="--max-num-seqs",
        aliases=("--max-num-running-reqs", "--max-running-requests", "--max-batch-size"),
        help="Most running requests per instance.",
    )
    max_num_batched_tokens: int = setting(
        2048,
        least=1,
        most=MAX_TOKENS,
        flag="--max-num-batched-tokens",
        aliases=("--max-num-scheduled-tokens", "--chunked-prefill-size", "--max-num-tokens"),
        help="Tokens per step.",
    )
    """Token budget: the maximum number of tokens that a step computes."""
    long_prefill_token_threshold: int = setting(
        0,
        least=0,
        most=MAX_TOKENS,
        flag="--long-prefill-token-threshold",
        help="Longest prefill chunk; 0 = no limit.",
    )
    """0 = no limit on a prefill chunk but the token budget."""
    block_size: int = setting(
        16,
        least=1,
        most=MAX_TOKENS,
        flag="--block-size",
        aliases=("--block-size-in-tokens", "--page-size", "--tokens-per-block"),
        help="Tokens per KV block.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Memory:
    """Size of the KV cache, before it is resolved."""

    num_kv_blocks: int | None = setting(
        None,
        least=1,
        most=MAX_KV_BLOCKS,
        flag="--num-kv-blocks",
        aliases=("--total-kv-blocks", "--num-gpu-blocks-override"),
        help="KV blocks, instead of what fits.",
    )
    """null = as many as fit into the GPU's memory."""
    hybrid_kv_cache: bool = setting(
        True,
        flag="--no-disable-hybrid-kv-cache-manager",
        off="--disable-hybrid-kv-cache-manager",
        help="Layers with windows share the KV blocks with the others, block by block (vLLM).",
        off_help="Layers with windows keep all tokens (vLLM).",
    )
    """Groups of layers with windows and without share the KV blocks, as in vLLM; otherwise windows keep all
    tokens, as without the hybrid KV cache manager."""
    gpu_memory_utilization: float = setting(
        0.9,
        above=0,
        most=1,
        flag="--gpu-memory-utilization",
        aliases=(
            "--mem-fraction-static",
            "--free-gpu-memory-fraction",
            "--kv-cache-free-gpu-memory-fraction",
        ),
        help="Share of GPU memory in use.",
    )
    """Share of the GPU memory that weights, activations and KV blocks may take."""
    max_model_len: int | None = setting(
        None,
        least=1,
        most=MAX_TOKENS,
        flag="--max-model-len",
        aliases=("--context-length", "--max-seq-len"),
        null=0,
        help="Longest sequence; 0 = automatic, the default.",
    )
    """null = the model's maximum, limited by the KV cache."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Overlap(SchedulerSettings):
    """Planning that overlaps with the running step."""

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
    """Late detection of stops under asynchronous planning."""

    late_length_stops: bool = setting(
        False,
        flag="--late-length-stops",
        off="--no-late-length-stops",
        help="With asynchronous scheduling, ends by length are learnt late too, as in SGLang.",
    )
    """With it: that a request has reached its length is also detected from the step's outcome only, as in
    SGLang."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PromptLimits(SchedulerSettings):
    """Limits of prompts that later releases of vLLM have."""

    scheduler_reserve_full_isl: bool = setting(
        False,
        flag="--scheduler-reserve-full-isl",
        off="--no-scheduler-reserve-full-isl",
        help="Admit a request only if the KV of its whole prompt fits, not only that of its first chunk.",
        off_help="Admit a request if the KV of its first chunk fits.",
    )
    """A waiting request is admitted only if the KV of its whole prompt fits (vLLM's default from 0.19);
    otherwise that of its first chunk is enough."""
    watermark: float = setting(
        0.0,
        least=0,
        most=1,
        flag="--watermark",
        help="Share of KV blocks that stay free when a request joins others that run.",
    )
    """Share of the KV blocks that must stay free when a request is admitted beside running ones (vLLM, from
    0.24)."""
    prefill_schedule_interval: int = setting(
        1,
        least=1,
        most=MAX_TOKENS,
        flag="--prefill-schedule-interval",
        help="Compute prompts only in every so-many-th step while requests decode.",
    )
    """While requests decode, prompts are computed only in every so-many-th step, except when requests are
    left over in the queue (vLLM). Ranks of attention DP count steps together; otherwise the interval begins
    with the last step that computed a prompt."""
    long_prefill_token_threshold_adaptive: bool = setting(
        False,
        flag="--long-prefill-token-threshold-adaptive",
        off="--no-long-prefill-token-threshold-adaptive",
        help="Raise the threshold to an equal share of the token budget for each request.",
        off_help="Keep the threshold as it is.",
    )
    """With `long_prefill_token_threshold`: the threshold is at least the token budget divided by the number
    of running and waiting requests (vLLM, from 0.31)."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReleaseRules(PromptLimits):
    """Rules of batches in which releases of vLLM differ; those without a flag have no setting in vLLM."""

    prefill_interval_needs_ranks: bool = setting(False)
    """`prefill_schedule_interval` has an effect with attention DP only (vLLM before 0.33)."""
    prefill_interval_holds_last_tokens: bool = setting(False)
    """`prefill_schedule_interval` also holds requests that have one token left to compute (vLLM 0.24)."""
    lone_prefill_has_no_threshold: bool = setting(False)
    """`long_prefill_token_threshold` does not apply to a request that is alone on its instance (vLLM, from
    0.31)."""
    loads_spare_prompts: bool = setting(False)
    """A request that waits for KV from elsewhere takes blocks only if those that admitted prompts still need
    remain free (vLLM, from 0.24)."""
    reuse_unhashed_first: bool = setting(False)
    """With the `hash` cache: free blocks whose content cannot be found are reused before all others (vLLM,
    from 0.24); otherwise free blocks are reused in the order in which they became free."""
    self_preemption_ends_step: bool = setting(True)
    """With `preemption_policy: priority`: a running request that is preempted for its own blocks ends the
    scheduling of running requests (vLLM to 0.32); otherwise those behind it are scheduled."""
    preemption_skips_next: bool = setting(False)
    """With `preemption_policy: priority`: when a request that computes nothing in the step is preempted for
    one behind it, the next in line is left out of the step (vLLM to 0.27)."""
    blocks_await_outcome: bool = setting(False)
    """With asynchronous scheduling: a request whose last step is in flight keeps its blocks and may be the
    one that is preempted, and a block filled by a token in flight cannot be found (vLLM); otherwise its
    blocks are free at once. A step that is planned while drafts are in flight counts them as accepted."""
    constrained_go_first: bool = setting(False)
    """With `policy: fcfs`: a request with a grammar is admitted before all others until it has run once (vLLM
    0.18 to 0.30)."""
    planned_content_stays: bool = setting(False)
    """With `preemption_policy: priority`: a request that is preempted in the very step that was to compute
    its tokens leaves its blocks as if it had, and finds them again (vLLM, whose fault that is)."""
    drafts_beyond_limit: bool = setting(False)
    """Decode steps verify drafts beyond the client's limit, up to `max_model_len` (vLLM)."""
    drafts_found_at_outcome: bool = setting(False)
    """A block filled by accepted drafts can be found once they are known to be accepted (vLLM from 0.33, and
    every asynchronous one); otherwise once the request's next step is planned."""
    windows_await_outcome: bool = setting(False)
    """With `kv_groups`: a block that has left its window is freed once the outcome of the steps that read it
    is known (vLLM, from 0.26); otherwise when the next step is planned."""
    windows_keep_replays: bool = setting(False)
    """With `kv_groups`: of a window only those blocks are cached that a repetition of the prompt, or a longer
    common beginning, makes use of (vLLM, from 0.29); otherwise all."""
    windows_cap_prompts: bool = setting(False)
    """With `kv_groups` and `scheduler_reserve_full_isl`: of a prompt that must fit, windows count with the
    most that they hold (vLLM, from 0.21); otherwise with all of it."""
    state_chunks_align_prompts: bool = setting(False)
    """With states that the prefix cache keeps: all chunks of a prompt but the last end with a block (vLLM,
    from 0.27); otherwise those before the last full block."""
    states_precede_last_token: bool = setting(False)
    """With them: a prompt that fills its last block is cut a block earlier (vLLM, from 0.32)."""
    states_leave_gaps: bool = setting(False)
    """With them: a state before a gap stays until its request leaves (vLLM to 0.29)."""
    states_marked_again: bool = setting(False)
    """With them: the last state of a prompt is not shared before its request is past it (vLLM 0.32)."""
    pads_lone_tokens: bool = setting(False)
    """A request admitted with one token to compute is padded to the positions of a step with all drafts,
    though it has none; without budget for them no request is admitted (vLLM, from 0.25)."""
    padding_needs_company: bool = setting(False)
    """With it: only where running requests compute in the step (vLLM to 0.29); otherwise also where a prefix
    was found in the cache."""
    padding_must_fit: bool = setting(False)
    """With it: no request is admitted if the positions exceed `max_model_len` (vLLM to 0.28); otherwise the
    request computes its one token."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PassRules(SchedulerSettings):
    """Rules of admission of SGLang; those without a flag are those in which its releases differ."""

    schedule_conservativeness: float = setting(
        1.0,
        least=0,
        most=MAX_TOKENS,
        flag="--schedule-conservativeness",
        help="With new-token-ratio: factor on the share set aside for running requests.",
    )
    """With `new-token-ratio`: factor on the first share of the remaining limits that is set aside for running
    requests, 0.7 (SGLang)."""
    page_reserve: str = setting("always", choices=("none", "charged", "needed", "always"))
    """With `new-token-ratio`: a further block for every prompt of a step: `none` (SGLang before 0.5.10),
    `charged` to those behind it (0.5.10), `needed` by itself, too (from 0.5.11), and `always`, also of
    requests that ignore the end of sequence without a prefix cache (from 0.5.21)."""
    fixed_lengths_reserved: bool = setting(True)
    """With `new-token-ratio`: of requests that ignore the end of sequence all of the remaining limit is
    reserved, not a share (SGLang, from 0.5.22)."""
    chunks_count_twice: bool = setting(False)
    """With `new-token-ratio`: a prompt that goes on takes two of `max_num_seqs` when others are admitted
    (SGLang 0.5.12 to 0.5.22)."""
    departures_at_decodes: bool = setting(False)
    """With `new-token-ratio`: a request that ended counts as running until a step of decodes is planned
    (SGLang before 0.5.23)."""
    aborts_at: str = setting("boundary", choices=("boundary", "output", "output-or-chunk"))
    """Departure of a request whose client timed out: at the next step boundary; with the outcome of its next
    output (`output`: SGLang); or so, but in the middle of its prompt at the boundary, what its last chunk
    computed being lost (`output-or-chunk`: SGLang from 0.5.14). With attention DP, drafts or KV from
    elsewhere at the boundary."""
    radix_eviction: str = setting("blocks", choices=("blocks", "leaves", "leaves-to-fit"))
    """With the `radix` cache: unused content is evicted block by block, as needed, and private
    answers first; or as in SGLang in whole leaves, by their last lookup, answers among them: as much as
    is to be allocated (`leaves`), or until that fits (`leaves-to-fit`)."""
    answers_cached: bool = setting(True)
    """With `leaves`: an answer can be found when its request has ended (SGLang from 0.5.9); otherwise only
    what was computed as its prompt."""
    answers_apart: bool = setting(False)
    """With `leaves`: the tree is divided between a prompt and its answer, so that an answer is evicted
    without its prompt (SGLang, from 0.5.21)."""
    waiting_prefix_refresh: int = setting(0, least=0, most=MAX_TOKENS)
    """With `leaves` and `new-token-ratio`: in every so-many-th pass, lookups of the first 128 waiting
    requests count as uses (SGLang, from 0.5.22); 0 = none."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PrefixCaching(SchedulerSettings):
    """Prefix caching, and the queue orders that depend on it."""

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
    """false is vLLM's spelling of `prefix_cache: none`."""
    radix_eviction_policy: str = setting(
        "lru",
        choices="radix_eviction_policy",
        flag="--radix-eviction-policy",
        help="With radix: lru, lfu, fifo, mru, priority, cold-subtree.",
    )
    """With `radix`: the order in which unused cached prefixes are evicted."""
    fairness_ms: float | None = setting(
        None,
        least=0,
        most=_LAST_MS,
        flag="--fairness-ms",
        help="With lpm, hrrn, dfs-weight: after this wait a request goes first; 0 = fcfs. Default: never.",
    )
    """With `lpm`, `hrrn`, `dfs-weight`: a request that has waited this long goes first, by arrival; null =
    never."""
    fairness_tokens: int | None = setting(
        None,
        least=0,
        most=MAX_TOKENS,
        flag="--fairness-tokens",
        help="The same, counted in prefill tokens computed meanwhile. Default: never.",
    )
    """The same, by the prefill tokens that the instance has computed since the request came."""
    lpm_max_queue: int = setting(
        128,
        least=1,
        most=MAX_TOKENS,
        flag="--lpm-max-queue",
        help="With lpm, hrrn, dfs-weight: fcfs when more requests wait.",
    )
    """With `lpm`, `hrrn`, `dfs-weight`: with more requests waiting, the order is by arrival."""
    in_batch_sharing_tokens: int | None = setting(
        32,
        least=1,
        most=MAX_TOKENS,
        flag="--in-batch-sharing",
        null=-1,
        help="With these: uncached tokens worth waiting for while another computes them; -1 = off.",
    )
    """With `lpm`, `hrrn`, `dfs-weight`: a request that shares at least this many uncached tokens with a
    prompt being computed waits until they are cached; null = no request waits."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Aging(SchedulerSettings):
    """Limits on waiting."""

    sjf_aging_ms: float | None = setting(None, above=0, most=_LAST_MS)
    """With `sjf`: a request that has waited this long goes first; null = never."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Resolved:
    """Settings that are known once the KV cache has its size."""

    num_kv_blocks: int = setting(least=1, most=MAX_KV_BLOCKS)
    """KV blocks in the pool."""
    max_model_len: int = setting(least=1, most=MAX_TOKENS)
    """Longest sequence (prompt + output), in tokens."""
    scheduler: str = queue_order()
    """Order of the waiting queue: a key of `policies.SCHEDULERS`."""


@dataclass(frozen=True)
class SchedulerConfig(Aging, PrefixCaching, PassRules, ReleaseRules, LateStops, Overlap, Batching, _Resolved):
    """All settings of the scheduler core. Checked by `Scheduler`; values never change in a run."""

    ranks: int = setting(1, least=1, most=MAX_TOKENS)
    """Ranks with queues and KV blocks of their own that step together; the limits are those of all."""
    num_speculative_tokens: int = setting(0, least=0, most=MAX_TOKENS)
    """Most drafts of a decode step, where an `Emission` supplies them; `pads_lone_tokens` pads to them."""
    kv_groups: tuple[KVGroup, ...] = setting(())
    """Groups of layers with block tables of their own in the pool (vLLM's hybrid KV cache manager); empty =
    one group with all tokens of a request."""
    rank_balance_steps: int = setting(0, least=0, most=MAX_TOKENS)
    """With `in-flight`: most steps that prompts wait until every rank has one; 0 = they do not wait."""


def stored(config: SchedulerConfig) -> dict[str, Any]:
    """All settings as JSON has them: groups of layers are objects in a list."""
    groups = [
        {key: value for key, value in group._asdict().items() if key != "span" or value != 1}
        for group in config.kv_groups
    ]
    return {**asdict(replace(config, kv_groups=())), "kv_groups": groups}
