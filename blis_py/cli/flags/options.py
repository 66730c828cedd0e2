"""The flags of `run` and `replay`: those of the registered settings, and those that set nothing of a run."""

from __future__ import annotations

from blis_py.cli.flags import perfetto
from blis_py.cli.flags.flag import Flag, Group
from blis_py.cli.flags.launched import LAUNCH
from blis_py.cli.flags.limits import LIMITS
from blis_py.cli.flags.out import FORCE, out_folder
from blis_py.cli.flags.registered import flags_of
from blis_py.config.models import KIND_SECTIONS, SECTIONS, RunConfig

_TITLES = {
    "scheduler": "Scheduler",
    "latency": "Latency",
    "routing": "Cluster",
    "admission": "Cluster",
    "gateway": "Gateway queue",
    "disaggregation": "Prefill and decode apart",
    **{name: kind.title for name, kind in KIND_SECTIONS.items()},
    "workload": "Workload",
}
"""Heading of each section; of one that is new, its name."""


def _registered() -> dict[str, tuple[Flag, ...]]:
    """The flags of all settings, by heading."""
    by_verb: dict[str, list[Flag]] = {}
    for title, flag in flags_of(RunConfig, "Model and hardware"):
        by_verb.setdefault(title, []).append(flag)
    for name, section in SECTIONS.items():
        for title, flag in flags_of(section, _TITLES.get(name, name.capitalize()), f"{name}."):
            by_verb.setdefault(title, []).append(flag)
    return {title: tuple(flags) for title, flags in by_verb.items()}


SETTINGS = _registered()
"""Flags of settings, by heading."""
MODEL, SCHEDULER = SETTINGS["Model and hardware"], SETTINGS["Scheduler"]
TRACE, WORKLOAD = SETTINGS["Trace"], SETTINGS["Workload"]
RUN = (
    Flag("--config", str, "", "Configuration (YAML); flags override it.", metavar="FILE"),
    Flag("--set", list[str], "", "Any setting: a.b.c=value (repeatable).", metavar="KEY=VALUE"),
    *LAUNCH,
    Flag("--policy-config", str, "", "BLIS policy bundle.", metavar="FILE"),
    *SETTINGS["Run"],
    Flag("--intervals", int, "", "Rerun N times, with other seeds and coefficients: 90 % intervals."),
    Flag("--cross-check", bool, "", "The same run under every latency model that applies, a row each."),
    Flag("--no-cross-check", bool, "", "No check of the busiest requests under another latency model."),
    *(
        Flag(
            f"--slo-{metric}",
            str,
            f"goodput_by_class.{metric}",
            f"{metric.upper()} limit by SLO class.",
            (),
            "C=T,…",
        )
        for metric in ("ttft", "itl", "e2e")
    ),
    *LIMITS,
    Flag("--summarize-trace", bool, "", hidden=True),
)
VERBOSE = Flag(
    "--verbose", bool, "", "Begin with the arithmetic of memory and the source of step times.", ("-v",)
)
OUTPUT = (
    VERBOSE,
    out_folder("config, summary, requests, steps, plots, trace"),
    FORCE,
    Flag("--no-plots", bool, "", "No plots in --out, which saves a second."),
    Flag("--record-itl", bool, "", "In --out, itl.csv with the time of every token."),
    Flag(
        "--format",
        str,
        "",
        "table, json, vllm, blis, blis-text. By default a table on a terminal, else json.",
    ),
    Flag("--metrics-path", str, "", "Metrics with every request, as BLIS writes them.", metavar="FILE"),
    Flag("--trace-output", str, "", "TraceV2 of what was sent: PREFIX.yaml, PREFIX.csv.", metavar="PREFIX"),
    Flag(
        "--fitness-weights", str, "", "One number for the run: throughput:0.5,p99_ttft:0.5.", (), "NAME:W,…"
    ),
    Flag("--results-path", str, "", "Per-request results, as BLIS's replay writes them.", metavar="FILE"),
    Flag("--detectors", str, "", "Saturation after the run: composite,threshold,backlog-drift, or all."),
    Flag("--saturation-config", str, "", "Settings of these detectors (YAML).", metavar="FILE"),
    Flag("--saturation-report", str, "", "What they find at every event (JSON).", metavar="FILE"),
    Flag("--saturation-final-window", str, "", "The end of the run that decides. Default 30s."),
    *perfetto.FLAGS,
)

_FURTHER = tuple(
    (title, flags) for title, flags in SETTINGS.items() if title not in ("Run", "Trace", "Workload")
)
COMMON: tuple[Group, ...] = (("Run", RUN), *_FURTHER, ("Trace", TRACE))
