"""Random plans and sweeps of few requests, and all that they say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from drawing import HERE, Values, digest, drawn
from imagined import Imagined

from blis_py.errors import InputError
from blis_py.planning.plan import Plan

BASE = {"model": "qwen3-14b", "gpu": "h100", "latency_model": "roofline"}
SCENARIO = HERE / "inputs" / "scenario"
TRAFFIC: Values = {
    "prompt_tokens": (60, 500),
    "prompt_tokens_stdev": (0, 50),
    "output_tokens": (6, 20),
    "output_tokens_stdev": (0, 5),
    "num_requests": (16, 30),
    "arrival": ("poisson", "constant"),
    "prefix_tokens": (40,),
    "max_num_seqs": (2, 8),
}
SLOS = ("ttft.p99=40ms", "ttft.p99=15ms e2e.p90=300ms", "itl.mean=12ms", "ttft.p50=1ms")
MET_BY_SOME = ("ttft.p99=1s", "itl.mean=60ms", "ttft.p99=3s e2e.p90=9s", "ttft.p50=500ms")
"""Targets that some of the imagined runs meet."""
SERVED: Values = {
    "scheduler": ("priority-fcfs", "sjf", "lpm"),
    "prefix_cache": ("none", "radix"),
    "long_prefill_token_threshold": (100,),
    "async_scheduling": (False,),
    "num_kv_blocks": (4000,),
    "routing_policy": ("weighted", "least-loaded"),
    "engine": ("sglang", "trtllm"),
    "preemption_policy": ("priority",),
    "trace": (str(SCENARIO / "azure.csv"), str(SCENARIO / "mooncake.jsonl")),
}
"""What the scripts that start servers must cope with."""
OPTIONS: Values = {
    "attainment": ("90%", "99%"),
    "max_lost": ("2%", 0.1),
    "at_least": ("output_tokens_per_s=400", "requests_per_s=20"),
    "confidence": ("50%", "90%"),
    "prices": ({"h100": 2.5, "h200": 3.5},),
    "draws": (2, 3),
    "tune": (True, False),
    "most_requests": (30, 60),
}
MADE = ("prompt_tokens", "prompt_tokens_stdev", "output_tokens", "output_tokens_stdev", "num_requests")
MADE += ("prefix_tokens", "arrival")
CHOICES: Values = {
    "tp": ((1, 2),),
    "gpu": (("h100", "h200"), ("h100", "a100-80")),
    "scheduler": (("fcfs", "sjf"),),
    "max_num_batched_tokens": ((256, 2048),),
    "max_num_seqs": ((8, 64, 256),),
}


def plans(first: str, count: str) -> Iterator[str]:
    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"plans {seed}")
        try:
            yield f"{seed} {' '.join(_planned(rng))}"
        except InputError as error:
            yield f"{seed} refused: {error}"


def searched(first: str, count: str) -> Iterator[str]:
    """Plans over imagined runs, and the files that they leave."""
    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"searched {seed}")
        runner = nullcontext(Imagined(rng))
        try:
            with patch("blis_py.planning.api.running", lambda *_, one=runner: one):
                yield f"{seed} {' '.join(_planned(rng, with_files=True))}"
        except InputError as error:
            yield f"{seed} refused: {error}"


def _planned(rng: Random, with_files: bool = False) -> Iterator[str]:
    from blis_py.planning.api import plan, sweep

    kind = rng.choice(("plan", "plan", "plan", "max rate", "sweep"))
    settings: dict[str, Any] = BASE | {
        "rate": rng.choice((10, 60, 250)),
        "num_requests": 20,
        "output_tokens": 10,
    }
    slos = (*SLOS, *MET_BY_SOME, *MET_BY_SOME) if with_files else SLOS
    settings |= drawn(TRAFFIC, 0.4, rng) | {"slo": rng.choice(slos)}
    options: dict[str, Any] = {"draws": 0, "tune": False, "most_requests": 30, **drawn(OPTIONS, 0.35, rng)}
    vary: dict[str, Any] = drawn(CHOICES, 0.25, rng)
    if with_files:
        settings |= {key: value for key, value in drawn(SERVED, 0.12, rng).items() if key not in vary}
        settings = {
            key: value for key, value in settings.items() if "trace" not in settings or key not in MADE
        }
        options |= drawn({"most_requests": (1000,), "trials": (4,), "prices": ({}, {"h100": 2.0})}, 0.4, rng)
    common = {"workers": 1, "cache": False}
    if "gpu" in vary:
        settings.pop("gpu")
    if kind == "sweep":
        made = sweep(vary=vary or {"tp": (1, 2)}, **common, **settings)
        yield f"{kind} {digest([row.as_dict() for row in made.rows])} {digest(str(made))}"
        return
    if kind == "plan":
        sizes = ("1:3", "1:2", [1, 4], *(("1:20", "2:40:3") if with_files else ()))
        options |= {"instances": rng.choice(sizes)}
    else:
        settings.pop("rate")
        options |= {"max_rate": True, **rng.choice(({}, {}, {"gpus": 4}, {"budget": 12.0}))}
        options.pop("confidence", None)
    options |= {"draws": 2} if "confidence" in options else {}
    settings |= {"goodput": "ttft:30 tpot:15"} if "attainment" in options else {}
    progress: list[str] = []
    found = plan(vary=vary, on_progress=progress.append, **common, **options, **settings)
    yield f"{kind} {digest(found.summary)} {digest(str(found))}"
    if with_files:
        yield f"progress {digest(progress)}"
        yield from _files(found)


def _files(found: Plan) -> Iterator[str]:
    from battery import condensed, described_pictures

    with tempfile.TemporaryDirectory() as place, described_pictures():
        found.save(place, force=True)
        for path in sorted(Path(place).iterdir()):
            if path.suffix != ".json":
                yield from condensed(path.name, path.read_text(encoding="utf-8").replace(str(HERE), ""))
