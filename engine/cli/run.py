"""`blis engine run`: serve a workload in real time and keep the measurements in a folder."""

from __future__ import annotations

import dataclasses
import platform
import sys
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.cli.flags import perfetto
from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.formats import FORMAT, format_of
from blis_py.cli.flags.out import FORCE, check_out, out_folder, required_out
from blis_py.cli.progress import Progress
from blis_py.core.config import stored
from blis_py.errors import InputError
from blis_py.outputs.exchange import undisturbed
from blis_py.outputs.staging import Outputs, replacing
from blis_py.outputs.stopping import as_exceptions
from engine.cli import kinds
from engine.cli.options import say
from engine.cli.served import FORM, LOAD, SERVED, Ready, make_ready, measuring

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blis_py.outputs.perfetto import Window
    from blis_py.traces.observed import ObservedColumns
    from engine.sequence import Sequence as Running

CONCURRENCY = Flag("--concurrency", int, "", "Closed loop: N under way, the next when one ends.")
OUTPUT = (
    out_folder("trace, token times, step log, run.yaml", needed=True),
    FORCE,
    *perfetto.FLAGS,
    FORMAT,
)
_LOAD = (*(flag for flag in LOAD if flag.name != CONCURRENCY.name), CONCURRENCY)
GROUPS = (("Workload", _LOAD), FORM, *SERVED, ("Output", OUTPUT))
STEP_LOG_NAME = "steps.csv.gz"
BROKEN_OFF = ".broken-off"
"""Suffix of the folder of measurements if a previous run occupies the requested one."""
_PACKAGES = ("blis-py", "torch", "triton", "numpy", "xgrammar")


def run(flags: Flags) -> None:
    """Serve a workload in real time and record every token, for `blis replay` and `blis calibrate`.

    Requests come at the times of the workload whatever the engine does, or with --concurrency each as one
    before it ends. Prompts are made up; they share what the workload says. Where answers come in blocks, the
    rounds of every block are kept too, and a workload with which `blis replay` serves them again. What was
    measured until an interrupt is kept, too.
    """
    from blis_py.traces.observed import ObservedColumns
    from engine.driver import serve

    style = format_of(flags)
    required_out(flags)
    concurrency = flags.get(CONCURRENCY.name)
    if concurrency is not None and concurrency < 1:
        raise InputError("must be at least 1", key=CONCURRENCY.name, value=concurrency)
    check_out(flags)
    window = perfetto.window_of(flags)
    ready = make_ready(flags)
    observer, started = ObservedColumns(ready.table), datetime.now(UTC)
    whole = False
    with as_exceptions(), ExitStack() as trace:
        if window is not None:
            trace.enter_context(_traced(ready, flags[perfetto.FILE], window))
        try:
            with Progress(sys.stderr) as progress, measuring(ready.engine.clock):
                outcomes = serve(
                    ready.engine,
                    ready.table,
                    ready.prompts,
                    concurrency=concurrency,
                    structured=ready.structured,
                    observer=observer,
                    progress=progress,
                )
            whole = True
            _print(ready, observer, outcomes, style)
        finally:
            with undisturbed():
                trace.close()
                _save(flags, ready, observer, concurrency, started, whole=whole)


@contextmanager
def _traced(ready: Ready, path: str, window: Window) -> Iterator[None]:
    """Write the trace for Perfetto step by step; what was measured until an interrupt is kept."""
    from blis_py.outputs.perfetto import PerfettoWriter
    from blis_py.traces.perfetto import MEASURED, StepTrace

    recorder = ready.engine.recorder
    with replacing(path) as staged, staged.open("wb") as file:
        recorder.trace = StepTrace(PerfettoWriter(file, MEASURED, window))
        yield
        recorder.close_trace()


def _print(
    ready: Ready, observer: ObservedColumns, outcomes: Sequence[Running | InputError], style: str
) -> None:
    from blis_py.metrics import summarise
    from blis_py.report.table import print_summary
    from blis_py.result import to_json
    from engine.cli.record import run_record

    record = run_record(ready.engine, observer.sent_table(), outcomes)
    record.config = {"scheduler": stored(ready.engine.scheduler.config)}
    summary = summarise(record)
    if style == "json":
        sys.stdout.write(to_json(summary))
    else:
        print_summary(summary)
    sys.stdout.flush()


def _save(
    flags: Flags,
    ready: Ready,
    observer: ObservedColumns,
    concurrency: int | None,
    started: datetime,
    *,
    whole: bool,
) -> None:
    """Write the folder of the run, interrupted runs included; those never replace a folder."""
    folder, force = Path(flags["--out"]), "--force" in flags
    if not whole and folder.is_dir() and any(folder.iterdir()):
        folder, force = folder.with_name(f"{folder.name}{BROKEN_OFF}"), True
    with Outputs() as outputs:
        _write(outputs.folder(folder, force=force), ready, observer, concurrency, started)
    say(f"{folder}: {_in_words(observer.counts())}")


def _write(
    folder: Path, ready: Ready, observer: ObservedColumns, concurrency: int | None, started: datetime
) -> None:
    """Write all measurements."""
    from blis_py.setup.from_config import DEFAULT_SEED
    from blis_py.traces.tracev2_header import server_type

    engine, config = ready.engine, ready.engine.scheduler.config
    workload, seed = ready.run.workload, ready.run.seed
    source = workload.spec or workload.trace or workload.preset
    if seed is None and workload.spec is None:
        seed = DEFAULT_SEED
    engine.recorder.write(folder / STEP_LOG_NAME)
    kinds.write_files(folder, engine, ready.table, ready.kind)
    meta = {name: value for name, value in engine.recorder.meta.items() if name != "schema"}
    loop = {"kind": "open"} if concurrency is None else {"kind": "closed", "concurrency": concurrency}
    observer.write(
        folder,
        {
            "schema": 1,
            "started_at": started.isoformat(timespec="seconds"),
            "loop": loop,
            "workload": {"source": source, "seed": seed, "requests": len(observer.requests)},
            "requests": observer.counts(),
            **meta,
            **ready.form,
            "engine": dataclasses.asdict(ready.config),
            "versions": _versions(),
        },
        seed=seed,
        workload=source,
        server={
            "type": server_type("blis-engine", kinds.name_of(ready.kind)),
            "model": ready.config.model,
            "tensor_parallel": 1,
            "max_num_seqs": config.max_num_seqs,
            "block_size": config.block_size,
            "gpu_memory_utilization": ready.config.gpu_memory_utilization,
            "max_model_len": config.max_model_len,
        },
    )


def _versions() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _in_words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
