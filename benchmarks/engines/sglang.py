"""SGLang: its releases, kinds of scenarios, and a scenario's settings on our side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random

from benchmarks.engines import presets
from benchmarks.engines.engine import Engine, Release, Variant
from benchmarks.engines.scenario import ANSWERS, RequestSpec, Scenario
from blis_py.core.config import SchedulerConfig

PACKAGE = "sglang"
_PAGES = (1, 16)
_OTHER_PAGES = (1, 2, 4, 32, 64)
MOST_TOKENS = 16384
"""Default of `--max-prefill-tokens`."""
_SEQS = (2, 4, 8, 32, 64)
_CHUNKS = (32, 64, 128, 512)
_GAPS = (0, 0, 0, 1, 2, 8, 30)
_LONGEST_LIMITS = (60, 250)
_PROMPT = 120
_SHARED = (8, 32, 64)
_MAX_STEPS = 20_000
_OWN = 1000


def config(scenario: Scenario, version: str) -> SchedulerConfig:
    """Settings of our scheduler for a scenario, under the preset of a release."""
    own = {
        "num_kv_blocks": scenario["num_kv_blocks"],
        "max_model_len": scenario["max_model_len"],
        "max_num_seqs": scenario["max_num_seqs"],
        "max_num_batched_tokens": scenario["max_num_batched_tokens"],
        "block_size": scenario["block_size"],
        "scheduler": scenario["policy"],
        "async_scheduling": scenario["async_scheduling"],
        "prefix_cache": "radix" if scenario["enable_prefix_caching"] else "none",
        **{key: value for key, value in scenario["settings"].items() if key in presets.FIELDS},
        **scenario["ours"],
    }
    return presets.config(PACKAGE, version, scenario["async_scheduling"], own)


def scenario(
    rng: Random, release: Release, asynchronous: bool, caching: bool, sharing: bool, page: int = 0
) -> Scenario:
    """A small server with scarce or ample KV, and up to 40 requests, about half of which ignore the end of
    sequence.

    Args:
        sharing: prompts of a group begin alike.
        page: tokens of a page; 0 = 1 or 16.
    """
    page = page or rng.choice(_PAGES)
    tokens = rng.randint(200, 1200) if rng.random() < 0.7 else rng.randint(3000, 8000)
    drawn = Scenario(
        block_size=page,
        num_kv_blocks=tokens // page + 8,
        max_num_seqs=rng.choice(_SEQS),
        max_num_batched_tokens=max(rng.choice(_CHUNKS), page),
        long_prefill_token_threshold=0,
        policy="fcfs",
        async_scheduling=asynchronous,
        enable_prefix_caching=caching,
        max_model_len=(tokens // page + 8) * page,
        known_keys="prompt",
        max_steps=_MAX_STEPS,
        settings={},
        ours={},
    )
    drawn["requests"] = _requests(rng, drawn, sharing)
    return drawn


def _requests(rng: Random, drawn: Scenario, sharing: bool) -> list[RequestSpec]:
    longest, stops = rng.choice(_LONGEST_LIMITS), rng.choice((0.0, 0.5, 0.5, 1.0))
    found: list[RequestSpec] = []
    step = 0
    for number in range(rng.randint(5, 40)):
        step += rng.choice(_GAPS)
        prompt, limit = rng.randint(1, _PROMPT), rng.randint(1, longest)
        if prompt + limit + 2 * drawn["block_size"] + 2 >= drawn["max_model_len"]:
            continue
        shared = min(prompt, rng.choice(_SHARED)) if sharing and rng.random() < 0.5 else 0
        runs = [[rng.randint(0, 3), shared], [_OWN + number, prompt - shared]]
        least = 1 if longest == min(_LONGEST_LIMITS) else 1 + 2 * limit // 3
        output = rng.randint(min(least, limit), limit) if rng.random() < stops else limit
        found.append(
            RequestSpec(
                id=f"r{number:03}",
                step=step,
                arrival=step + number * 1e-4,
                prompt=[run for run in runs if run[1]],
                answer=ANSWERS + number,
                shared_tokens=shared,
                output_tokens=output,
                max_tokens=limit,
                priority=0,
            )
        )
    return found


def with_aborts(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Clients of some requests give up: while these wait, in the middle of a prompt, or while they decode."""
    caching = rng.random() < 0.6
    drawn = scenario(rng, release, asynchronous, caching, caching and rng.random() < 0.6)
    share = rng.choice((0.1, 0.3, 0.6))
    for spec in drawn["requests"]:
        if rng.random() < share:
            spec["abort_step"] = spec["step"] + rng.choice((0, 1, 1, 2, 3, rng.randint(0, 40)))
    return drawn


def by_cache(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Queue orders that look into the cache, with few places and with prompts that begin alike."""
    drawn = scenario(rng, release, asynchronous, caching=True, sharing=rng.random() < 0.9)
    drawn["policy"] = rng.choice(("lpm", "dfs-weight"))
    drawn["max_num_seqs"] = rng.choice((2, 4, 8))
    return drawn


def with_priorities(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Priorities that differ by less than what lets a request interrupt others."""
    caching = rng.random() < 0.6
    drawn = scenario(rng, release, asynchronous, caching, caching and rng.random() < 0.6)
    drawn["policy"] = "priority-fcfs"
    drawn["max_num_seqs"] = rng.choice((2, 4, 8, 32))
    for spec in drawn["requests"]:
        spec["priority"] = rng.randint(0, 4)
    return drawn


def with_settings(rng: Random, release: Release, asynchronous: bool) -> Scenario:
    """Settings that few servers change: pages, no chunks, another share for running requests, limits cut at
    `max_model_len`."""
    page = rng.choice(_OTHER_PAGES)
    drawn = scenario(rng, release, asynchronous, caching=rng.random() < 0.6, sharing=True, page=page)
    drawn["settings"]["schedule_conservativeness"] = rng.choice((0.0, 0.3, 1.0, 1.3, 2.0))
    if rng.random() < 0.3:
        drawn["max_num_batched_tokens"] = MOST_TOKENS
        drawn["settings"]["chunked_prefill_size"] = -1
    return drawn


def python() -> Sequence[str] | None:
    """This interpreter with its packages, of which torch is used; None, and a note, without torch."""
    if find_spec("torch") is None:
        print("sglang: skipped, torch is not installed", file=sys.stderr)
        return None
    return (sys.executable, "-I", "-B")


def _variants() -> tuple[Variant, ...]:
    kinds = (
        ("no prefix cache", False, False),
        ("prefix cache, distinct prompts", True, False),
        ("prefix cache, shared prompts", True, True),
    )
    draws: list[tuple[str, Callable[..., Scenario]]] = [
        (name, partial(scenario, caching=caching, sharing=sharing)) for name, caching, sharing in kinds
    ]
    draws += [("aborts", with_aborts), ("orders by cache", by_cache), ("settings", with_settings)]
    draws.append(("priorities", with_priorities))
    return tuple(
        Variant(f"{name}, {loop}", partial(draw, asynchronous=asynchronous))
        for name, draw in draws
        for loop, asynchronous in (("synchronous", False), ("overlapped", True))
    )


SGLANG = Engine(
    package=PACKAGE,
    kept=("sglang/srt/",),
    program=Path(__file__).with_name("sglang_child.py"),
    config=config,
    variants=_variants(),
    releases=("0.5.14", "0.5.22", "newest"),
    gated=("0.5.14", "newest"),
    recorded=(),
    python=python,
    sources=(
        "sglang/srt/managers/scheduler.py",
        "sglang/srt/managers/schedule_batch.py",
        "sglang/srt/managers/schedule_policy.py",
        "sglang/srt/managers/scheduler_components/batch_result_processor.py",
        "sglang/srt/managers/scheduler_components/new_token_ratio_tracker.py",
        "sglang/srt/mem_cache/prefill_budget.py",
        "sglang/srt/arg_groups",
    ),
)
