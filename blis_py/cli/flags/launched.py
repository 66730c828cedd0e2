"""`--launch`: the settings of a launch file, under the flags beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.config.models import NAMES
from blis_py.config.pools import OVERRIDES
from blis_py.errors import LONGEST_LINE, InputError, plain
from blis_py.files.yaml_files import load_mapping

if TYPE_CHECKING:
    from blis_py.launch.reader import Launch

LAUNCH = (
    Flag(
        "--launch",
        list[str],
        "",
        "Launch script, line or manifest of servers (repeatable); flags beside it win.",
        metavar="FILE",
    ),
    Flag(
        "--launch-env",
        list[str],
        "",
        "Variable that its script is started with (repeatable).",
        metavar="NAME=VALUE",
    ),
)
Triple = tuple[str, str, Any]
"""Flag, key and value of a setting."""
_ALTERNATIVES = (
    ("model", "model_config"),
    ("scheduler.prefix_cache", "scheduler.enable_prefix_caching"),
    ("latency.cuda_graph_max_size", "latency.cuda_graph_sizes"),
    ("num_instances", "pools", "disaggregation.xpyd", "disaggregation.prefill_instances"),
)
"""Settings of which a user gives one in place of another."""


def launch_of(flags: Flags) -> Launch | None:
    """The launch files that are named; None without.

    Raises:
        InputError: a file that cannot be read, or a variable without a value.
    """
    sources = tuple(flags.get("--launch", ()))
    variables = tuple(flags.get("--launch-env", ()))
    for text in variables:
        if not text.partition("=")[1] or not text.partition("=")[0]:
            raise InputError("must look like NAME=VALUE", key="--launch-env", value=text)
        if not sources:
            raise InputError("has no script to be for", key="--launch-env", fix="add --launch FILE")
    return _read(sources, variables, str(flags.get("--model", ""))) if sources else None


@cache
def _read(sources: tuple[str, ...], variables: tuple[str, ...], model: str) -> Launch:
    from blis_py.launch.reader import read_launch

    pairs = (text.partition("=") for text in variables)
    return read_launch(sources, {name: value for name, _, value in pairs}, model=model)


def print_launch(flags: Flags) -> None:
    """Say on stderr what was read."""
    launch = launch_of(flags)
    for line in () if launch is None else launch.lines():
        print(f"note: {plain(line, LONGEST_LINE)}", file=sys.stderr)


def launched(flags: Flags, given: Sequence[Triple], without: Sequence[str] = ()) -> list[Triple]:
    """The settings of a launch file that no flag beside it sets, as (flag, key, value).

    Args:
        given: the settings by flags.
        without: keys that the command chooses itself.
    """
    launch = launch_of(flags)
    if launch is None:
        return []
    taken = {key for _, key, _ in given} | set(_elsewhere(flags)) | set(without)
    for alternatives in _ALTERNATIVES:
        if taken & set(alternatives):
            taken |= set(alternatives)
    return [
        (f"--launch: {flag}", key, _without(value, taken) if key == "pools" else value)
        for key, (value, flag) in launch.settings.items()
        if key not in taken
    ]


def _elsewhere(flags: Flags) -> Iterator[str]:
    """Keys that `--set` sets, and that a study varies."""
    for text in (*flags.get("--set", ()), *flags.get("--vary", ())):
        yield _key(str(text).partition("=")[0])
    if "--space" in flags:
        yield from (_key(str(name)) for name in load_mapping(Path(flags["--space"])))


def _key(name: str) -> str:
    return NAMES.get(name.strip().replace("-", "_"), name.strip())


def _without(pools: Sequence[dict[str, Any]], taken: set[str]) -> list[dict[str, Any]]:
    """The pools without what flags set for all of them."""
    return [_pool_without(pool, taken) for pool in pools]


def _pool_without(pool: dict[str, Any], taken: set[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in pool.items():
        if key in OVERRIDES and key in taken:
            continue
        if isinstance(value, dict):
            value = {leaf: each for leaf, each in value.items() if f"{key}.{leaf}" not in taken}
        kept[key] = value
    return kept
