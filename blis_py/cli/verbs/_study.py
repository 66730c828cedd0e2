"""Common part of `blis sweep` and `blis plan`: flags, shared settings, progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from blis_py.cli.flags import blis_flags, vllm_flags
from blis_py.cli.flags.configure import overrides
from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.cli.flags.launched import print_launch
from blis_py.cli.flags.options import COMMON, WORKLOAD
from blis_py.cli.flags.out import FORCE
from blis_py.errors import InputError, plain
from blis_py.outputs import stopping
from blis_py.planning.study import Study

_OF_ONE_RUN = ("--intervals", "--cross-check")
_REFRESH_S = 0.2

VARY = (
    Flag(
        "--vary",
        list[str],
        "",
        "Settings and values: scheduler=fcfs,lpm rate=10:100:10.",
        metavar="KEY=VALUES",
        many=True,
    ),
    Flag("--space", str, "", "The same from a file (YAML).", metavar="FILE"),
)
WORK = (
    Flag("--workers", int, "", "Processes. Default: one for every core."),
    Flag("--dask", str, "", "A Dask cluster: tcp://HOST:PORT, or local.", metavar="ADDRESS"),
    Flag(
        "--cache",
        str,
        "",
        "Where runs are kept, to be done once. Default: the platform's.",
        metavar="DIR",
    ),
    Flag("--no-cache", bool, "", "Keep nothing, and use nothing that was kept."),
)
OUTPUT = (
    FORCE,
    Flag("--no-plots", bool, "", "No pictures in --out."),
)


def groups(own: tuple[Group, ...]) -> tuple[Group, ...]:
    """The flags of a study: its own, and those of a run."""
    common = tuple((name, _axes(f for f in flags if f.name not in _OF_ONE_RUN)) for name, flags in COMMON)
    alone = tuple(
        flag._replace(hidden=True) for _, flags in COMMON for flag in flags if flag.name in _OF_ONE_RUN
    )
    return (*own, *common, ("Workload", _axes(WORKLOAD)), ("Run", alone), vllm_flags.FLAGS, blis_flags.FLAGS)


def _axes(flags: Iterable[Flag]) -> tuple[Flag, ...]:
    """Flags that take a list of values where a run takes one."""
    return tuple(flag._replace(axis=flag.scalar) for flag in flags)


def study_of(flags: Flags, without: Sequence[str] = ()) -> Study:
    """Settings shared by all runs.

    Args:
        without: keys that the study chooses itself, whatever a launch file says.

    Raises:
        InputError: a flag that asks for something else than a study, or for what is not simulated.
    """
    blis_flags.refuse(flags)
    vllm_flags.refuse(flags)
    for name in _OF_ONE_RUN:
        if name in flags:
            raise InputError("is for one run", key=name, fix="use it with `blis run`")
    print_launch(flags)
    return Study(
        path=flags.get("--config"),
        overrides=tuple(overrides(flags, without)),
        sets=tuple(flags.get("--set", ())),
        policy_config=flags.get("--policy-config"),
    )


def cache_of(flags: Flags) -> bool | str:
    """The folder in which outcomes are kept; None if they are not.

    Raises:
        InputError: both a cache and none are wanted.
    """
    if "--cache" in flags and "--no-cache" in flags:
        raise InputError("contradicts --cache", key="--no-cache", fix="drop one of the two")
    if "--no-cache" in flags:
        return False
    place: str | bool = flags.get("--cache", True)
    return place


class StudyLine:
    """A line on stderr that says how far it is; on a terminal only."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        # Without a thread of its own, which a forked process would inherit the locks of.
        self._bar = Progress(
            BarColumn(30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=None)
        self._next_s = 0.0

    def __call__(self, text: str, done: int = 0, total: int | None = None) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _REFRESH_S
            self._bar.update(self._task, description=plain(text), completed=done, total=total)
            self._bar.refresh()

    def start(self) -> None:
        self._bar.start()

    def stop(self) -> None:
        self._bar.stop()


@contextmanager
def under_way() -> Iterator[StudyLine]:
    """A study in progress: its progress on stderr; an interrupt stops all its processes."""
    line = StudyLine()
    line.start()
    try:
        with stopping.as_exceptions():
            yield line
    finally:
        line.stop()
