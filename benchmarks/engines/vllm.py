"""vLLM: its releases, kinds of scenarios, and a scenario's settings on our side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.engines import presets, scenarios
from benchmarks.engines.engine import Engine, Release, Variant
from benchmarks.engines.scenario import ANSWERS, RequestSpec, Scenario
from blis_py.core.config import SchedulerConfig
from blis_py.core.kv_groups import ALIGNED, CHUNKED, FULL, STATE, WINDOW, KVGroup, longest_that_fits

PACKAGE = "vllm"
FURTHER = (
    scenarios.Setting("scheduler_reserve_full_isl", (0, 19), (True, True, False)),
    scenarios.Setting("watermark", (0, 24), (0.0, 0.0, 0.05, 0.2)),
    scenarios.Setting("prefill_schedule_interval", (0, 24), (1, 1, 2, 4)),
    scenarios.Setting("long_prefill_token_threshold_adaptive", (0, 31), (False, True)),
)
"""Our scheduler has them under the same names."""
_ASYNCHRONOUS = (0, 12)
"""Before, the asynchronous loop is an experiment that plans a step more than a request has tokens."""
_RANKS = (0, 24)
_WAVE_STEPS = 300
_LONG = 999
"""Segment of its prompt."""
_OWN = {"kv_groups"}
_GROUPED, _STATES, _CACHED_STATES, _WIDE_STATES, _COPIED_STATES = (0, 15), (0, 10), (0, 26), (0, 27), (0, 32)
"""First releases with comparable groups, with states, with a prefix cache of states by default, with chunks
shorter than a block of such, and with copies of states inside a chunk as later ones make them."""
_SPANS = (0, 24)
"""First release whose cache keeps what blocks of all sizes end with."""
_WHOLE, _CAPPED = (0, 19), (0, 21)
"""Between, a prompt whose windows would not fit if they kept all of it waits for ever."""
_DRAFTS = (0, 14)
"""Before, a request keeps the drafts that it had when it was preempted, and verifies them later."""


def config(scenario: Scenario, version: str) -> SchedulerConfig:
    """Settings of our scheduler for a scenario, under the preset of a release."""
    priority = scenario["policy"] == "priority"
    ranks = scenario["settings"].get("data_parallel_size", 1)
    own = {
        "num_kv_blocks": scenario["num_kv_blocks"] * ranks,
        "max_model_len": scenario["max_model_len"],
        "max_num_seqs": scenario["max_num_seqs"] * ranks,
        "max_num_batched_tokens": scenario["max_num_batched_tokens"] * ranks,
        "long_prefill_token_threshold": scenario["long_prefill_token_threshold"],
        "block_size": scenario["block_size"],
        "scheduler": "priority-fcfs" if priority else "fcfs",
        "preemption_policy": "priority" if priority else "fcfs",
        "async_scheduling": scenario["async_scheduling"],
        "prefix_cache": "hash" if scenario["enable_prefix_caching"] else "none",
        "ranks": ranks,
        "rank_choice": "round-robin",
        "kv_groups": tuple(KVGroup(*group) for group in scenario["settings"].get("kv_groups", ())),
        **{key: value for key, value in scenario["settings"].items() if key in presets.FIELDS - _OWN},
        **scenario["ours"],
    }
    return presets.config(PACKAGE, version, scenario["async_scheduling"], own)


def of_ranks(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Ranks of attention DP that step together; each has the scenario's limits.

    One request generates as long as others arrive, so that the wave in which steps are counted does not end.
    """
    scenario = scenarios.scenario(rng, release, asynchronous, further=FURTHER)
    scenario["settings"]["data_parallel_size"] = rng.randint(2, 4)
    scenario["settings"]["prefill_schedule_interval"] = rng.choice((1, 2, 3, 4))
    steps = min(scenario["max_model_len"] - 1, _WAVE_STEPS)
    long = RequestSpec(
        id="long",
        step=0,
        arrival=0.0,
        prompt=[[_LONG, 1]],
        answer=ANSWERS - 1,
        shared_tokens=0,
        output_tokens=steps,
        max_tokens=steps,
        priority=0,
    )
    others = [spec for spec in scenario["requests"] if spec["step"] < steps // 2 and "after" not in spec]
    scenario["requests"] = [long, *others]
    return scenario


def with_drafts(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Decode steps that verify drafts which need no KV, as those of n-grams."""
    scenario = scenarios.scenario(rng, release, asynchronous, further=FURTHER)
    scenario["settings"]["num_speculative_tokens"] = rng.randint(1, 4)
    return scenario


def with_grammars(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Grammars, compiled when their requests arrive, constrain some answers, and forbid some of the drafts if
    there are any."""
    if release >= _DRAFTS and rng.random() < 0.5:
        scenario = with_drafts(rng, release, asynchronous)
    else:
        scenario = scenarios.scenario(rng, release, asynchronous, further=FURTHER)
    for spec in scenario["requests"]:
        spec["grammar"] = rng.random() < 0.6
    return scenario


def with_groups(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Groups of layers that share the pool: full ones, windows of one or two sizes, chunks, or states, which
    are not cached."""
    scenario = scenarios.scenario(rng, release, asynchronous, further=FURTHER)
    size = scenario["block_size"]
    windows = [(WINDOW, rng.choice((3, size, 2 * size + 1, 5 * size, 9 * size - 2))) for _ in range(2)]
    chunks = (CHUNKED, size * rng.choice((1, 2, 5)))
    full = (FULL, 0)
    groups = rng.choice(
        (
            [full, windows[0]],
            [full, windows[0], windows[0], windows[0]],
            [windows[0], full, windows[1]],
            [windows[0], windows[1]],
            [windows[0]],
            [full, chunks, chunks],
            [full, (STATE, 0), (STATE, 0)],
        )
    )
    groups = list(dict.fromkeys(groups)) if (FULL, 0) not in groups else groups
    if groups[-1][0] == STATE:
        scenario["enable_prefix_caching"] = False
    return _grouped(rng, release, scenario, groups)


def with_states(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """One to four groups of layers with states beside one of full layers, as Qwen3-Next or Nemotron-H have
    them; before the release that caches states without a prefix cache."""
    scenario = scenarios.scenario(rng, release, asynchronous, further=FURTHER)
    scenario["enable_prefix_caching"] = release >= _CACHED_STATES and rng.random() < 0.75
    kind = ALIGNED if scenario["enable_prefix_caching"] else STATE
    multiple = 0
    if kind == ALIGNED and release >= _COPIED_STATES:
        multiple = rng.choice((0, 1, scenario["block_size"]))
    groups = [(kind, multiple)] * rng.randint(1, 4) + [(FULL, 0)]
    if release < _WIDE_STATES:
        least = max(scenario["max_num_batched_tokens"], scenario["block_size"])
        scenario["max_num_batched_tokens"] = least
        scenario["long_prefill_token_threshold"] = 0
    return _grouped(rng, release, scenario, groups if rng.random() < 0.5 else groups[::-1])


def with_spans(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Blocks of two sizes, as those of full layers and of windows of Gemma 4, which are longer than a
    block."""
    scenario = scenarios.scenario(rng, release, asynchronous, further=FURTHER)
    size = scenario["block_size"]
    full, window = rng.choice(((1, 2), (2, 1)))
    tokens = rng.choice((2 * size + 1, 5 * size, 9 * size - 2))
    groups = [(WINDOW, tokens, window)] * rng.randint(1, 3) + [(FULL, 0, full)]
    return _grouped(rng, release, scenario, groups)


def _grouped(
    rng: Random,
    release: Release,
    scenario: Scenario,
    groups: Sequence[tuple[str, int] | tuple[str, int, int]],
) -> Scenario:
    """A scenario with these groups, its blocks and requests drawn for them."""
    size, asynchronous = scenario["block_size"], scenario["async_scheduling"]
    scenario["settings"]["kv_groups"] = [list(group) for group in groups]
    scenario["num_kv_blocks"] *= rng.randint(1, len(groups))
    flight = scenario["max_num_batched_tokens"] * (2 if asynchronous else 1)
    if _WHOLE <= release < _CAPPED:
        flight = scenario["max_model_len"]
    room = longest_that_fits([KVGroup(*group) for group in groups], scenario["num_kv_blocks"], size, flight)
    scenario["max_model_len"] = min(scenario["max_model_len"], room)
    scenario["requests"] = scenarios.requests(rng, scenario)
    return scenario


def _variants() -> tuple[Variant, ...]:
    draws: list[tuple[str, Release, Callable[..., Scenario]]] = [
        (mode, (), partial(scenarios.scenario, mode=mode, further=FURTHER))
        for mode in (scenarios.DEFAULTS, scenarios.EVERYTHING)
    ]
    draws += [("attention DP", _RANKS, of_ranks), ("drafts", _DRAFTS, with_drafts)]
    draws += [("grammars", (), with_grammars), ("groups of layers", _GROUPED, with_groups)]
    draws += [("states", _STATES, with_states), ("sizes of blocks", _SPANS, with_spans)]
    return tuple(
        Variant(f"{name}, {loop}", partial(draw, asynchronous=asynchronous), max(since, loop_since))
        for name, since, draw in draws
        for loop, asynchronous, loop_since in (
            ("synchronous", False, ()),
            ("asynchronous", True, _ASYNCHRONOUS),
        )
    )


VLLM = Engine(
    package=PACKAGE,
    kept=("vllm/v1/", "vllm/utils", "vllm/config", "vllm/engine/", "vllm/entrypoints/"),
    program=Path(__file__).with_name("vllm_child.py"),
    config=config,
    variants=_variants(),
    releases=("0.8", "0.9", "0.10", "0.12", "0.15", "0.19", "0.24", "0.29", "0.33", "newest"),
    gated=("0.15", "0.24", "newest"),
    recorded=("0.15", "0.24", "0.29", "0.33"),
    settings=tuple(f"vllm/config/{name}.py" for name in ("scheduler", "cache", "parallel", "speculative")),
    sources=(
        "vllm/v1/core/sched",
        "vllm/v1/core/kv_cache_manager.py",
        "vllm/v1/core/kv_cache_coordinator.py",
        "vllm/v1/core/single_type_kv_cache_manager.py",
        "vllm/v1/core/block_pool.py",
        "vllm/v1/request.py",
        "vllm/v1/engine/core.py",
        "vllm/engine/arg_utils.py",
    ),
)
