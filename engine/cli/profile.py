"""`blis engine profile`: step times of a model on this machine, over a grid of batch compositions."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.errors import InputError
from engine.cli.options import ENGINE, engine_config, say

if TYPE_CHECKING:
    from pathlib import Path

    from blis_py.traces.samples import StepSamples

PROFILE = (
    Flag("--out", str, "", "Folder to write. Default profiles/fits, by device and model.", metavar="DIR"),
    Flag("--quick", bool, "", "A coarse grid, twice: to see that it works, not to rely on."),
    Flag("--rounds", int, "", "Repetitions of every shape. Default 20."),
    Flag("--budget", float, "", "Stop after so many seconds, loading included; run it again to go on."),
    Flag("--no-fit", bool, "", "Measure only."),
)
GROUPS = (("Profile", PROFILE), *ENGINE)


def profile(flags: Flags) -> None:
    """Measure step times over a grid of batch compositions, and fit a latency model to them.

    What has been measured is kept: the same command goes on where it stopped.
    """
    from engine.profile.run import EFFORTS, TOLERATED_DRIFT
    from engine.profile.run import profile as measure

    for name in ("--rounds", "--budget"):
        if name in flags and not flags[name] > 0:
            raise InputError("must be above 0", key=name, value=flags[name])
    for name in ("--async-scheduling", "--overlap"):
        if name in flags:
            raise InputError(
                "steps that overlap cannot be measured one by one", key=name, fix="measure without it"
            )
    effort = EFFORTS["quick" if "--quick" in flags else "full"]
    effort = replace(effort, rounds=flags.get("--rounds", effort.rounds))
    folder = Path(flags["--out"]) if "--out" in flags else None
    config = engine_config(flags, **_defaults(flags))
    with _Bar() as progress:
        outcome = measure(config, effort, folder, budget_s=flags.get("--budget"), progress=progress)
    meta = outcome.samples.meta
    say(f"{meta['counts']['steps']:,} steps of {meta['counts']['shapes']} shapes in {outcome.folder}")
    if outcome.drift > TOLERATED_DRIFT:
        say(f"warning: the machine drifted by {outcome.drift:.1%} meanwhile; measure again when it is quiet")
    if not outcome.complete:
        part = f" and {meta['visits']} visits of the next" if meta.get("visits") else ""
        done = f"{meta['rounds']} of {effort.rounds} rounds measured{part}"
        say(f"{done}; run the same command again to go on")
    reason = None if "--no-fit" in flags else fit_profile(outcome.folder, outcome.samples)
    if reason is not None:
        say(f"not fitted: {reason}")
    print(outcome.folder)


def fit_profile(folder: Path, samples: StepSamples) -> str | None:
    """Fit the measurements and add the fit to the profile; return the reason if that is impossible."""
    try:
        from blis_py.calibrate.fit import fit, write_profile
    except ImportError as error:
        return f"a package is missing ({error.name})"
    except InputError as error:
        return str(error)
    try:
        write_profile(folder, samples.meta, fit(samples))
    except InputError as error:
        return str(error)
    return None


def _defaults(flags: Flags) -> dict[str, Any]:
    """Default settings for the device and the model."""
    from engine.build import pick_device
    from engine.profile.run import suitable

    device = flags.get("--device", "auto")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError("unknown choice", key="--device", value=device, fix="use auto, cuda or cpu")
    if "--model" not in flags:
        return {}
    return suitable(flags["--model"], pick_device(device), flags.get("--max-num-seqs"))


class _Bar:
    """A progress bar on stderr if that is a terminal."""

    def __enter__(self) -> _Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._rich = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._rich.start()
        self._task = self._rich.add_task("loading", total=None)
        return self

    def __call__(self, what: str, done: int, total: int) -> None:
        self._rich.update(self._task, description=what, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rich.stop()
