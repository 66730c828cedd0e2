"""The flags of `blis engine`, those of the registered settings, and the configuration they make."""

from __future__ import annotations

import sys
from typing import Any

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.registered import flags_of
from blis_py.core.settings import extended
from blis_py.errors import InputError
from blis_py.latency.fitted_profile import read_meta
from engine.config import EngineConfig

_TITLES = ("Model", "Scheduler and memory")
_REGISTERED = list(flags_of(EngineConfig, _TITLES[1]))
STEP_LOG = Flag("--step-log", str, "", "Write the step log: .csv, .csv.gz or .parquet.", metavar="FILE")
ENGINE = tuple((title, tuple(flag for own, flag in _REGISTERED if own == title)) for title in _TITLES)
_SYNCHRONOUS, _ASYNCHRONOUS = (
    tuple(
        name
        for _, flag in _REGISTERED
        if flag.key == "async_scheduling" and flag.off is off
        for name in flag.spellings
    )
    for off in (True, False)
)


def engine_config(flags: Flags, **defaults: Any) -> EngineConfig:
    """The configuration from the flags; `defaults` apply where a flag is absent.

    Raises:
        InputError: flags contradict each other, or no model is given.
    """

    settings = dict(defaults)
    both = [name for name in _ASYNCHRONOUS if name in flags]
    if both and any(name in flags for name in _SYNCHRONOUS):
        raise InputError("contradicts --no-async-scheduling", key=both[0], fix="give one of the two")
    read = {"yardstick_us": _yardstick_us}  # from a profile, which engine/config.py cannot read
    for _, flag in _REGISTERED:
        for name in flag.spellings:
            if name in flags:
                settings[flag.key] = read.get(flag.key, flag.value)(name, flags[name])
    if "model" not in settings:
        raise InputError("no model given", key="--model", fix="name a checkpoint folder or a bundled model")
    return extended(EngineConfig)(**settings)


def _yardstick_us(name: str, given: str) -> tuple[float, float]:
    """Yardstick step times in µs: two comma-separated numbers, or the profile that recorded them."""

    path = None
    try:
        lines: Any = [float(number) for number in given.split(",")]
    except ValueError:
        path, meta = read_meta(given, flag=name)
        lines = meta.get("yardstick_us")
    match lines:
        case [float() as without_prompts, float() as with_prompts]:
            return without_prompts, with_prompts
    if path is None:
        raise InputError("needs two times", key=name, value=given, fix="write 5000,20000 for µs")
    fix = "give a profile measured with --clock steady, or two times in microseconds"
    raise InputError("not measured by the steady clock", file=path, key="yardstick_us", fix=fix)


def say(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
