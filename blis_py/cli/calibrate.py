"""`blis calibrate`: how far a simulated run is from the measured one."""

from __future__ import annotations

import sys
from pathlib import Path

from blis_py.cli.options import Flag, Flags, Group
from blis_py.config_layers import did_you_mean
from blis_py.errors import InputError

_FLAGS = (
    Flag("--trace", str, "", "Measured run: TraceV2 CSV with token times.", ("--trace-data",), "FILE"),
    Flag("--results", str, "", "Simulated run: its --out folder or trace CSV.", ("--sim-results",), "PATH"),
    Flag("--warm-up-requests", int, "", "Leave out the first N requests. Default 0."),
    Flag("--network-rtt-ms", float, "", "Network time in the measured latencies, ms. Default 0."),
    Flag("--report", str, "", "Write the figures as JSON.", metavar="FILE"),
    Flag("--plot", str, "", "Draw predicted over measured.", metavar="FILE"),
    Flag("--format", str, "", "table or json."),
)
GROUPS: tuple[Group, ...] = (("Calibrate", _FLAGS),)


def calibrate(flags: Flags) -> None:
    """Compare a simulated run with the measured one, request by request."""
    from blis_py.calibrate.compare import as_dict
    from blis_py.calibrate.compare import calibrate as compare
    from blis_py.calibrate.token_times import read_token_times
    from blis_py.report.calibration import plot_calibration, print_calibration
    from blis_py.result import to_json

    style = flags.get("--format", "table" if sys.stdout.isatty() else "json")
    if style not in ("table", "json"):
        fix = did_you_mean(style, ("table", "json"))
        raise InputError("unknown format", key="--format", value=style, fix=fix)
    for name, what in (("--trace", "the measured trace"), ("--results", "the simulated run")):
        if name not in flags:
            raise InputError(f"needs {what}", key=name, fix=f"give {name} PATH")
    warm_up, rtt_ms = flags.get("--warm-up-requests", 0), flags.get("--network-rtt-ms", 0.0)
    for name, value in (("--warm-up-requests", warm_up), ("--network-rtt-ms", rtt_ms)):
        if not value >= 0:
            raise InputError("must not be negative", key=name, value=value)
    for name in ("--report", "--plot"):
        if name in flags and not Path(flags[name]).resolve().parent.is_dir():
            raise InputError("no such folder", key=name, value=flags[name], fix="make the folder first")
    measured, predicted = read_token_times(flags["--trace"]), read_token_times(flags["--results"])
    result = compare(measured, predicted, warm_up_requests=warm_up, network_rtt_s=rtt_ms / 1e3)
    if "--report" in flags:
        Path(flags["--report"]).write_text(to_json(as_dict(result)), encoding="utf-8")
    if "--plot" in flags:
        plot_calibration(result, flags["--plot"])
    if style == "json":
        sys.stdout.write(to_json(as_dict(result)))
    else:
        print_calibration(result)
