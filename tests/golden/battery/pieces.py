"""Parts that no command line reaches by itself: `call NAME ARGUMENT` in a line of `runs`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[2]
for folder in ("latency", "soak", "ledger", "fuzz", "cluster", "extension"):
    if str(TESTS / folder) not in sys.path:
        sys.path.append(str(TESTS / folder))


def drawn(kind: str, seed: str) -> Iterator[str]:
    """A configuration of `make soak`, and what its record says."""
    from configurations import KINDS, digest

    from blis_py.metrics.invariants import check

    record = KINDS[kind](Random(int(seed))).record()
    check(record)
    yield digest(record)


def steps(which: str) -> Iterator[str]:
    """Step times of a latency model, alone and in runs of decodes, and its notes."""
    from latency_cases import decode, models, prefill

    from blis_py.core.features import FEATURES, StepFeatures
    from blis_py.latency.base import overlapped

    model = models()[int(which)]
    yield f"{model.name} {model.provenance} {model.frontend} {model.uses_max_context}"
    mixed = [
        StepFeatures(
            **{name: getattr(prefill(tokens, cached), name) for name in FEATURES}
            | {"decode_seqs": seqs, "decode_kv_tokens": seqs * 100, "emitted_rows": seqs + 1}
        )
        for tokens, cached, seqs in ((1, 0, 1), (77, 0, 3), (300, 200, 40), (5000, 900, 260))
    ]
    alone = [decode(seqs, seqs * long, long) for seqs in (1, 2, 3, 17, 64, 300) for long in (1, 100, 9000)]
    prompts = [prefill(tokens, cached) for tokens in (1, 16, 200, 4096) for cached in (0, 48, 5000)]
    for each in (model, overlapped(model)):
        for features in (*alone, *prompts, *mixed):
            time = each.step(features)
            yield f"{time.gpu_ns} {time.host_ns} {each.step_ns(features)}"
        for features, steps in product(alone, (9, 40)):
            run = each.decode_run(features, steps, 1000)
            yield f"{run.steps} {run.end_ns} {run.ends_ns().tolist()}"
            half_ns = (run.end_ns + 1000) // 2
            cut = each.decode_run(features, steps, 1000, half_ns)
            first = run.first(4)
            yield f"{cut.steps} {cut.end_ns} {first.steps} {first.end_ns} {run.until(half_ns).steps}"
            more = run.then(run.end_ns + 5)
            yield f"{more.steps} {more.end_ns}"
    notes = getattr(model, "notes", None)
    yield f"{notes() if callable(notes) else notes}"


def served(which: str) -> Iterator[str]:
    """A small cluster whose steps that latency model prices."""
    from cluster_runs import table_of
    from configurations import digest
    from latency_cases import models
    from one_pool import simulate
    from routed_runs import routed

    run = routed(Random(7))
    record = simulate(table_of(run.rows), scheduler=run.config, latency=models()[int(which)], num_instances=2)
    yield digest(record)


def read(name: str) -> Iterator[str]:
    """What a reader makes of a file of the scenario."""
    from targets import READERS

    yield text_of(READERS[name.replace("_", " ")].read(Path(__file__).parent / "inputs" / "scenario"))


PIECES: dict[str, Callable[..., Iterator[str]]] = {
    "drawn": drawn,
    "steps": steps,
    "served": served,
    "read": read,
}


def text_of(value: Any, depth: int = 0) -> str:
    """All that an object holds, in an order of its own."""
    if isinstance(value, float | np.floating):
        return f"{float(value) * (1 + 3e-11):.9g}"
    if isinstance(value, np.ndarray):
        return text_of(value.tolist(), depth)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(inner, depth + 1)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text_of(inner, depth + 1) for inner in value) + "]"
    if isinstance(value, str | int | bool | bytes | np.integer) or value is None:
        return str(value)
    if is_dataclass(value) and depth < 9:
        shown = (f"{each.name}={text_of(getattr(value, each.name), depth + 1)}" for each in fields(value))
        return f"{type(value).__name__}({', '.join(shown)})"
    names = sorted(name for name in getattr(value, "__dict__", {}) if not name.startswith("__"))
    if depth > 9 or not names or callable(value):
        return type(value).__name__
    inside = (f"{name}={text_of(getattr(value, name), depth + 1)}" for name in names)
    return f"{type(value).__name__}({', '.join(inside)})"
