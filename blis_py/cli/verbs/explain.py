"""`blis explain`: where the time of a request went, and what would have changed it."""

from __future__ import annotations

import sys
from typing import Any

from blis_py.api import Simulation
from blis_py.cli.flags import blis_flags, vllm_flags
from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.formats import FORMAT, format_of
from blis_py.cli.flags.options import COMMON, VERBOSE, WORKLOAD
from blis_py.cli.flags.out import FORCE, check_out, out_folder
from blis_py.cli.progress import Progress
from blis_py.cli.verbs._execute import say
from blis_py.cli.verbs._pages import write_out
from blis_py.errors import InputError
from blis_py.ledger.explain import Explanation
from blis_py.report.saved import load
from blis_py.result import to_json

RUN_FOLDER = "run"
_QUESTION = (
    Flag(RUN_FOLDER, str, "", "Folder of a saved run; without one, flags say what to run.", metavar="FOLDER"),
    Flag("--request", str, "", "The request to explain, by its id.", metavar="ID"),
    Flag(
        "--metric",
        str,
        "",
        "The request at a percentile: ttft.p99 (default), critical.e2e.max.",
        metavar="METRIC",
    ),
    Flag("--class", str, "", "Of requests of this SLO class.", ("--slo-class",), "CLASS"),
    Flag("--what-if", list[str], "", "A change to try: scheduler=sjf (repeatable).", metavar="KEY=VALUE"),
    Flag("--no-what-ifs", bool, "", "The ledger alone, which takes two runs."),
)
_OUTPUT = (
    out_folder("explain.json and the picture, as PNG and SVG"),
    FORCE,
    VERBOSE,
    FORMAT,
)
_NOT_HERE = ("--intervals", "--cross-check")
_OF_A_RUN = tuple(
    (name, tuple(flag for flag in flags if flag.name not in _NOT_HERE)) for name, flags in COMMON
)
GROUPS = (
    ("Question", _QUESTION),
    ("Output", _OUTPUT),
    *_OF_A_RUN,
    ("Workload", WORKLOAD),
    vllm_flags.FLAGS,
    blis_flags.FLAGS,
)
_OWN = {spelling for flag in (*_QUESTION, *_OUTPUT) for spelling in (flag.name, *flag.aliases)}


def explain(flags: Flags) -> None:
    """Say where a request's time went, which requests delayed it, and what would have changed it.

    Of a saved run or of one that the flags describe, which is simulated again under observation.
    What-ifs are further runs of the same requests.
    """

    style = format_of(flags)
    if "--what-if" in flags and "--no-what-ifs" in flags:
        raise InputError("is given beside --what-if", key="--no-what-ifs", fix="drop one of the two")
    check_out(flags)
    explanation = _explained(flags)
    try:
        if style == "json":
            sys.stdout.write(to_json(explanation.as_dict()))
        else:
            print(explanation)
        sys.stdout.flush()
        if explanation.source is None and not _verbose(flags):
            for line in explanation.simulation.basis.splitlines():
                say(line)
    finally:
        if "--out" in flags:
            write_out(flags, "explain", to_json(explanation.as_dict()), explanation.plot)


def _explained(flags: Flags) -> Explanation:
    from blis_py.ledger.explain import explain

    what_if: Any = flags.get("--what-if") or "--no-what-ifs" not in flags
    requested = {
        "request": flags.get("--request"),
        "metric": flags.get("--metric"),
        "slo_class": flags.get("--class", flags.get("--slo-class")),
        "what_if": what_if,
    }
    with _Stages() as stage:
        return explain(_run_of(flags), **requested, stage=stage)


def _run_of(flags: Flags) -> Any:
    """The saved run, or what the flags describe."""
    blis_flags.refuse(flags)
    vllm_flags.refuse(flags)
    of_a_run = [name for name in flags if name not in _OWN]
    if RUN_FOLDER not in flags:
        if not of_a_run:
            fix = "name the folder of a run, or say what to run: --model …"
            raise InputError("nothing to explain", key="FOLDER", fix=fix)

        simulation = Simulation.of(configure(flags))
        full = (simulation.capacity, simulation.models) if _verbose(flags) else ()
        for line in (*full, *(f"note: {n}" for n in simulation.notes)):
            say(line)
        return simulation
    if of_a_run:
        fix = "drop it, or try it with --what-if"
        raise InputError("changes the run, which is saved", key=of_a_run[0], fix=fix)

    return load(flags[RUN_FOLDER])


def _verbose(flags: Flags) -> bool:
    return "--verbose" in flags or "-v" in flags


class _Stages:
    """Progress of one simulation after another."""

    def __init__(self) -> None:
        self._shown: Progress | None = None

    def __enter__(self) -> _Stages:
        return self

    def __call__(self, what: str) -> Progress:
        self._end()
        self._shown = Progress(sys.stderr).__enter__()
        return self._shown

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._shown is not None:
            self._shown.__exit__(None, None, None)
