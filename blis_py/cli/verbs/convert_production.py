"""`blis convert prometheus | otel`: a workload from what production records."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.verbs._execute import say
from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml
from blis_py.outputs.staging import write_text
from blis_py.traces.convert import writer_for
from blis_py.traces.otel import read_spans
from blis_py.traces.prometheus import read_metrics

FLAGS = (
    Flag("--metrics", str, "", "prometheus: scraped metrics, or JSON of query_range.", metavar="FILE"),
    Flag("--window", float, "", "prometheus: seconds of a window of constant rate. Default 60."),
    Flag("--engine-file", str, "", "prometheus: write a first configuration, too.", metavar="FILE"),
    Flag("--spans", str, "", "otel: GenAI spans, as OTLP JSON or one per line.", metavar="FILE"),
)
_TAKES = {"prometheus": ("--metrics", "--window", "--engine-file"), "otel": ("--spans", "--to")}
KINDS = tuple(_TAKES)


def convert_production(kind: str, flags: Flags, target: str | None) -> None:
    """Write the workload to the target, or to standard output; and say what was assumed.

    Raises:
        InputError: a flag belongs to another conversion, or the file to convert is missing.
    """
    for name in flags:
        if name not in _TAKES[kind]:
            fix = f"it takes {', '.join(_TAKES[kind])}"
            raise InputError(f"does not belong to `blis convert {kind}`", key=name, fix=fix)
    if _TAKES[kind][0] not in flags:
        raise InputError("missing", key=_TAKES[kind][0], fix=f"blis convert {kind} {_TAKES[kind][0]} FILE")
    (_prometheus if kind == "prometheus" else _otel)(flags, target)


def _prometheus(flags: Flags, target: str | None) -> None:
    from blis_py.traces.from_metrics import engine, workload

    window_s = flags.get("--window", 60.0)
    if not window_s > 0:
        raise InputError("must be more than 0", key="--window", value=window_s)
    metrics = read_metrics(Path(flags["--metrics"]))
    spec, notes = workload(metrics, window_s)
    if "--engine-file" in flags:
        settings, more = engine(metrics, window_s)
        notes += more
        write_text(flags["--engine-file"], dump_yaml(settings))
    for note in notes:
        say(f"assumed: {note}")
    if target is None:
        sys.stdout.write(dump_yaml(spec))
    else:
        write_text(target, dump_yaml(spec))
        say(f"{target}: a workload spec of {spec['num_requests']:,} requests")


def _otel(flags: Flags, target: str | None) -> None:

    if target is None:
        fix = "blis convert otel --spans FILE TARGET.csv"
        raise InputError("no file to write given", key="TARGET", fix=fix)
    writer = writer_for(Path(target), flags.get("--to", "tracev2"))
    table, notes = read_spans(Path(flags["--spans"]))
    for note in notes:
        say(f"assumed: {note}")
    writer.write(table, Path(target))
    say(f"{target}: {len(table):,} requests as {writer.title}")
