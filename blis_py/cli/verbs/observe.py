"""`blis observe`: measure a server under a workload."""

from __future__ import annotations

import os
import sys
from math import inf
from pathlib import Path
from shutil import copyfile
from typing import Any

from blis_py.cli.flags import vllm_flags
from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.formats import FORMAT, format_of
from blis_py.cli.flags.options import TRACE, WORKLOAD
from blis_py.cli.flags.out import FORCE, out_folder
from blis_py.cli.verbs._execute import say
from blis_py.cli.verbs.serve import without
from blis_py.config.workload import WorkloadSection
from blis_py.core.bounds import check_count, clock_ns
from blis_py.errors import InputError
from blis_py.files.paths import exists, is_folder
from blis_py.observe.bench import bench_figures, bench_lines
from blis_py.observe.http import Target
from blis_py.observe.session import Measurement, Observation
from blis_py.outputs.places import check_folder
from blis_py.outputs.stopping import as_exceptions
from blis_py.requests.loops import Loop, Loops
from blis_py.result import to_json
from blis_py.setup.demand import Demand
from blis_py.setup.from_config import DEFAULT_SEED, demand

SERVER = (
    Flag("--server-url", str, "", "The server, as http://127.0.0.1:8000. Needed.", metavar="URL"),
    Flag("--server-type", str, "", "Recorded in the trace. Default vllm.", metavar="NAME"),
    Flag("--model", str, "", "Model to name. Default the first one of the server.", metavar="NAME"),
    Flag("--api-key", str, "", "Key to send. Default $OPENAI_API_KEY, if there is one.", metavar="KEY"),
    Flag("--api-format", str, "", "completions or chat. Default completions."),
    Flag("--insecure", bool, "", "Accept any certificate."),
    Flag("--no-streaming", bool, "", "Whole responses: no times of tokens."),
    Flag("--unconstrained-output", bool, "", "The model may end an answer early."),
    Flag("--prompt-ids", str, "", "Prompts of token ids in this range, not of words.", metavar="LOW:HIGH"),
)
HOW = (
    Flag("--max-concurrency", int, "", "Most requests under way; the others wait. Default unlimited."),
    Flag("--warmup-requests", int, "", "First requests, which calibration leaves out. Default 0."),
    Flag("--request-timeout", float, "", "Seconds until a request is given up. Default 300."),
    Flag("--rtt-ms", float, "", "Round-trip time. Default measured."),
    Flag("--scrape-metrics", str, "", "Keep the metrics of this path, say /metrics.", metavar="PATH"),
    Flag("--scrape-interval", float, "", "Seconds between two scrapes. Default 1."),
    Flag("--resume", bool, "", "Go on with an interrupted measurement in --out."),
    Flag("--seed", int, "seed", "Of workload and prompts. Default 42."),
    Flag("--horizon", str, "horizon", "Send requests up to this time: 60s, 10m."),
)
OUTPUT = (
    out_folder("trace, token times, run.yaml", needed=True),
    Flag("--trace-header", str, "", "Copy of the trace's header.", metavar="FILE"),
    Flag("--trace-data", str, "", "Copy of the trace's data.", metavar="FILE"),
    Flag("--itl-output", str, "", "Copy of the token times.", metavar="FILE"),
    Flag("--record-itl", bool, "", hidden=True),
    FORMAT,
    FORCE,
)
_OWN = (*SERVER, *HOW, *OUTPUT)
GROUPS = (
    ("Server", SERVER),
    ("Measurement", HOW),
    *without(_OWN, ("Workload", WORKLOAD), ("Trace", TRACE)),
    ("Output", OUTPUT),
    *without((*_OWN, *WORKLOAD, *TRACE), vllm_flags.FLAGS),
)
_NOT_OF_THE_WORKLOAD = {flag.name for flag in _OWN} - {"--seed", "--horizon"}
_COPIES = {"--trace-header": "trace.yaml", "--trace-data": "trace.csv", "--itl-output": "itl.csv"}


def observe(flags: Flags) -> int:
    """Drive a server of the OpenAI API with a workload and record every token.

    Prints what clients of benchmarks print; the exit code is 1 if no request was answered.
    The folder is a TraceV2 with an ITL file: `blis replay`, `blis calibrate` and `blis profile fit` take it.
    """
    vllm_flags.refuse(flags)
    if "--server-url" not in flags:
        raise InputError("is needed", key="--server-url", fix="add --server-url")
    flags = _with_folder(flags)
    if "--resume" in flags and FORCE.name in flags:
        raise InputError("excludes --force", key="--resume", fix="drop one of the two")
    style = format_of(flags)
    observation = _observation(flags)
    with as_exceptions():
        try:
            observation.run()
        finally:
            if observation.measured:
                observation.finish()
                _copy(flags)
    say(_summary_line(observation))
    figures = bench_figures(observation.measured, streams="--no-streaming" not in flags)
    sys.stdout.write(to_json(figures) if style == "json" else "\n".join(bench_lines(figures)) + "\n")
    sys.stdout.flush()
    return 0 if figures["completed"] else 1


def _with_folder(flags: Flags) -> Flags:
    """The flags with a folder: the given one or, as for BLIS, one by the name of the trace's data.

    Raises:
        InputError: neither is given, or a file to copy to exists.
    """
    if "--out" not in flags and not {"--trace-header", "--trace-data"} <= flags.keys():
        raise InputError("is needed", key="--out", fix="add --out, or --trace-header and --trace-data")
    for name in _COPIES.keys() & flags.keys():
        target = Path(flags[name])
        if exists(target) and FORCE.name not in flags:
            raise InputError("exists already", key=name, value=str(target), fix="rename it, or add --force")
        if not is_folder(target.parent):
            raise InputError("no such folder", key=name, value=str(target.parent), fix="make it first")
    if "--out" in flags:
        check_folder(flags["--out"], "--out")
        return flags
    data = Path(flags["--trace-data"])
    return flags | {"--out": str(data.with_name(f"{data.name.removesuffix('.csv')}-observed"))}


def _target(flags: Flags) -> Target:
    key = flags.get("--api-key", os.environ.get("OPENAI_API_KEY"))
    header = {"Authorization": f"Bearer {key}"} if key else {}
    return Target.of(flags["--server-url"], header, insecure="--insecure" in flags)


def _loops(requested: Demand, load: WorkloadSection) -> Loops | None:
    """The closed loops of the workload, or one of `--concurrency`; None = an open loop."""
    if requested.loops is not None or load.concurrency is None:
        return requested.loops
    think_ns = round((load.think_time_ms or 0.0) * 1e6)
    paced = load.rate is not None or load.trace is not None
    return Loops([Loop(slice(0, len(requested.table)), load.concurrency, think_ns, paced)])


def _observation(flags: Flags) -> Observation:
    config = configure({name: v for name, v in flags.items() if name not in _NOT_OF_THE_WORKLOAD})
    requested = demand(config)
    if requested.kinds:
        raise InputError("a server cannot distinguish clients of different kinds", key="--workload-spec")
    for note in requested.notes:
        say(f"note: {note}")
    api = flags.get("--api-format", "completions")
    if api not in ("completions", "chat"):
        raise InputError("unknown API", key="--api-format", value=api, fix="use completions or chat")
    load = config.workload
    return Observation(
        Measurement(
            target=_target(flags),
            table=requested.table,
            loops=_loops(requested, load),
            folder=Path(flags["--out"]),
            model=flags.get("--model"),
            chat=api == "chat",
            streams="--no-streaming" not in flags,
            unconstrained="--unconstrained-output" in flags,
            vocab=_range(flags, chat=api == "chat"),
            timeout_s=_positive(flags, "--request-timeout", 300.0),
            max_concurrency=_positive(flags, "--max-concurrency"),
            warm_up_requests=_warm_up(flags, len(requested.table)),
            rtt_ms=_rtt_ms(flags),
            metrics_path=_metrics_path(flags),
            scrape_s=_positive(flags, "--scrape-interval", 1.0),
            seed=DEFAULT_SEED if config.seed is None else config.seed,
            workload=load.spec or load.trace or load.preset,
            server_type=flags.get("--server-type", "vllm"),
            resume="--resume" in flags,
            force=FORCE.name in flags,
        ),
        say,
    )


def _positive(flags: Flags, name: str, default: Any = None) -> Any:
    value = flags.get(name, default)
    if value is not None and not 0 < value < inf:
        raise InputError("must be a finite number above 0", key=name, value=value)
    return value


def _warm_up(flags: Flags, requests: int) -> int:
    return check_count(
        flags.get("--warmup-requests", 0), least=0, most=max(requests - 1, 0), key="--warmup-requests"
    )


def _rtt_ms(flags: Flags) -> float | None:
    rtt_ms: float | None = flags.get("--rtt-ms")
    if rtt_ms is not None:
        clock_ns(rtt_ms, 10**6, key="--rtt-ms")
    return rtt_ms


def _metrics_path(flags: Flags) -> str | None:
    path: str | None = flags.get("--scrape-metrics")
    if path is not None and not (path.startswith("/") and path.isascii() and path.isprintable()):
        fix = "write the path of an URL, such as /metrics"
        raise InputError("must begin with /", key="--scrape-metrics", value=path, fix=fix)
    return path


def _range(flags: Flags, *, chat: bool) -> tuple[int, int] | None:
    text = flags.get("--prompt-ids")
    if text is None:
        return None
    if chat:
        raise InputError("chat needs texts", key="--prompt-ids", fix="use --api-format completions")
    low, colon, high = text.partition(":")
    if not (
        colon and f"{low}{high}".isascii() and low.isdecimal() and high.isdecimal() and int(low) < int(high)
    ):
        raise InputError("must be a range of ids", key="--prompt-ids", value=text, fix="write 1000:30000")
    return int(low), int(high)


def _copy(flags: Flags) -> None:
    for name, file in _COPIES.items():
        if name in flags:
            copyfile(Path(flags["--out"]) / file, flags[name])


def _summary_line(observation: Observation) -> str:
    measured = observation.measured
    failed = sum(one.end[0] != "ok" for one in measured)
    return f"{len(measured):,} requests, {failed:,} failed; round trip {observation.rtt_ms:.2f} ms"
