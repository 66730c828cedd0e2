"""`blis convert preset | servegen | inference-perf`, as BLIS has them: a workload spec is written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.verbs._execute import say
from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml
from blis_py.outputs.staging import write_text
from blis_py.workload.arrivals import check_rate
from blis_py.workload.presets import PRESETS
from blis_py.workload.servegen import compact
from blis_py.workload.spec import parse_spec, spec_values

FLAGS = (
    Flag("--name", str, "", "preset: which one."),
    Flag("--path", str, "", "servegen: folder with its chunk files.", metavar="DIR"),
    Flag("--time", str, "", "servegen: midnight, morning or afternoon. Default all three."),
    Flag("--window-duration-seconds", float, "", "servegen: how long each is played. Default 600."),
    Flag("--drain-timeout-seconds", float, "", "servegen: pause after each. Default 180."),
    Flag(
        "--spec", str, "", "inference-perf: its configuration, or stages and shared_prefix.", metavar="FILE"
    ),
)
_TAKES = {
    "preset": ("--name", "--rate", "--num-requests"),
    "servegen": ("--path", "--time", "--window-duration-seconds", "--drain-timeout-seconds", "--seed"),
    "inference-perf": ("--spec",),
}
KINDS = tuple(_TAKES)
_MAX_LENGTHS = 64
"""Most lengths of a distribution that is written: the recorded ones have up to fourteen thousand."""


def convert_spec(kind: str, flags: Flags, target: str | None) -> None:
    """Write the spec to the target, or to standard output.

    Raises:
        InputError: a flag belongs to another conversion.
    """

    for name in flags:
        if name not in _TAKES[kind]:
            fix = f"it takes {', '.join(_TAKES[kind])}"
            raise InputError(f"does not belong to `blis convert {kind}`", key=name, fix=fix)
    text = dump_yaml(
        {"preset": _preset, "servegen": _servegen, "inference-perf": _inference_perf}[kind](flags)
    )
    if target is None:
        sys.stdout.write(text)
    else:
        write_text(target, text)
        say(f"{target}: a workload spec")


def _needed(flags: Flags, name: str, kind: str) -> Any:
    if name not in flags:
        raise InputError("missing", key=name, fix=f"blis convert {kind} {name} ...")
    return flags[name]


def _preset(flags: Flags) -> dict[str, Any]:

    name, count = _needed(flags, "--name", "preset"), flags.get("--num-requests", 100)
    if name not in PRESETS:
        raise InputError("unknown preset", key="--name", value=name, fix=f"use one of {', '.join(PRESETS)}")
    rate = flags.get("--rate", 1.0)
    check_rate(rate, key="--rate")
    if count < 1:
        raise InputError("must be at least 1", key="--num-requests", value=count)
    lengths = [
        {
            "type": "gaussian",
            "params": {"mean": one.tokens, "std_dev": one.stdev, "min": one.min, "max": one.max},
        }
        for one in PRESETS[name]
    ]
    client = {
        "id": f"preset-{name}",
        "rate_fraction": 1.0,
        "arrival": {"process": "constant"},
        "input_distribution": lengths[0],
        "output_distribution": lengths[1],
    }
    head = {"version": "2", "category": "language", "aggregate_rate": rate, "num_requests": count}
    return {**head, "clients": [client]}


def _servegen(flags: Flags) -> dict[str, Any]:

    folder = Path(_needed(flags, "--path", "servegen")).absolute()
    data = {
        "path": str(folder),
        "time_window": flags.get("--time", ""),
        "window_duration_secs": flags.get("--window-duration-seconds", 600.0),
        "drain_timeout_secs": flags.get("--drain-timeout-seconds", 180.0),
    }
    seed = flags.get("--seed", 42)
    spec = _expanded({"version": "2", "seed": seed, "servegen_data": data}, folder)
    shortened = 0
    for client in spec["clients"]:
        for part in (client, *client["lifecycle"]["windows"]):
            for side in ("input_distribution", "output_distribution"):
                if side in part:
                    own = part[side]["params"]
                    part[side]["params"] = {int(t): w for t, w in compact(own, _MAX_LENGTHS).items()}
                    shortened += len(own) > _MAX_LENGTHS
    if shortened:
        say(f"lost: {shortened:,} laws of lengths have {_MAX_LENGTHS} values each; --workload DIR has all")
    return spec


def _inference_perf(flags: Flags) -> dict[str, Any]:

    path = Path(_needed(flags, "--spec", "inference-perf"))
    values = spec_values(path)
    if "inference_perf" not in values and "clients" not in values:
        values = {"version": "2", "inference_perf": values}
    spec = _expanded(values, path)
    say("note: exact_count, which BLIS does not know, makes each stage have exactly its number of requests")
    return spec


def _expanded(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The spec with all clients written out that it only describes."""

    spec = parse_spec(dict(values), path)
    for note in spec.notes:
        say(f"note: {note}")
    head = {name: value for name, value in values.items() if name not in ("servegen_data", "inference_perf")}
    written = [client.model_dump(mode="json", exclude_defaults=True) for client in spec.all_clients]
    for client in written:
        for window in (client.get("lifecycle") or {}).get("windows", ()):
            window.setdefault("start_us", 0)
    return {**head, "clients": written}
