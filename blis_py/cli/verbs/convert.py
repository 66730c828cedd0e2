"""`blis convert`: requests from any source, written in a format of others."""

from __future__ import annotations

from pathlib import Path

from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.cli.flags.options import COMMON, TRACE, WORKLOAD
from blis_py.cli.verbs import convert_production, convert_specs
from blis_py.cli.verbs._execute import say
from blis_py.errors import InputError
from blis_py.outputs.places import check_file
from blis_py.setup.from_config import demand, require_open_loops
from blis_py.traces import is_spec
from blis_py.traces.convert import check_apart, losses, writer_for

SOURCE, TARGET = "source", "target"
_FLAGS = (
    Flag(
        SOURCE,
        str,
        "",
        "Trace in any format that is known, or workload spec; or preset, servegen, inference-perf.",
        metavar="SOURCE",
    ),
    Flag(TARGET, str, "", "File to write.", metavar="TARGET"),
    Flag("--to", str, "", "tracev2, azure, mooncake or parquet. Default what TARGET ends in."),
)
_READS = tuple(flag for flag in TRACE if flag.name != "--trace")
_ALL = (*TRACE, *WORKLOAD, *(flag for _, flags in COMMON for flag in flags))
_DRAWS = tuple(
    {f.name: f for f in _ALL if f.name in ("--rate", "--num-requests", "--seed", "--horizon")}.values()
)
GROUPS: tuple[Group, ...] = (
    ("Convert", _FLAGS),
    ("Source", (*_READS, *_DRAWS)),
    ("To a workload spec, as BLIS does", convert_specs.FLAGS),
    ("From production: SOURCE is prometheus or otel", convert_production.FLAGS),
)


def convert(flags: Flags) -> None:
    """Write the requests of a trace or a workload spec in another format, and say what is lost.

    With preset, servegen or inference-perf as SOURCE, write a workload spec; with prometheus or otel, what
    production has recorded.
    """
    if flags.get(SOURCE) in convert_production.KINDS:
        others = {name: value for name, value in flags.items() if name not in (SOURCE, TARGET)}
        convert_production.convert_production(flags[SOURCE], others, flags.get(TARGET))
        return
    if flags.get(SOURCE) in convert_specs.KINDS:
        others = {name: value for name, value in flags.items() if name not in (SOURCE, TARGET)}
        convert_specs.convert_spec(flags[SOURCE], others, flags.get(TARGET))
        return
    for flag in (*convert_specs.FLAGS, *convert_production.FLAGS):
        if flag.name in flags:
            kind = flag.help.partition(":")[0]
            raise InputError(f"belongs to `blis convert {kind}`", key=flag.name, fix=f"write {kind} first")

    for name, what in ((SOURCE, "trace or workload spec to read"), (TARGET, "file to write")):
        if name not in flags:
            raise InputError(f"no {what} given", key=name.upper(), fix="blis convert SOURCE TARGET")
    target = Path(flags[TARGET])
    writer = writer_for(target, flags.get("--to"))
    check_file(flags[TARGET], "TARGET")
    check_apart(flags[SOURCE], target)
    config = configure(_as_workload(flags))
    requested = demand(config)
    table = requested.table
    if requested.loops is not None and requested.loops.only_turns and "think" in writer.holds:
        table = table.sorted_by_arrival()
        how = f"replay {target.name} with --session-mode closed-loop"
        say(f"note: turns that wait for answers stand at the earliest times at which they can come; {how}")
    else:
        require_open_loops(requested, config)
    if requested.source:
        say(requested.source)
    for note in requested.notes:
        say(f"note: {note}")
    for lost in losses(table, writer):
        say(f"lost: {lost}: {writer.title} has no place for that")
    writer.write(table, target)
    say(f"{target}: {len(table):,} requests as {writer.title}")


def _as_workload(flags: Flags) -> Flags:
    """The flags with which a run would have these requests; those of a closed loop at the recorded times."""
    own = {flag.name for flag in _FLAGS}
    source = flags[SOURCE]
    given = {"--workload": source} if is_spec(source) else {"--trace": source, "--as-recorded": True}
    return given | {name: value for name, value in flags.items() if name not in own}
