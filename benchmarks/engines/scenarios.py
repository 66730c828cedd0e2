"""Random scenarios of an engine with vLLM's settings."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from benchmarks.engines.scenario import ANSWERS, RequestSpec, Scenario, prompt_tokens
from blis_py.core.slo import instance_priorities

_BLOCK_SIZES = (4, 8, 16)
_SCARCE_BLOCKS = (40, 100, 200)
_AMPLE_BLOCKS = 2000
_BUDGETS = (8, 16, 24, 32, 48, 64, 100, 128, 200, 256, 512)
_THRESHOLDS = (0, 0, 0, 5, 16, 40)
_ROOMS = (60, 150, 400)
_GAPS = (0, 0, 0, 1, 1, 2, 5, 20)
_LIMITS = (3, 20, 80)
_MAX_STEPS = 6000
PRIORITIES_SINCE = (0, 11)
"""vLLM 0.10 computes a request in the step that preempts it for a more urgent one."""
_OWN = 1000
"""Segments from this one on are prompts' own parts."""


class Setting(NamedTuple):
    """A setting of an engine that few servers change.

    Attributes:
        since: first release that has it.
        values: drawn among.
    """

    name: str
    since: tuple[int, ...]
    values: tuple[Any, ...]


DEFAULTS = "defaults"
"""Mode: settings that servers rarely change are the engine's defaults."""
EVERYTHING = "all settings"
"""Mode: all of them vary."""


def scenario(
    rng: Random,
    release: tuple[int, ...],
    asynchronous: bool,
    mode: str = EVERYTHING,
    further: Sequence[Setting] = (),
) -> Scenario:
    """A small server, with scarce or ample KV blocks, and up to 60 requests.

    Args:
        further: settings that vary besides, with the mode for it.
    """
    defaults = mode == DEFAULTS
    block_size = rng.choice(_BLOCK_SIZES)
    blocks = rng.randint(20, rng.choice(_SCARCE_BLOCKS)) if rng.random() < 0.85 else _AMPLE_BLOCKS
    seqs = rng.randint(1, 32)
    drawn = Scenario(
        block_size=block_size,
        num_kv_blocks=blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=rng.choice([tokens for tokens in _BUDGETS if tokens >= seqs]),
        long_prefill_token_threshold=0 if defaults else rng.choice(_THRESHOLDS),
        policy="fcfs" if defaults or release < PRIORITIES_SINCE else rng.choice(("fcfs", "fcfs", "priority")),
        async_scheduling=asynchronous,
        enable_prefix_caching=defaults or rng.random() < 0.75,
        max_model_len=blocks * block_size if rng.random() < 0.7 else rng.randint(20, blocks * block_size),
        known_keys=rng.choice(("all", "prompt", "shared")),
        max_steps=_MAX_STEPS,
        settings={},
        ours={},
    )
    if not defaults:
        drawn["settings"] = {each.name: rng.choice(each.values) for each in further if each.since <= release}
    drawn["long_prefill_token_threshold"] = min(drawn["long_prefill_token_threshold"], drawn["max_model_len"])
    drawn["requests"] = requests(rng, drawn)
    return drawn


def requests(rng: Random, drawn: Scenario) -> list[RequestSpec]:
    """Requests for a server with these settings."""
    longest = drawn["max_model_len"]
    room = min(longest, rng.choice(_ROOMS))
    stops, aborts = rng.random() < 0.5, rng.random() < 0.2
    priorities = _priorities(rng)
    groups = [rng.randint(1, max(room // 2, 2)) for _ in range(rng.randint(1, 4))]
    every: list[RequestSpec] = []
    step = 0
    for number in range(rng.randint(5, 60)):
        step += rng.choice(_GAPS)
        turn = _earlier_turn(rng, room, every) if drawn["known_keys"] == "all" else None
        prompt = _prompt(rng, number, room, groups, turn)
        length = sum(count for _, count in prompt)
        if length >= longest:
            continue
        limit = rng.randint(1, max(min(rng.choice(_LIMITS), room - length, longest - length), 1))
        uncut = longest - length <= max(_LIMITS) and rng.random() < 0.3
        most = longest - length if uncut else limit
        since = rng.choice(_GAPS) if turn else step
        spec = RequestSpec(
            id=f"r{number:03}",
            step=since,
            arrival=since + number * 1e-4,  # clocks of engines are finer than their steps
            prompt=prompt,
            answer=ANSWERS + number,
            shared_tokens=sum(count for segment, count in prompt if segment != _OWN + number),
            output_tokens=rng.randint(1, most) if stops else most,
            max_tokens=0 if uncut else limit,
            priority=rng.choice(priorities),
        )
        if turn:
            spec["after"] = turn["id"]
        if aborts and rng.random() < 0.2:
            spec["abort_step"] = since + rng.randint(0, 40)
        every.append(spec)
    return every


def _earlier_turn(rng: Random, room: int, before: list[RequestSpec]) -> RequestSpec | None:
    """A request whose conversation the next one continues, now and then."""
    if not before or rng.random() > 0.15:
        return None
    turn = rng.choice(before)
    return turn if prompt_tokens(turn) + turn["output_tokens"] < room // 2 else None


def _priorities(rng: Random) -> list[int]:
    """Priorities of requests: numbers of clients, or those of SLO classes."""
    return [0, 1, 2, 3] if rng.random() < 0.5 else sorted(set(instance_priorities().values()))


def _prompt(
    rng: Random, number: int, room: int, groups: list[int], turn: RequestSpec | None
) -> list[list[int]]:
    """A prompt that continues a conversation, or begins with the prefix of a group, or neither."""
    runs: list[list[int]] = []
    if turn:
        runs = [*turn["prompt"], [turn["answer"], turn["output_tokens"]]]
    elif rng.random() < 0.7:
        group = rng.randrange(len(groups))
        whole = groups[group]
        runs = [[group, rng.randint(0, whole) if rng.random() < 0.3 else whole]]
    runs = [run for run in runs if run[1]]
    own = rng.randint(0 if runs else 1, max(room // 2 - sum(count for _, count in runs), 1))
    return [*runs, [_OWN + number, own]] if own else runs
