"""`blis calibrate --launch`: the measured requests, simulated on the servers of a launch file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.launched import LAUNCH
from blis_py.cli.flags.out import FORCE, out_folder
from blis_py.cli.verbs._execute import say
from blis_py.errors import InputError
from blis_py.files.paths import is_folder

_OF_THE_SERVERS = ("--launch", "--launch-env", "--gpu", "--model", "--set", "--concurrency")
LAUNCH_FLAGS = (
    *LAUNCH,
    Flag("--gpu", str, "", "GPU of the servers of --launch.", metavar="NAME"),
    Flag("--model", str, "", "Their model, where the file does not name it.", metavar="NAME"),
    Flag("--set", list[str], "", "Any other setting of theirs (repeatable).", metavar="KEY=VALUE"),
    Flag(
        "--concurrency",
        int,
        "",
        "Closed loop of the measured client: requests under way, the next sent when one has ended.",
    ),
    out_folder("the simulated run of --launch"),
    FORCE,
)
"""Flags of servers that are simulated here, in place of `--results`."""


@contextmanager
def with_results(flags: Flags, measured: str) -> Iterator[Flags]:
    """The flags with `--results`: as given, or of a simulation of the measured requests.

    Raises:
        InputError: `--results` and `--launch`, or flags of servers without either.
    """
    of_servers = [name for name in (*_OF_THE_SERVERS, "--out", "--force") if name in flags]
    if "--launch" not in flags:
        if of_servers:
            fix = "add --launch FILE, or simulate with blis replay and give --results"
            raise InputError("is of servers that are simulated here", key=of_servers[0], fix=fix)
        yield flags
        return
    if "--results" in flags:
        fix = "drop one of the two"
        raise InputError("is simulated here, and --results is a simulated run", key="--launch", fix=fix)
    with TemporaryDirectory(prefix="blis-calibrate-") as folder:
        out = Path(flags.get("--out") or Path(folder) / "predicted")
        _simulate({name: flags[name] for name in _OF_THE_SERVERS if name in flags}, measured, out, flags)
        yield {**flags, "--results": str(out)}


def _simulate(of_servers: Flags, measured: str, out: Path, flags: Flags) -> None:
    """Replay the measured requests at the times they came, or in the closed loop of their client, and write
    the run."""
    trace = Path(measured) / "trace.csv" if is_folder(measured) else Path(measured)
    from blis_py.api import Simulation

    simulation = Simulation.of(configure({**of_servers, "--trace": str(trace)}))
    if "--concurrency" in of_servers:  # sent when others ended, not when they were sent to another server
        simulation = replace(simulation, table=simulation.table.at_once())
    for note in simulation.notes:
        say(f"note: {note}")
    result = simulation.run(record_steps=True)
    result.save(out, force="--force" in flags, plots=False)
