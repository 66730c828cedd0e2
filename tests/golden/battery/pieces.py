"""Parts that no command line reaches by itself: `call NAME ARGUMENT` in a line of `runs`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from random import Random

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
    from shown import text_of
    from targets import READERS

    yield text_of(READERS[name.replace("_", " ")].read(Path(__file__).parent / "inputs" / "scenario"))


PIECES: dict[str, Callable[..., Iterator[str]]] = {
    "drawn": drawn,
    "steps": steps,
    "served": served,
    "read": read,
}
DRAWN = {
    "runs": "draws",
    "figures": "drawn_figures",
    "logs": "drawn_traces",
    "scraped": "drawn_traces",
    "prices": "drawn_prices",
    "tables": "drawn_prices",
    "launched": "drawn_prices",
    "hostile": "drawn_files",
    "texts": "drawn_files",
    "written": "drawn_files",
    "plans": "drawn_plans",
    "searched": "drawn_plans",
    "decided": "drawn_decisions",
    "answers": "drawn_answers",
    "parts": "drawn_parts",
}
"""Modules of further pieces. Each of their lines is kept by itself."""


def piece(name: str) -> Callable[..., Iterator[str]]:
    return PIECES[name] if name in PIECES else getattr(import_module(DRAWN[name]), name)
