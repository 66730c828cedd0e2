"""Configuration objects for vLLM's scheduler: defaults of the release, and a scenario's settings over them.

Runs in a bare interpreter, so this file imports the standard library alone, and its neighbours.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks.engines.config_defaults import NO_LITERAL
from benchmarks.engines.scenario import Scenario

Defaults = dict[str, dict[str, Any]]


class Section(SimpleNamespace):
    """A section of the configuration; fields that were not set are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _section(defaults: Defaults, name: str, **values: Any) -> Section:
    literals = {key: value for key, value in defaults.get(name, {}).items() if value != NO_LITERAL}
    return Section(**{**literals, **values})


def vllm_config(scenario: Scenario, defaults: Defaults) -> Section:
    """The configuration of a server with a decoder of text, on one GPU, under a scenario's settings."""
    overlapped = scenario["async_scheduling"]
    further = scenario.get("settings", {})
    drafts = further.get("num_speculative_tokens", 0)
    budget_tokens = scenario["max_num_batched_tokens"]
    own = {key: value for key, value in further.items() if key in defaults.get("SchedulerConfig", {})}
    scheduler = _section(
        defaults,
        "SchedulerConfig",
        max_num_seqs=scenario["max_num_seqs"],
        max_num_batched_tokens=budget_tokens,
        max_num_scheduled_tokens=None,
        max_model_len=scenario["max_model_len"],
        long_prefill_token_threshold=scenario["long_prefill_token_threshold"],
        policy=scenario["policy"],
        async_scheduling=overlapped,
        enable_chunked_prefill=True,
        chunked_prefill_enabled=True,
        max_num_encoder_input_tokens=0,
        encoder_cache_size=0,
        num_lookahead_slots=0,
        **own,
    )
    cache_keys = defaults.get("CacheConfig", {})
    cache = _section(
        defaults,
        "CacheConfig",
        num_gpu_blocks=scenario["num_kv_blocks"] + 1,
        block_size=scenario["block_size"],
        enable_prefix_caching=scenario["enable_prefix_caching"],
        mamba_cache_mode=_state_mode(further),
        **{key: value for key, value in further.items() if key in cache_keys},
    )
    model = _section(
        defaults,
        "ModelConfig",
        max_model_len=scenario["max_model_len"],
        runner_type="generate",
        uses_mrope=False,
        is_encoder_decoder=False,
        is_diffusion=False,
        is_multimodal_model=False,
        supports_multimodal_inputs=False,
        return_sampling_mask=False,
        enable_return_routed_experts=False,
    )
    return Section(
        scheduler_config=scheduler,
        cache_config=cache,
        model_config=model,
        parallel_config=_section(
            defaults,
            "ParallelConfig",
            data_parallel_index=0,
            data_parallel_size=further.get("data_parallel_size", 1),
        ),
        observability_config=Section(
            per_request_spec_decode_metrics="none",
            kv_cache_metrics=False,
            enable_logging_iteration_details=False,
            enable_mfu_metrics=False,
        ),
        speculative_config=_speculation(drafts),
        aux_output_config=Section(enabled=False),
        ec_manager_config=Section(get_encoder_cache_manager_obj=lambda: None),
        is_mm_encoder_only=False,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        use_v2_model_runner=True,
        needs_kv_cache_zeroing=False,
        max_in_flight_tokens=budget_tokens * (2 if overlapped else 1),
        max_concurrent_batches=2 if overlapped else 1,
    )


def _state_mode(further: dict[str, Any]) -> str:
    return "align" if any(group[0] == "aligned" for group in further.get("kv_groups", ())) else "none"


class Speculation(Section):
    """Drafts without a model, as those of n-grams: whatever a method of speculation may ask for is not so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("use_", "uses_", "needs_")):
            return lambda *args: False
        return super().__getattr__(name)


def _speculation(drafts: int) -> Section | None:
    if not drafts:
        return None
    return Speculation(num_speculative_tokens=drafts, method="ngram", max_num_new_slots_for_drafting=0)
