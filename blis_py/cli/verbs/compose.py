"""`blis compose`: several workloads as one."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.cli.verbs._execute import say
from blis_py.config.paths import spec_path
from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml
from blis_py.outputs.staging import write_text
from blis_py.traces import is_spec, read_trace
from blis_py.traces.compose import distinct_names, merged, scales
from blis_py.traces.convert import check_apart, losses, writer_for
from blis_py.traces.reading import Reading
from blis_py.workload.compose import composed

_FLAGS = (
    Flag(
        "--from",
        list[str],
        "",
        "Trace in any format that is known, or workload spec (repeatable).",
        (),
        "FILE",
    ),
    Flag("--scale", str, "", "How many times as fast each is played: 2,0.5. Default 1 each."),
    Flag("--out", str, "", "File to write. Specs go to standard output without.", metavar="FILE"),
    Flag("--to", str, "", "tracev2, azure, mooncake or parquet. Default what --out ends in."),
)
GROUPS: tuple[Group, ...] = (("Compose", _FLAGS),)


def compose(flags: Flags) -> None:
    """Merge several traces, or several workload specs, each at its own pace."""

    sources = flags.get("--from", [])
    if len(sources) < 2:
        raise InputError("merges at least two sources", key="--from", fix="give --from A --from B")
    factors = scales(flags.get("--scale"), len(sources))
    kinds = {is_spec(source) for source in sources}
    if len(kinds) > 1:
        fix = "make a trace of the spec first: blis convert spec.yaml spec.parquet"
        raise InputError("a spec and a trace cannot be merged", key="--from", value=sources, fix=fix)
    merge = _specs if kinds == {True} else _traces
    merge(sources, distinct_names(sources), factors, flags)


def _specs(sources: list[str], names: list[str], factors: list[float], flags: Flags) -> None:

    if "--to" in flags:
        raise InputError("specs stay specs", key="--to", value=flags["--to"], fix="leave it out")
    paths = [Path(spec_path(source)) for source in sources]
    text = dump_yaml(composed(paths, names, factors, lambda note: say(f"note: {note}")))
    if "--out" in flags:
        write_text(flags["--out"], text)
    else:
        sys.stdout.write(text)


def _traces(sources: list[str], names: list[str], factors: list[float], flags: Flags) -> None:

    if "--out" not in flags:
        raise InputError("where to?", key="--out", fix="give --out FILE")
    target = Path(flags["--out"])
    writer = writer_for(target, flags.get("--to"))
    for source in sources:
        check_apart(source, target)
    tables = []
    for source, factor in zip(sources, factors, strict=True):
        reading = Reading()
        tables.append(read_trace(source, time_scale=1 / factor, reading=reading))
        if reading.chosen_as:
            say(reading.chosen_as)
        for note in reading.stated():
            say(f"note: {source}: {note}")
        if not reading.has_times:
            fix = "give it times first: blis convert SOURCE TARGET --rate N"
            raise InputError("does not say when its requests came", file=source, fix=fix)
    table = merged(tables, names)
    for lost in losses(table, writer):
        say(f"lost: {lost}: {writer.title} has no place for that")
    writer.write(table, target)
    say(f"{target}: {len(table):,} requests as {writer.title}")
