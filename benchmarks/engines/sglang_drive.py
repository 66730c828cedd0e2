"""A scenario on SGLang's scheduler: one turn of its event loop is one iteration.

Imported once the stand-ins are installed. A turn is that of `event_loop_overlap`, or of `event_loop_normal`:
receive requests, plan the next batch, launch it, and process the result of the batch before it, or its own.
"""

from __future__ import annotations

import importlib
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines.scenario import (
    EOS_TOKEN,
    Arrivals,
    RequestSpec,
    Scenario,
    StepTrace,
    answer_limit,
    answer_token,
    token_ids,
)
from benchmarks.engines.sglang_parts import (
    ARGUMENTS,
    PARALLEL,
    SCHEDULE,
    HiddenMode,
    NoDrafts,
    Section,
    Silent,
    Zero,
)

_VOCABULARY = 1 << 40
_MOST_TOKENS = 16384
"""`max_prefill_tokens`."""


def _module(name: str, *others: str) -> Any:
    """A module of SGLang, or the first of others that there is; None without any."""
    for each in (name, *others):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(f"sglang.srt.{each}")
    return None


_batches, _policies, _scheduler = (
    _module(f"managers.{name}") for name in ("schedule_batch", "schedule_policy", "scheduler")
)
_results = _module("managers.scheduler_components.batch_result_processor")
"""None where results are processed by the scheduler itself."""
_ratio = _module("managers.scheduler_components.new_token_ratio_tracker")
"""None where the share is a number of the scheduler."""
_paged, _tokens = (
    _module(f"mem_cache.allocator.{name}", "mem_cache.allocator") for name in ("paged", "token")
)
_Parameters = _module("mem_cache.cache_init_params").CacheInitParams
_Sampling = _module("sampling.sampling_params").SamplingParams
_Scheduler: Any = _scheduler.Scheduler
_FORESEES_ENDS = "_reqs_finishing_inflight" in vars(_scheduler.Scheduler)
_DROPS_CHUNKS = hasattr(_scheduler.Scheduler, "process_pending_chunked_abort")
_RETURNS_PLANS = hasattr(_batches, "NextBatchPlan")
_trees = Path(_module("mem_cache.base_prefix_cache").__file__).with_name("registry.py")
_IS_UNIFIED = _RETURNS_PLANS and "ENABLE_UNIFIED_RADIX_TREE.get()" not in _trees.read_text(encoding="utf-8")
"""Whether the unified tree is the default, and not a choice."""
if _results is not None:
    _results.get_server_return_hidden_states_mode = lambda *args: HiddenMode.NULL


_paged.tl = Section(core=Section(TRITON_MAX_TENSOR_NUMEL=1))


def _no() -> bool:
    return False


def _nothing(*args: Any) -> None: ...


class _Kernel:
    """A kernel of Triton, launched with a grid in brackets."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __getitem__(self, grid: Any) -> Any:
        return self._run


def _extend(prefixes: Any, lengths: Any, last: Any, free: Any, out: Any, *rest: Any) -> None:
    page, pages, first = rest[1], iter(free.tolist()), 0
    for prefix, length, slot in zip(prefixes.tolist(), lengths.tolist(), last.tolist(), strict=True):
        while prefix < length:
            slot = slot + 1 if prefix % page else next(pages) * page
            count = min(page - prefix % page, length - prefix)
            out[first : first + count] = torch.arange(slot, slot + count)
            slot, prefix, first = slot + count - 1, prefix + count, first + count


def _decode(lengths: Any, last: Any, free: Any, out: Any, _: Any, page: int) -> None:
    pages = iter(free.tolist())
    for index, length in enumerate(lengths.tolist()):
        out[index] = next(pages) * page if length % page == 1 else last[index] + 1


_paged.alloc_extend_kernel, _paged.alloc_decode_kernel = _Kernel(_extend), _Kernel(_decode)


class _Rows:
    """Rows of token indices, one for each request."""

    def __init__(self, size: int, length: int) -> None:
        self.size, self.device, self.max_context_len = size, "cpu", length
        self.req_to_token = torch.zeros((size + 1, length), dtype=torch.int32)
        self._free = list(range(1, size + 1))

    def write(self, indices: Any, values: Any) -> None:
        self.req_to_token[indices] = values.to(torch.int32)

    def available_size(self) -> int:
        return len(self._free)

    def alloc(self, requests: Any) -> list[int] | None:
        if isinstance(requests, int):  # in releases that count them
            rows, self._free = self._free[:requests], self._free[requests:]
            return rows
        new = [each for each in map(_kv_of, requests) if each.req_pool_idx is None]
        if len(new) > len(self._free):
            return None
        for each in new:
            each.req_pool_idx = self._free.pop(0)
        return [_kv_of(each).req_pool_idx for each in requests]

    def free(self, request: Any) -> None:
        if isinstance(request, int):
            self._free.append(request)
            return
        self._free.append(_kv_of(request).req_pool_idx)
        _kv_of(request).req_pool_idx = None

    def alloc_aux_to_lengths(self, **lengths: Any) -> None:
        """No further pools."""


def _kv_of(request: Any) -> Any:
    own = getattr(request, "kv", None)
    return own if hasattr(own, "req_pool_idx") else request


class Server(_Scheduler):  # type: ignore[misc]
    """SGLang's scheduler without what surrounds it."""

    hisparse_coordinator = decode_offload_manager = dllm_config = prefill_delayer = None
    min_free_slots_delayer = dynamic_chunk_sizer = truncation_align_size = chunked_req = None
    last_batch = cur_batch = _pending_chunked_abort_req = None
    enable_fpm = enable_hisparse = enable_lora = enable_hicache_storage = enable_hierarchical_cache = False
    enable_priority_preemption = enable_priority_scheduling = enable_lmcache = enable_overlap_mlx = False
    is_hybrid_swa = require_mlp_sync = enable_dynamic_chunking = is_mixed_chunk = False
    enable_unified_cache_external_linker = enable_unified_memory = False
    max_prefill_bs = forward_ct = processed_tokens_counter = 0
    priority_scheduling_preemption_threshold = 10
    pp_size, tp_size, grammar_queue, send_to_tokenizer, stream_output = 1, 1, (), Silent(), Zero()
    num_generated_tokens = num_retracted_reqs = spec_num_forward_ct = 0
    attn_tp_rank = forward_ct_decode = 0
    decode_mem_cache_buf_multiplier = 1
    mm_receiver, enable_continuous_input_polling, ps = None, False, Section(pp_size=1)
    schedule_enhancer, dllm_staging_reqs = None, Section(non_empty=_no, empty=lambda: True)
    enable_metrics = enable_priority_scheduling = try_preemption = is_hybrid_ssm = False
    log_batch_result_stats = log_prefill_stats = log_decode_stats = report_prefill_stats = (
        report_decode_stats
    ) = Zero()
    log_prefill_stats_late = update_device_timer = current_scheduler_metrics_enabled = Zero()
    maybe_collect_routed_experts = maybe_collect_customized_info = Zero()
    prefill_decode_interval = _prefill_decode_interval_remaining = 0
    is_generation, disaggregation_mode, max_prefill_tokens = True, "null", _MOST_TOKENS

    def __init__(self, scenario: Scenario) -> None:
        page, tokens = scenario["block_size"], scenario["num_kv_blocks"] * scenario["block_size"]
        seqs = scenario["max_num_seqs"]
        ARGUMENTS.page_size = self.page_size = page
        ARGUMENTS.pp_max_micro_batch_size = PARALLEL.pp_max_micro_batch_size = seqs
        self.server_args, self.max_running_requests = ARGUMENTS, seqs
        chunks = scenario["settings"].get("chunked_prefill_size") != -1
        self.chunked_prefill_size = scenario["max_num_batched_tokens"] if chunks else None
        SCHEDULE.schedule_conservativeness = ARGUMENTS.schedule_conservativeness = scenario["settings"].get(
            "schedule_conservativeness", 1.0
        )
        self.enable_overlap = scenario["async_scheduling"]
        self.enable_skip_finishing_decode = self.enable_overlap and _FORESEES_ENDS
        self.result_queue: list[Any] = []
        self.waiting_queue: list[Any] = []
        self.running_batch = _batches.ScheduleBatch(reqs=[], batch_is_full=False)
        self.token_to_kv_pool_allocator = _allocator(tokens, page)
        self.req_to_token_pool = _Rows(seqs, tokens + 8)
        self.tree_cache = self._tree(scenario["enable_prefix_caching"])
        self.model_config = Section(is_encoder_decoder=False, vocab_size=_VOCABULARY)
        self.spec_algorithm = NoDrafts()
        urgent = scenario["policy"] == "priority-fcfs"
        self.enable_priority_scheduling = self.enable_priority_preemption = self.try_preemption = urgent
        policy = "fcfs" if urgent else scenario["policy"]
        self.policy = _policies.SchedulePolicy(policy, self.tree_cache, False, urgent, True)
        self._begin_ratio()
        self.metrics_reporter = self.ipc_channels = self.load_publisher = Silent()
        self.grammar_manager = Section(has_waiting_grammars=_no, abort_requests=_nothing)
        self.dllm_manager = Section(any_staging_reqs=lambda: False)
        self.dp_attn_adapter = Section(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=None: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        )
        self.ngram_embedding_manager = Section(prepare_for_forward=lambda batch, chunked_req=None: batch)
        self.beam_coordinator = Section(pending_member_rows=lambda batch: 0, retire_group=_nothing)
        self.load_inquirer = Section(_get_num_pending_tokens=lambda chunk_deduct=0: 0)
        self.tp_worker = Section(model_runner=Section(attn_backend=object(), prefill_aware_swa=False))
        self.batch_result_processor = None if _results is None else self._processor()
        self.retracted: list[str] = []
        self._entries = 0

    def _begin_ratio(self) -> None:
        if _ratio is None:
            values = _module("environ").envs
            least = values.SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR.get()
            first = min(values.SGLANG_INIT_NEW_TOKEN_RATIO.get() * ARGUMENTS.schedule_conservativeness, 1.0)
            self.init_new_token_ratio = self.new_token_ratio = first
            self.min_new_token_ratio = first * least
            steps = values.SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS.get()
            self.new_token_ratio_decay = (first - self.min_new_token_ratio) / steps
            return
        tracker = _ratio.NewTokenRatioTracker
        from_config = getattr(tracker, "from_config", None)
        self.new_token_ratio_tracker = from_config() if from_config else tracker.from_server_args(ARGUMENTS)

    def rest(self) -> None:
        """Nothing runs, and nothing waits."""
        if _ratio is None:
            self.new_token_ratio = self.init_new_token_ratio
        else:
            self.new_token_ratio_tracker.reset()

    def _tree(self, caching: bool) -> Any:
        parameters = _Parameters(
            disable=not caching,
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
            page_size=self.page_size,
        )
        chunks = None if caching else _module("mem_cache.chunk_cache")
        if chunks is not None:
            return chunks.ChunkCache(parameters)
        if _IS_UNIFIED:
            full = _module("mem_cache.unified_cache.components").ComponentType.FULL
            parameters.tree_components, parameters.tree_core_backend = (full,), "python"
            return _module("mem_cache.unified_radix_cache").UnifiedRadixCache(parameters)
        return _module("mem_cache.radix_cache").RadixCache(parameters)

    def _processor(self) -> Any:
        kind = _results.SchedulerBatchResultProcessor
        own = {
            **{name: getattr(self, name, None) for name in kind.__dataclass_fields__},
            "output_streamer": Silent(),
            "logprob_result_processor": Silent(),
        }
        return kind(**{name: own[name] for name in kind.__dataclass_fields__})

    def plan(self) -> Any:
        """The batch of the next step, or None."""
        if not _RETURNS_PLANS:
            return self.get_next_batch_to_run()
        plan = self.get_next_batch_to_run(self.running_batch, self.last_batch)
        self.running_batch = plan.running_batch
        return plan.batch_to_run

    def get_prefill_adder_class(self) -> Any:
        return _policies.PrefillAdder

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        self.retracted.append(req.rid)
        self.enqueue(req)

    def enqueue(self, request: Any) -> None:
        """Let a request wait behind all others."""
        self._entries += 1
        request.time_stats.wait_queue_entry_time = self._entries
        self.waiting_queue.append(request)

    def maybe_prepare_mlp_sync_batch(self, batch: Any, **given: Any) -> Any:
        return batch

    maybe_prepare_mlp_sync_batch_and_log_stats = maybe_prepare_mlp_sync_batch

    def _maybe_prepare_ngram_embedding(self, batch: Any) -> Any:
        return batch

    def publish_load_snapshot(self, force: bool = False) -> None:
        """Not read; as those below."""

    def _abort_on_waiting_timeout(self, *args: Any) -> None: ...

    def _abort_on_running_timeout(self, *args: Any) -> None: ...

    def _get_num_pending_tokens(self, *args: Any, **kwargs: Any) -> int:
        return 0

    def _process_hicache_events(self) -> None: ...

    def _maybe_clear_mm_inputs(self, batch: Any) -> None: ...

    def send_abort_output(self, *args: Any) -> None: ...

    def maybe_send_health_check_signal(self) -> None: ...

    def _record_step_counters(self, batch: Any, result: Any) -> None: ...

    def blocks_in_use(self) -> int:
        """Pages that hold KV of requests that have not ended."""
        pool = self.token_to_kv_pool_allocator
        return int(pool.size - pool.available_size() - self.tree_cache.evictable_size()) // self.page_size


def _allocator(tokens: int, page: int) -> Any:
    if page == 1:
        return _tokens.TokenToKVPoolAllocator(tokens, torch.float16, "cpu", None, False)
    return _paged.PagedTokenToKVPoolAllocator(tokens, page, torch.float16, "cpu", None, False)


def run(scenario: Scenario) -> list[StepTrace]:
    """The trace of a scenario."""
    return _Run(scenario).steps()


class _Run:
    """One scenario on one server."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._server = Server(scenario)
        self._arrivals = Arrivals(scenario)
        self._specs = {spec["id"]: spec for spec in scenario["requests"]}
        self._live: dict[str, Any] = {}
        self._seen: set[str] = set()
        self._dropped: list[str] = []
        """Requests aborted in the middle of their prompts."""

    def steps(self) -> list[StepTrace]:
        steps: list[StepTrace] = []
        server = self._server
        while self._arrivals or self._live or self._in_flight():
            if len(steps) >= self._scenario["max_steps"]:
                break
            for spec in self._arrivals.arriving(len(steps)):
                self._receive(spec)
            for name in self._arrivals.aborted(len(steps)):
                self._abort(name)
            entry, batch = self._turn()
            for name in [name for name in self._dropped if self._live[name].finished()]:
                del self._live[name]  # without an output
            self._dropped.clear()
            done = sorted(name for name, request in self._live.items() if request.finished())
            entry["finished"] = {name: len(self._live.pop(name).output_ids) for name in done}
            for name in done:
                self._arrivals.ended(name, len(steps))
            server.last_batch = server.cur_batch = batch
            steps.append(entry)
        return steps

    def _abort(self, name: str) -> None:
        request = self._live.get(name)
        if request is None:
            return
        if request in self._server.waiting_queue:
            del self._live[name]
        elif request is self._server.chunked_req and _DROPS_CHUNKS:
            self._dropped.append(name)
        self._server.abort_request(Section(rid=name, abort_all=False))

    def _receive(self, spec: RequestSpec) -> None:
        limit = answer_limit(self._scenario, spec)
        sampling = _Sampling(max_new_tokens=limit, ignore_eos=spec["output_tokens"] == limit)
        sampling.normalize(None)
        ids: Any = token_ids(spec["prompt"])
        ids = ids if _results is None else array("q", ids)
        request = _batches.Req(
            spec["id"], "", ids, sampling, eos_token_ids={EOS_TOKEN}, vocab_size=_VOCABULARY
        )
        request.tokenizer = None
        self._live[spec["id"]] = request
        request.priority = spec["priority"]
        self._server.enqueue(request)

    def _turn(self) -> tuple[StepTrace, Any]:
        server = self._server
        server.retracted = []
        waiting = {request.rid for request in server.waiting_queue}
        batch = server.plan()
        if not batch and not self._in_flight() and server.waiting_queue:
            server.last_batch = None
            batch = server.plan()  # after a turn with nothing in it, which takes no time
        entry = StepTrace(tokens={}, preempted=sorted(server.retracted))
        if batch:
            entry["tokens"] = {each.rid: _tokens_of(batch, each) for each in batch.reqs}
            for each in batch.reqs:
                if each.rid in waiting and batch.forward_mode.is_extend():
                    kind = "again" if each.rid in self._seen else "cached"
                    entry.setdefault(kind, {})[each.rid] = _prefix_of(each)  # type: ignore[misc]
                    self._seen.add(each.rid)
        entry["blocks"] = server.blocks_in_use()
        if batch:
            server.result_queue.append(
                (batch.copy() if server.enable_overlap else batch, self._result(batch))
            )
        if self._in_flight() if server.enable_overlap else batch:
            server.process_batch_result(*server.result_queue.pop(0))
        elif not batch and not server.waiting_queue and server.running_batch.is_empty():
            server.rest()
        return entry, batch

    def _in_flight(self) -> bool:
        return self._server.enable_overlap and bool(self._server.last_batch)

    def _result(self, batch: Any) -> Any:
        """The tokens that a model would have sampled."""
        ids = []
        for request in batch.reqs:
            position = _committed_of(request) - len(request.origin_input_ids)
            ids.append(answer_token(self._scenario, self._specs[request.rid], max(position, 0)))
        tokens = torch.tensor(ids, dtype=torch.int64)
        if _results is None:
            batch.output_ids = tokens  # or places of tokens in flight: as many
        return Section(next_token_ids=tokens, get_num_generated_tokens=lambda count: count)


def _committed_of(request: Any) -> int:
    return int(_kv_of(request).kv_committed_len)


def _tokens_of(batch: Any, request: Any) -> int:
    if batch.forward_mode.is_decode():
        return 1
    if hasattr(request, "extend_range"):
        return int(request.extend_range.length)
    return int(request.extend_len if hasattr(request, "extend_len") else request.extend_input_len)


def _prefix_of(request: Any) -> int:
    return int(request.prefix_len if hasattr(request, "prefix_len") else len(request.prefix_indices))
