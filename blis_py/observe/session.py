"""A whole measurement: from a workload and a server to files."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.observe._journal import NAME as JOURNAL
from blis_py.observe._journal import MeasurementJournal, digest
from blis_py.observe._server import counting, model_of, rtt_ms, scrape
from blis_py.observe.driver import Driver, MeasuredRequest, Style
from blis_py.observe.findings import late_note, latencies_ms, lateness, summary, write
from blis_py.observe.http import HttpClient, HttpError, Target
from blis_py.observe.prompts import Counting, WordedPrompts
from blis_py.requests.loops import Loops
from blis_py.requests.table import RequestTable
from blis_py.serve.wallclock import loop_factory

METRICS_NAME = "metrics.txt"
_SHOW_EVERY_S = 1.0
_WARM_CONNECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Settings of a measurement."""

    target: Target
    table: RequestTable
    folder: Path
    loops: Loops | None = None
    model: str | None = None
    chat: bool = False
    streams: bool = True
    unconstrained: bool = False
    vocab: tuple[int, int] | None = None
    """Prompts are lists of ids in this range; None = texts."""
    timeout_s: float = 300.0
    max_concurrency: int | None = None
    warm_up_requests: int = 0
    rtt_ms: float | None = None
    """None = measured."""
    metrics_path: str | None = None
    scrape_s: float = 1.0
    seed: int = 42
    workload: str | None = None
    server_type: str = "vllm"
    resume: bool = False
    force: bool = False
    """Replace the measurement that is in the folder."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, object]:
        """Settings that a resumed measurement shares with the interrupted one."""
        loops = self.loops.parts if self.loops is not None else []
        return {
            "requests": len(self.table),
            "workload": digest(self.table),
            "seed": self.seed,
            "model": self.model,
            "chat": self.chat,
            "streams": self.streams,
            "unconstrained": self.unconstrained,
            "prompt_ids": None if self.vocab is None else list(self.vocab),
            "loops": [[one.permits, one.think_ns, one.paced] for one in loops],
            "max_concurrency": self.max_concurrency,
        }


class Observation:
    """One measurement in progress."""

    def __init__(self, measurement: Measurement, say: Callable[[str], None]) -> None:
        self._measurement, self._say = measurement, say
        self.measured: list[MeasuredRequest] = []
        self.model, self.rtt_ms, self.whole = "", 0.0, False
        self._started = datetime.now(UTC)
        self._counting = Counting()

    def run(self) -> None:
        """Measure; an interruption leaves what was measured, and a journal to resume from.

        Raises:
            InputError: the server does not answer, or the folder holds another measurement.
        """
        measurement = self._measurement
        journal = MeasurementJournal(measurement.folder / JOURNAL, measurement.identity)
        self.measured = journal.begin(resume=measurement.resume, force=measurement.force)
        if not self.measured:
            (measurement.folder / METRICS_NAME).unlink(missing_ok=True)  # of another measurement
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._run(journal))
            self.whole = True
        finally:
            journal.end(remove=False)

    def finish(self) -> None:
        """Write the files; a complete measurement no longer needs its journal."""
        measurement, late = self._measurement, lateness(self.measured)
        run = {
            "schema": 1,
            "started_at": self._started.isoformat(timespec="seconds"),
            "complete": self.whole,
            "workload": {"source": measurement.workload, "seed": measurement.seed},
            "loop": {"kind": "open" if measurement.loops is None else "closed"},
            "client": {
                "api": "chat" if measurement.chat else "completions",
                "streaming": measurement.streams,
                "send_error": late,
                "rtt_ms": self.rtt_ms,
            },
            "measured": summary(self.measured),
            "model": self.model,
        }
        header = {
            "warm_up_requests": measurement.warm_up_requests,
            "network": {"measured_rtt_ms": round(self.rtt_ms, 3)},
        }
        server = {"type": measurement.server_type, "model": self.model}
        write(
            measurement.folder,
            measurement.table,
            self.measured,
            run,
            header=header,
            server=server,
            seed=measurement.seed,
            workload=measurement.workload,
        )
        if self.whole:
            (measurement.folder / JOURNAL).unlink(missing_ok=True)
        note = late_note(late)
        if note:
            self._say(f"note: {note}")

    async def _run(self, journal: MeasurementJournal) -> None:
        measurement = self._measurement
        client, beside = HttpClient(measurement.target), HttpClient(measurement.target)
        self.model = await model_of(beside, measurement.model)
        prompts = await self._prompts(beside)
        self.rtt_ms = await self._rtt_ms(beside) if measurement.rtt_ms is None else measurement.rtt_ms
        with suppress(HttpError):
            await client.warm(_WARM_CONNECTIONS)
        driver = self._driver(client, prompts, journal)
        driver.prepare()
        gc.collect()
        gc.freeze()  # or collections would walk the workload again and again
        tasks = self._tasks(beside, journal)
        try:
            await driver.run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            gc.unfreeze()
            client.close()
            beside.close()

    def _driver(self, client: HttpClient, prompts: WordedPrompts, journal: MeasurementJournal) -> Driver:
        """Driver of the requests that have not been measured yet."""
        measurement = self._measurement
        style = Style(
            model=self.model,
            chat=measurement.chat,
            streams=measurement.streams,
            unconstrained=measurement.unconstrained,
            timeout_s=measurement.timeout_s,
            extra=measurement.extra,
        )

        def on_end(measured: MeasuredRequest) -> None:
            self.measured.append(measured)
            journal.add(measured)

        done = frozenset(one.row for one in self.measured)
        return Driver(
            measurement.table,
            measurement.loops,
            prompts,
            client,
            style,
            on_end,
            done=done,
            max_concurrency=measurement.max_concurrency,
            started_ns=self._before_ns(done),
        )

    def _tasks(self, client: HttpClient, journal: MeasurementJournal) -> list[asyncio.Task[None]]:
        """Tasks beside the requests: the journal and progress, and the scraping of metrics."""
        measurement = self._measurement
        tasks = [asyncio.create_task(self._show(journal))]
        if measurement.metrics_path is not None:
            file = measurement.folder / METRICS_NAME
            tasks.append(
                asyncio.create_task(scrape(client, measurement.metrics_path, file, measurement.scrape_s))
            )
        return tasks

    async def _prompts(self, client: HttpClient) -> WordedPrompts:
        measurement = self._measurement
        plain = WordedPrompts(measurement.table, measurement.seed, measurement.vocab, Counting())
        if measurement.vocab is not None:
            return plain
        self._counting = await counting(
            client, self.model, measurement.chat, lambda words: plain.text([n * 7 for n in range(words)])
        )
        return WordedPrompts(measurement.table, measurement.seed, None, self._counting)

    async def _rtt_ms(self, client: HttpClient) -> float:
        try:
            return await rtt_ms(client)
        except HttpError:
            return 0.0

    def _before_ns(self, done: frozenset[int]) -> int:
        """Time of the workload at which a resumed measurement goes on."""
        if not done:
            return 0
        left = [row for row in range(len(self._measurement.table)) if row not in done]
        return int(self._measurement.table.arrival_ns[left].min()) if left else 0

    async def _show(self, journal: MeasurementJournal) -> None:
        """Keep the journal on disk, and on a terminal show the percentiles so far."""
        while True:
            await asyncio.sleep(_SHOW_EVERY_S)
            journal.flush()
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[2K{_line(self.measured, len(self._measurement.table))}")
                sys.stderr.flush()


def _line(measured: list[MeasuredRequest], total: int) -> str:
    parts = [f"{time.strftime('%H:%M:%S')} {len(measured):,} of {total:,} requests"]
    for name, values in latencies_ms(measured[-2000:]).items():
        if len(values):
            p50, p99 = np.percentile(values, (50, 99))
            parts.append(f"{name.upper()} p50 {p50:.1f} p99 {p99:.1f} ms")
    failed = sum(one.end[0] != "ok" for one in measured)
    return " · ".join([*parts, *([f"{failed:,} failed"] if failed else [])])
