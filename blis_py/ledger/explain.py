"""Explanation of a request's latency, and of what would have changed it.

    explanation = blis.explain("out/chat", metric="critical.ttft.p99")
    explanation = blis.explain(model="llama-3.1-8b", rate=20, request="request_17")
    print(explanation)

The run is simulated twice: once to find the request in question, and once more with a witness beside the
instances. Runs without an explanation keep none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.api import Simulation, build
from blis_py.config.loader import as_dict
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.paths import is_folder
from blis_py.latency.notes import forget
from blis_py.ledger import kinds
from blis_py.ledger._reproduced import differences
from blis_py.ledger.book import Bookkeeper, InTheWay, Ledger, life_of
from blis_py.ledger.division import Divider
from blis_py.ledger.lines import LedgerLine, Times, add
from blis_py.ledger.question import PER_TOKEN, Question, QuestionMatch, find, question_of
from blis_py.ledger.what_if import (
    MeasuredEffect,
    WhatIf,
    WhatIfChange,
    candidates,
    measure,
    parse_changes,
    relative,
    run_all,
)
from blis_py.ledger.witness import Watched, Witness
from blis_py.metrics.groups import slo_classes
from blis_py.metrics.latencies import latencies
from blis_py.metrics.record import RunRecord
from blis_py.metrics.registry import METRICS
from blis_py.report.saved import SavedResult, load
from blis_py.result import Result
from blis_py.setup.setup import Progress

if TYPE_CHECKING:
    from blis_py.figures.style import Picture

_MAX_OTHERS = 10
"""Number of interfering requests listed by name; the others are counted."""

Run = str | Path | RunConfig | Simulation | Result | SavedResult
Stage = Callable[[str], Progress | None]
"""Called with the next stage; returns its progress callback."""


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`. `print` shows it as the command does; `as_dict` is the command's JSON."""

    question: Question
    found: QuestionMatch
    simulation: Simulation
    record: RunRecord
    ledger: Ledger | None
    """Ledger of the request in question; None if there is none, and `found.no_match` has the reason."""
    slowest: tuple[Ledger, ...] = ()
    """For a statistic: the requests that are as slow or slower, including the request itself."""
    typical: Ledger | None = None
    """For a statistic: the ledger of the median request."""
    before: MeasuredEffect | None = None
    """Figures of the run itself, as reference for the what-ifs."""
    what_ifs: tuple[WhatIf, ...] = ()
    source: str | None = None
    """Folder of a saved run."""
    not_reproduced: str | None = None
    """Differences between the run simulated again and the saved one."""

    def __str__(self) -> str:
        from blis_py.report.explain import text_of

        return text_of(self.as_dict())

    def __repr__(self) -> str:
        answer = "no match" if self.ledger is None else self.ledger.request
        return f"Explanation({self.question.in_words()}: {answer})"

    def plot(self) -> Picture:
        """The ledger and the what-ifs as a picture."""
        from blis_py.figures.ledger import ledger

        return ledger(self.as_dict(), as_dict(self.simulation.config))

    def as_dict(self) -> dict[str, Any]:
        """All results as plain data; times in whole ns. A new object with every call."""
        return {**self._fields}

    @cached_property
    def _fields(self) -> dict[str, Any]:
        match, ledger = self.found, self.ledger
        return {
            "question": self.question.in_words(),
            "metric": None if self.question.request else self.question.metric,
            "models": self.simulation.models,
            "source": self.source,
            "not_reproduced": self.not_reproduced,
            "value_ns": match.value_ns,
            "requests": match.count,
            "no_match": match.no_match or None,
            "nobody": match.no_match or None,  # former name of `no_match`
            "request": None if ledger is None else self._request(match.row, ledger),
            "share_of": self._metric,
            "per_token": self._metric in PER_TOKEN,
            "ledger": [] if ledger is None else self._lines(ledger),
            "in_the_way": [] if ledger is None else self._in_the_way(ledger),
            "others_in_the_way": 0 if ledger is None else max(len(ledger.in_the_way) - _MAX_OTHERS, 0),
            "slowest": {"requests": match.slower, "looked_at": len(self.slowest)} if self.slowest else None,
            "typical": None if self.typical is None else self.typical.request,
            "before": None if self.before is None else self._measured(self.before),
            "what_ifs": [self._what_if(one) for one in self.what_ifs],
        }

    def _request(self, row: int | None, ledger: Ledger) -> dict[str, Any]:
        assert row is not None
        record, columns = self.record, latencies(self.record)
        table = record.table
        times = {
            f"{name}_ns" if of.unit.is_time else of.key: _known(columns.column(name)[row])
            for name, of in METRICS.items()
        }
        return {
            "id": ledger.request,
            "slo_class": slo_classes(record)[row],
            "instance": int(record.instance[row]) if record.instance[row] >= 0 else None,
            "outcome": ledger.outcome.name.lower(),
            "arrival_ns": int(table.arrival_ns[row]),
            "prompt_tokens": int(table.prompt_tokens[row]),
            "cached_tokens": int(record.cached_tokens[row]),
            "output_tokens": int(record.emitted_tokens[row]),
            "preemptions": ledger.preemptions,
            "prefill_steps": ledger.prefill_steps,
            "decode_steps": ledger.decode_steps,
            "decode_batch": ledger.batch_size,
            **times,
            "total_ns": ledger.total_ns,
            "client_wait_ns": ledger.client_ns,
            **({} if record.visits.single else {"visits": self._visits(row)}),
        }

    def _visits(self, row: int) -> list[dict[str, Any]]:
        """The visits of a request to instances, in order."""
        visits = self.record.visits
        own, _ = visits.of(np.array([row]))
        return [
            {
                "instance": int(visits.instance[one]),
                "pool": self.record.instances[visits.instance[one]].pool,
                "enqueue_ns": int(visits.enqueue_ns[one]),
                "finish_ns": int(visits.finish_ns[one]),
                "output_tokens": int(visits.emitted_tokens[one]),
            }
            for one in own.tolist()
            if visits.instance[one] >= 0
        ]

    @property
    def _metric(self) -> str:
        """The metric whose shares are shown; E2E of a single request."""
        return "e2e" if self.question.request else self.question.metric

    def _lines(self, ledger: Ledger) -> list[dict[str, Any]]:
        slowest: Times = {}
        for row, one in zip(self.found.slowest, self.slowest, strict=True):
            add(slowest, self._of(row, one))
        typical = {} if self.typical is None else self._of(self.found.typical, self.typical)
        own = self._of(self.found.row, ledger)
        counted = ledger.of(self._metric)
        total = sum(counted.values())
        there = [
            line for line in LedgerLine if any(line in times for times in (ledger.whole, slowest, typical))
        ]
        return [
            {
                "line": line.name.lower(),
                "what": line.value,
                "first_token_ns": ledger.first.get(line, 0) if ledger.ttft_ns is not None else None,
                "whole_ns": ledger.whole.get(line, 0),
                "asked_ns": own.get(line, 0),
                "share": counted.get(line, 0) / total if total else None,
                "slowest_ns": slowest.get(line, 0) / len(self.slowest) if self.slowest else None,
                "typical_ns": typical.get(line, 0) if self.typical is not None else None,
            }
            for line in there
        ]

    def _of(self, row: int | None, ledger: Ledger) -> Times:
        """The times that make up the metric of a request; for a metric per token, divided by its gaps."""
        times = ledger.of(self._metric)
        if self._metric not in PER_TOKEN or ledger.ttft_ns is None:
            return times
        gaps = max(int(self.record.emitted_tokens[row]) - 1, 1)
        return {line: round(ns / gaps) for line, ns in times.items()}

    def _in_the_way(self, ledger: Ledger) -> list[dict[str, Any]]:
        def most(one: InTheWay) -> tuple[int, int, str]:
            return (-one.waited_ns - one.in_steps_ns, -one.in_steps_ns, one.request)

        record = self.record
        rows = {record.table.id_of(row): row for row in range(len(record.table))}
        classes = slo_classes(record)
        return [
            {
                "id": one.request,
                "slo_class": classes[rows[one.request]],
                "prompt_tokens": int(record.table.prompt_tokens[rows[one.request]]),
                "output_tokens": int(record.emitted_tokens[rows[one.request]]),
                "waited_ns": one.waited_ns,
                "in_steps_ns": one.in_steps_ns,
                "went_ahead": one.went_ahead,
            }
            for one in sorted(ledger.in_the_way.values(), key=most)[:_MAX_OTHERS]
        ]

    def _measured(self, measured: MeasuredEffect) -> dict[str, Any]:
        return {"asked_ns": measured.value_ns, **measured.figures}

    def _what_if(self, one: WhatIf) -> dict[str, Any]:
        stated: dict[str, Any] = {"change": one.change.title, "settings": dict(one.change.settings)}
        if one.measured is None or self.before is None:
            return stated | {"refused": one.refused}
        before, after = self.before.figures, one.measured.figures
        changes = {name: relative(before.get(name), after.get(name)) for name in after}
        interval = None if one.figure_change is None else one.figure_change.interval
        stated |= {"after": self._measured(one.measured), "asked": one.gain(self.before)}
        stated |= {"asked_interval": interval, "noise": one.noise}
        return stated | {"changes": changes}


def explain(
    run: Run | None = None,
    /,
    *,
    request: str | None = None,
    metric: str | None = None,
    slo_class: str | None = None,
    what_if: bool | Sequence[str] = True,
    stage: Stage | None = None,
    **settings: Any,
) -> Explanation:
    """Explain the latency of a request: where its time went, which requests interfered, and what would have
    changed it.

    Args:
        run: the folder of a saved run, a result, a simulation, or what `build` takes.
        request: the request to explain, by name.
        metric: the request that determines a statistic: `ttft.p99`, `critical.e2e.max`. Without it and
            without a request: `ttft.p99`.
        slo_class: class of the metric, if that names none.
        what_if: simulate the same requests with other settings: suggested ones, given ones
            (`"scheduler=sjf"`), or none.
        stage: called before each simulation.
        settings: as of `build`.

    Raises:
        InputError: no such request, metric or class; a folder that is not a saved run; an invalid setting.
    """
    question = question_of(request, metric, slo_class)
    stated: Stage = stage or (lambda what: None)
    simulation, result, saved = _resolved(run, settings)
    changes = _changes(simulation, what_if)
    if result is None:
        question.check(simulation.table)
        result = simulation.run(record_steps=False, progress=stated("the run"))
    record = result.record
    _check_names(record)
    match = find(record, question)
    explanation = Explanation(question, match, simulation, record, None)
    if saved is not None:
        other = differences(saved.summary, result.summary)
        explanation = replace(explanation, source=str(saved.folder), not_reproduced=other)
    if match.row is None:
        return explanation
    before = measure(record, question)
    ledgers = _ledgers(simulation, record, match, stated("the run with a witness"))
    what_ifs = run_all(simulation, changes, question, before, stated("what-ifs") if changes else None)
    for pool in simulation.pools:
        forget(pool.latency)
    return replace(
        explanation,
        ledger=ledgers[match.row],
        slowest=tuple(ledgers[row] for row in match.slowest),
        typical=None if match.typical is None else ledgers[match.typical],
        before=before,
        what_ifs=tuple(what_ifs),
    )


def _resolved(
    run: Run | None, settings: dict[str, Any]
) -> tuple[Simulation, Result | None, SavedResult | None]:
    """The simulation, its result if known, and the saved result.

    Raises:
        InputError: both a run and settings are given.
    """
    if isinstance(run, str | Path) and is_folder(run):
        run = load(run)
    if settings and isinstance(run, Result | SavedResult | Simulation):
        fix = "change the configuration with what_if, or give no run"
        raise InputError("a run is given already", key=next(iter(settings)), fix=fix)
    if isinstance(run, SavedResult):
        return Simulation.of(run.config), None, run
    if isinstance(run, Result):
        known = run.simulation
        return known if isinstance(known, Simulation) else Simulation.of(run.config), run, None
    return run if isinstance(run, Simulation) else build(run, **settings), None, None


def _check_names(record: RunRecord) -> None:
    """Check that request names are unique, because requests are followed by name.

    Raises:
        InputError: several requests have the same name.
    """
    names: set[str] = set()
    for name in record.table.ids():
        if name in names:
            fix = "give every request of the trace an id of its own"
            raise InputError("several requests have this id, so none can be followed", value=name, fix=fix)
        names.add(name)


def _changes(simulation: Simulation, what_if: bool | Sequence[str]) -> list[WhatIfChange]:
    if isinstance(what_if, bool):
        return candidates(simulation) if what_if else []
    return parse_changes([what_if] if isinstance(what_if, str) else what_if, simulation.config)


def _ledgers(
    simulation: Simulation, record: RunRecord, match: QuestionMatch, progress: Progress | None
) -> dict[int, Ledger]:
    """Ledgers of all relevant requests, by row."""
    assert match.row is not None
    rows = sorted({match.row, *match.slowest, *([] if match.typical is None else [match.typical])})
    return ledgers(simulation, record, rows, progress)


def ledgers(
    simulation: Simulation, record: RunRecord, rows: Sequence[int], progress: Progress | None = None
) -> dict[int, Ledger]:
    """Ledgers of some requests of a run, by row.

    Args:
        record: the record of the simulation.
    """
    witness = Witness(watched(record, rows), kinds.noting(simulation.kind))
    again = simulation.simulate(False, progress, witness)[0]
    arrivals = dict(zip(record.table.ids(), record.table.arrival_ns.tolist(), strict=True))
    notes = {index: notes.runs for index, notes in witness.notes.items()}
    alone = kinds.chunk_alone(simulation.kind)
    dividers = [Divider(pool.latency, alone) for pool in simulation.pools for _ in range(pool.section.count)]
    books = Bookkeeper(again, notes, dividers, arrivals)
    return {row: books.ledger(row) for row in rows}


def watched(record: RunRecord, rows: Sequence[int]) -> list[Watched]:
    """The instances and times at which a witness has to watch these requests."""
    return [
        Watched(
            record.table.id_of(row),
            stay.instance,
            stay.ready_ns,
            stay.cut_ns,
            int(record.table.prompt_tokens[row]),
        )
        for row in rows
        for stay in life_of(record, row).stays
    ]


def _known(value: float) -> float | None:
    return None if value != value else float(value)
