"""`blis calibrate`: how far a simulated run is from the measured one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.calibrate.measured_header import header_beside, network_rtt_ms, number_in
from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.cli.flags.formats import FORMAT, format_of
from blis_py.cli.verbs._calibrate_adapters import ADAPTER_FLAGS, concerns_adapters, print_adapters
from blis_py.cli.verbs._calibrate_launch import LAUNCH_FLAGS, with_results
from blis_py.cli.verbs._execute import say
from blis_py.config.check import duration_ns
from blis_py.core.bounds import MAX_INSTANCES, MAX_REQUESTS, check_count, clock_ns
from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.metrics.slo import GoodputTargets, parse_class_targets, targets_in_ms
from blis_py.outputs.places import check_file
from blis_py.result import to_json

if TYPE_CHECKING:
    from blis_py.calibrate.autopsy import Autopsy
    from blis_py.calibrate.client_autopsy import ClientAutopsy
    from blis_py.calibrate.compare import Calibration
    from blis_py.calibrate.tolerances import ToleranceVerdict
    from blis_py.planning.agreement import Agreement

    Causes = Autopsy | tuple[ClientAutopsy, ...]

MEASURED = "measured"
_FLAGS = (
    Flag(
        MEASURED,
        str,
        "",
        "Measured run: its folder, a TraceV2 CSV, a benchmark's JSON, or a CSV with latencies.",
        metavar="PATH",
    ),
    Flag("--trace", str, "", "The same, as a flag.", ("--trace-data",), "FILE"),
    Flag("--trace-header", str, "", "Its TraceV2 header. Default the YAML beside the CSV.", (), "FILE"),
    Flag(
        "--results",
        str,
        "",
        "Simulated run: its --out folder, trace CSV, or what --results-path or --metrics-path wrote.",
        ("--sim-results",),
        "PATH",
    ),
    Flag("--itl-data", str, "", "Times of all measured tokens. Default the folder's itl.csv.", (), "FILE"),
    Flag("--autopsy", bool, "", "Split the error into its causes; into more with the engine's step log."),
    Flag(
        "--warm-up-requests",
        int,
        "",
        "Leave out the first N requests. Default: as the header says, else 0.",
        ("--warmup-requests",),
    ),
    Flag("--skip-first", str, "", "Leave out the first seconds of the measured run: 20s.", metavar="TIME"),
    Flag(
        "--network-rtt-ms",
        float,
        "",
        "Network time in the measured latencies, ms. Default: as the header says, else 0.",
    ),
    Flag("--network-rtt-us", float, "", "The same in µs, as BLIS has it.", hidden=True),
    Flag("--network-bandwidth-mbps", float, "", "Of that network, in Mbit/s. Default: no limit."),
    *(
        Flag(f"--slo-{metric}", str, "", f"{metric.upper()} limit of a good request, by class.", (), "C=T,…")
        for metric in ("ttft", "itl", "e2e")
    ),
    Flag(
        "--sim-metrics",
        str,
        "",
        "What --metrics-path wrote: its hit rate is compared with that of the trace's header.",
        metavar="FILE",
    ),
    Flag("--hit-rate-tolerance-pp", float, "", "Tolerance of that hit rate, percentage points. Default 5."),
    Flag("--ttft-mape-threshold", float, "", "Verdict on the MAPE of TTFT, a share: 0.15."),
    Flag("--throughput-tolerance-pct", float, "", "Verdict on output tokens/s, per cent. Default: none."),
    Flag("--num-gpus", int, "", "Number of GPUs, for output tokens/s of each."),
    *LAUNCH_FLAGS,
    *ADAPTER_FLAGS,
    Flag("--report", str, "", "Write the figures as JSON.", metavar="FILE"),
    Flag("--plot", str, "", "Draw predicted over measured.", metavar="FILE"),
    FORMAT,
)
GROUPS: tuple[Group, ...] = (("Calibrate", _FLAGS),)
_PICTURES = (".png", ".svg", ".pdf")
_NAMES = {spelling: flag.name for flag in _FLAGS for spelling in (flag.name, *flag.aliases)}


def calibrate(flags: Flags) -> None:
    """Compare a simulated run with the measured one, request by request."""
    flags = {_NAMES[spelling]: value for spelling, value in flags.items()}
    style = _checked_style(flags)
    if concerns_adapters(flags):
        return print_adapters(flags, style)
    judged_by = _tolerances(flags)
    with with_results(flags, measured_run(flags)) as complete:
        _calibrate(complete, style, judged_by)


def _calibrate(flags: Flags, style: str, judged_by: Callable[[Calibration], list[ToleranceVerdict]]) -> None:
    from blis_py.planning.agreement import agreement

    result = _compared(flags)
    causes = _causes(flags, result) if "--autopsy" in flags else None
    verdicts = judged_by(result)
    agreed = agreement(result, flags["--results"], measured_run(flags))
    figures = _figures(result, verdicts, causes) | {"agreement": agreed.as_dict()}
    try:
        if style == "json":
            sys.stdout.write(to_json(figures))
        else:
            _print(result, verdicts, causes, flags.get("--num-gpus", 0), agreed)
        sys.stdout.flush()
    finally:
        _write(flags, result, figures)


def _figures(result: Calibration, verdicts: list[ToleranceVerdict], causes: Causes | None) -> dict[str, Any]:
    """The figures of `--format json` and `--report`."""
    from blis_py.calibrate.autopsy import as_dict as autopsy_as_dict
    from blis_py.calibrate.client_autopsy import as_dict as client_as_dict
    from blis_py.calibrate.compare import as_dict
    from blis_py.calibrate.tolerances import as_dict as tolerances_as_dict

    figures = as_dict(result) | ({"tolerances": tolerances_as_dict(verdicts)} if verdicts else {})
    if isinstance(causes, tuple):
        return figures | {"client_autopsy": client_as_dict(causes)}
    return figures if causes is None else figures | {"autopsy": autopsy_as_dict(causes)}


def _print(
    result: Calibration,
    verdicts: list[ToleranceVerdict],
    causes: Causes | None,
    num_gpus: int,
    agreed: Agreement,
) -> None:
    from blis_py.calibrate.tolerances import lines as tolerance_lines
    from blis_py.report.autopsy import print_autopsy
    from blis_py.report.calibration import print_calibration
    from blis_py.report.client_autopsy import print_client_autopsy

    print_calibration(result)
    print(agreed.line)
    for line in tolerance_lines(verdicts, result, num_gpus):
        print(line)
    if causes is None:
        return
    print()
    if isinstance(causes, tuple):
        print_client_autopsy(causes)
    else:
        print_autopsy(causes)


def _write(flags: Flags, result: Calibration, figures: dict[str, Any]) -> None:
    """The files of `--report` and `--plot`: all of them, or none."""
    from blis_py.figures.agreement import predicted_measured
    from blis_py.outputs.staging import Outputs

    with Outputs() as outputs:
        if "--report" in flags:
            outputs.file(flags["--report"]).write_text(to_json(figures), encoding="utf-8")
        if "--plot" in flags:
            predicted_measured(result).savefig(outputs.file(flags["--plot"]))


def _checked_style(flags: Flags) -> str:
    """The format to print in; refuses what could not be written afterwards."""
    for name in ("--report", "--plot"):
        if name in flags:
            check_file(flags[name], name)
    plot = flags.get("--plot", ".png")
    if not plot.endswith(_PICTURES):
        fix = f"let the name end in {', '.join(_PICTURES)}"
        raise InputError("unknown kind of picture", key="--plot", value=plot, fix=fix)
    return format_of(flags)


def _compared(flags: Flags) -> Calibration:
    from blis_py.calibrate.compare import calibrate
    from blis_py.calibrate.read_times import read_token_times

    measured = measured_run(flags)
    if "--results" not in flags:
        fix = "give --results PATH, or --launch FILE of the servers"
        raise InputError("needs the simulated run", key="--results", fix=fix)
    warm_up, rtt_s = _warm_up_and_rtt_s(flags)
    real, sim = read_token_times(measured, flags.get("--itl-data")), read_token_times(flags["--results"])
    result = calibrate(
        real,
        sim,
        warm_up_requests=warm_up,
        skip_first_s=_skipped_s(flags),
        network_rtt_s=rtt_s,
        network_mbps=_bandwidth_mbps(flags),
        targets=_targets(flags),
    )
    say(f"{real.source} is read as {real.read_as}, {sim.source} as {sim.read_as}")
    return result


def _tolerances(flags: Flags) -> Callable[[Calibration], list[ToleranceVerdict]]:
    """Verdicts on tolerances that are given, and on a hit rate where both are known."""
    from blis_py.calibrate.tolerances import Tolerances, observed_hit_rate, simulated_hit_rate, verdicts

    own = {
        "hit_rate_points": "--hit-rate-tolerance-pp",
        "ttft_mape": "--ttft-mape-threshold",
        "throughput_percent": "--throughput-tolerance-pct",
    }
    given = {key: _not_negative(flags, name) for key, name in own.items() if name in flags}
    check_count(flags.get("--num-gpus", 0), least=0, most=MAX_INSTANCES, key="--num-gpus")
    file, header = _header(flags)
    observed = observed_hit_rate(header, file)
    rates = None
    if "--sim-metrics" in flags:
        if observed is None:
            fix = "record it with observe, or drop --sim-metrics"
            raise InputError("has no observed_kv_metrics to compare with", file=file, fix=fix)
        rates = observed, simulated_hit_rate(flags["--sim-metrics"])
    elif observed is not None:
        say("note: the trace has an observed hit rate; --sim-metrics FILE compares it")
    tolerances = Tolerances(**given)
    return partial(verdicts, tolerances=tolerances, hit_rates=rates, ttft="--ttft-mape-threshold" in flags)


def _not_negative(flags: Flags, name: str) -> float:
    value: float = flags[name]
    if not 0 <= value < 1e12:
        raise InputError("must be a number of at least 0", key=name, value=value)
    return value


def _warm_up_and_rtt_s(flags: Flags) -> tuple[int, float]:
    """Requests to leave out, and the network's time in s: as the flags say, or the trace's header."""
    file, header = _header(flags)
    warm_up = flags.get("--warm-up-requests", -1)
    if warm_up == -1:
        warm_up = number_in(header, "warm_up_requests", int, file)
    check_count(warm_up, least=0, most=MAX_REQUESTS, key="--warm-up-requests")
    rtt_ms = flags.get("--network-rtt-ms")
    if flags.get("--network-rtt-us", -1) != -1:
        if rtt_ms is not None:
            fix = "drop one of the two"
            raise InputError("says the same as --network-rtt-ms", key="--network-rtt-us", fix=fix)
        rtt_ms = flags["--network-rtt-us"] / 1e3
    if rtt_ms is None:
        rtt_ms = network_rtt_ms(header, file)
    clock_ns(rtt_ms, 10**6, key="--network-rtt-ms")
    return warm_up, rtt_ms / 1e3


def _bandwidth_mbps(flags: Flags) -> float:
    value: float = flags.get("--network-bandwidth-mbps", 0.0)
    if not 0 <= value < 1e12:
        raise InputError("must be a number of Mbit/s", key="--network-bandwidth-mbps", value=value)
    return value


def _targets(flags: Flags) -> GoodputTargets:
    """Targets of a good request: as the flags say, or else the trace's header."""
    targets = GoodputTargets()
    for metric in ("ttft", "itl", "e2e"):
        if f"--slo-{metric}" in flags:
            targets = targets.merged(parse_class_targets(metric, flags[f"--slo-{metric}"]))
    file, header = _header(flags)
    own = targets_in_ms(header.get("goodput_slo_targets") or {}, key="goodput_slo_targets", file=file)
    return own.under(targets, [*own.limits_ns, *targets.limits_ns])


def _header(flags: Flags) -> tuple[Path | None, dict[str, Any]]:
    """The header of the measured trace, where it has one."""
    if "--trace-header" in flags:
        return Path(flags["--trace-header"]), load_mapping(Path(flags["--trace-header"]))
    return header_beside(measured_run(flags))


def _skipped_s(flags: Flags) -> float:
    return duration_ns(flags["--skip-first"], "--skip-first") / 1e9 if "--skip-first" in flags else 0.0


def _causes(flags: Flags, result: Calibration) -> Causes:
    """Causes of the errors: from the engine's step log if it is there, else from the clients' times."""
    from blis_py.calibrate.autopsy_runs import autopsy_of_runs, has_step_log
    from blis_py.calibrate.tried_advice import client_causes

    if not has_step_log(measured_run(flags)):
        causes, problem = client_causes(result, flags["--results"])
        if problem:
            say(f"note: the advice is not tried: {problem}")
        return causes
    return autopsy_of_runs(
        measured_run(flags),
        flags["--results"],
        itl=flags.get("--itl-data"),
        network_rtt_s=_warm_up_and_rtt_s(flags)[1],
        warm_up_requests=_warm_up_and_rtt_s(flags)[0],
        skip_first_s=_skipped_s(flags),
    )


def measured_run(flags: Flags) -> str:
    """The folder or trace of the measured run.

    Raises:
        InputError: no measured run is given, or two.
    """
    given = [flags[name] for name in (MEASURED, "--trace") if name in flags]
    if not given:
        raise InputError("needs the measured run", key="--trace", fix="give its folder, or --trace FILE")
    if len(given) > 1:
        raise InputError("the measured run is given twice", key="--trace", value=given[1], fix="give one")
    path: str = given[0]
    return path
