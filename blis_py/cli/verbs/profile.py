"""`blis profile fit | show | validate | compare | import`: step times from measurements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_py.calibrate.fit import fit as fit_steps
from blis_py.calibrate.fit import write_profile
from blis_py.calibrate.fit.accuracy import validate as errors_of
from blis_py.calibrate.fit.imports import import_steps
from blis_py.calibrate.fit.server import fit_server
from blis_py.calibrate.fit.server_file import engine_file
from blis_py.calibrate.fit.sources import SAMPLES, difference, read_all, with_model_config
from blis_py.calibrate.measured_header import at_the_server
from blis_py.calibrate.read_times import is_client_run, read_token_times
from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.cli.flags.formats import FORMAT, format_of
from blis_py.cli.flags.options import MODEL, RUN, SCHEDULER, WORKLOAD
from blis_py.cli.flags.out import out_folder, required_out
from blis_py.cli.program import Program, Verb
from blis_py.cli.verbs._execute import say
from blis_py.config.check import duration_ns
from blis_py.core.bounds import MAX_REDRAWS, MAX_SEED, check_count
from blis_py.errors import InputError
from blis_py.files.paths import exists, is_file, is_folder
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import read_meta, read_profile
from blis_py.latency.fitted_shape import datasheet_of, shape_of
from blis_py.latency.host_work import WithHostWork
from blis_py.latency.trained import Trained
from blis_py.outputs.places import check_file, check_folder
from blis_py.outputs.profile_file import FILE
from blis_py.outputs.staging import write_text
from blis_py.report.fitted import (
    comparison_data,
    comparison_lines,
    profile_data,
    profile_lines,
    validation_data,
    validation_lines,
)
from blis_py.report.server_fit import server_fit_data, server_fit_lines
from blis_py.result import to_json
from blis_py.setup.setup import Setup
from blis_py.traces.samples import StepSamples

_FOLDER = Flag("profile", str, "", "Folder of a fitted profile.", metavar="DIR")
_SERVER = (
    *MODEL,
    *SCHEDULER,
    *(flag for flag in RUN if flag.name in ("--config", "--set")),
    *(flag for flag in WORKLOAD if flag.name == "--concurrency"),
)
"""Flags for facts of a server that a client's run does not contain."""
_REDRAWN = (
    Flag("--bootstrap", int, "", "Redrawn fits, for intervals. Default 50."),
    Flag("--seed", int, "", "Of the redrawing. Default 0."),
)
_FIT = (
    Flag(
        "paths",
        list[str],
        "",
        "Measured steps: a profile's folder, samples.csv.gz, step logs, run folders; or what a client "
        "measured of a server, in one or several runs: a benchmark's JSON, a TraceV2 CSV, a CSV with "
        "latencies.",
        metavar="PATH…",
    ),
    Flag(
        "--out",
        str,
        "",
        "Folder for the profile, by default the one given; of a client's run, the engine file to write.",
        metavar="PATH",
    ),
    Flag("--skip-first", str, "", "Of a client's run: leave out its first seconds: 20s.", metavar="TIME"),
    *_REDRAWN,
    FORMAT,
)
_VALIDATE = (
    _FOLDER,
    Flag("--step-log", list[str], "", "Measured runs: step logs or run folders.", (), "FILE", many=True),
    FORMAT,
)
_COMPARE = (_FOLDER, Flag("other", str, "", "Folder of another.", metavar="DIR"), FORMAT)
_IMPORT = (
    Flag(
        "source", str, "", "What others measured: a folder of kernel times, or steps of vLLM.", metavar="PATH"
    ),
    out_folder("the profile"),
    Flag("--model", str, "", "Model that is priced: a bundled name."),
    Flag("--model-config", str, "", "HuggingFace config.json of any other.", metavar="FILE"),
    Flag("--gpu", str, "", "GPU that was measured. Default h100."),
    Flag("--tp", int, "", "Tensor-parallel degree. Default 1."),
    Flag("--run", str, "", "Of a file with several runs, the one whose name contains this."),
    Flag("--host-step-us", float, "", "Host time of a step, where the source has none. Default the GPU's."),
    Flag("--host-seq-us", float, "", "The same per sequence."),
    Flag("--block-size", int, "", "Tokens per KV block in the source. Default 16."),
    *_REDRAWN,
    FORMAT,
)


# -- the verbs -----------------------------------------------------------------------------------------


def fit(flags: Flags) -> int:
    """Fit step times to measured steps, and write profile.yaml; or a server to one run of its clients."""
    for path in flags.get("paths") or []:
        if not exists(path):
            fix = "name a profile's folder, step logs, or what a client measured"
            raise InputError("no such file or folder", file=path, fix=fix)
    if _is_client_run(flags.get("paths") or []):
        return fit_to_client(flags)
    for flag in _SERVER:
        if flag.name != "--model-config" and any(name in flags for name in (flag.name, *flag.aliases)):
            fix = "drop it, or give a benchmark's JSON or a CSV with latencies"
            raise InputError("goes with what a client measured, not with steps", key=flag.name, fix=fix)
    if "--skip-first" in flags:
        fix = "drop it, or give a benchmark's JSON or a CSV with latencies"
        raise InputError("goes with what a client measured, not with steps", key="--skip-first", fix=fix)
    fit_to_steps(flags)
    return 0


def _is_client_run(paths: Sequence[str]) -> bool:

    kinds = {is_client_run(path) for path in paths}
    if len(kinds) > 1:
        fix = "fit the two apart"
        raise InputError("are partly measured steps and partly clients' runs", key="paths", fix=fix)
    return kinds == {True}


def fit_to_client(flags: Flags) -> int:
    """Front end, gaps and a factor on step times, from a client's run alone.

    Returns:
        The exit code: 1 if the preset predicts better than any numbers found.
    """

    style = format_of(flags)
    for name in ("--bootstrap", "--seed"):
        if name in flags:
            raise InputError("goes with measured steps, not with a client's run", key=name, fix="drop it")
    if "--out" in flags:
        check_file(flags["--out"], "--out")
    spellings = {spelling for flag in _SERVER for spelling in (flag.name, *flag.aliases)}
    config = configure({name: value for name, value in flags.items() if name in spellings})
    measured = [read_token_times(path) for path in flags["paths"]]
    if config.workload.concurrency is not None:
        measured = [replace(each, concurrency=config.workload.concurrency) for each in measured]
    setup = Setup.of(config)
    pairs = [at_the_server(one, path) for one, path in zip(measured, flags["paths"], strict=True)]
    measured = [one for one, _ in pairs]
    skipped_s = max(since_s for _, since_s in pairs)
    if "--skip-first" in flags:
        skipped_s = duration_ns(flags["--skip-first"], "--skip-first") / 1e9
    fitted = fit_server(setup, measured, skipped_s)
    for note in fitted.notes:
        say(f"note: {note}")
    try:
        _print(style, lambda: server_fit_data(fitted), lambda: server_fit_lines(fitted))
    finally:
        for line in setup.basis.removesuffix(" (-v and summary.json say more)").splitlines():
            say(line)
        if not fitted.worse and "--out" in flags:
            write_text(Path(flags["--out"]), engine_file(fitted, setup.config))
            say(f"wrote {flags['--out']}: simulate this server with --engine {flags['--out']}")
    if fitted.worse:
        say(f"refused: no numbers are better than the preset's, nothing is written: {fitted.worse}")
    return 1 if fitted.worse else 0


def fit_to_steps(flags: Flags) -> None:
    """Step times from measured steps."""

    style = format_of(flags)
    paths = flags.get("paths") or []
    samples = read_all(paths)
    folder = _target(flags, paths)
    check_folder(folder, "--out")
    meta = with_model_config({**_provenance(folder), **samples.meta}, flags.get("--model-config"))
    fitted = fit_steps(StepSamples(meta, samples.table), bootstrap=_draws(flags), seed=_seed(flags))
    try:
        _print(style, lambda: profile_data(fitted), lambda: profile_lines(fitted))
    finally:
        say(f"wrote {write_profile(folder, meta, fitted)}")


def show(flags: Flags) -> None:
    """Coefficients with intervals, errors, and the domain that was measured."""

    style = format_of(flags)
    profile = read_profile(_given(flags, "profile"))
    _print(style, lambda: profile_data(profile), lambda: profile_lines(profile))


def validate(flags: Flags) -> None:
    """Predicted against measured step times of runs that were not fitted."""

    style = format_of(flags)
    profile = read_profile(_given(flags, "profile"))
    if not flags.get("--step-log"):
        raise InputError("needs measured runs", key="--step-log", fix="give step logs or run folders")
    samples = read_all(flags["--step-log"])
    key = difference(profile.meta, with_model_config(samples.meta))
    if key is not None:
        ours, theirs = profile.meta.get(key), samples.meta.get(key)
        raise InputError(
            f"the profile was measured with {key} {ours}, the run with {theirs}",
            key="--step-log",
            fix="give runs of what was profiled",
        )
    overlap = sorted(set(samples["source"].tolist()) & set(profile.sources))
    for name in overlap:
        say(f"note: the profile was fitted to a run of this name: {name}")
    shape, gpu = shape_of(profile.meta, profile.file), datasheet_of(profile.meta)
    guide = None if shape is None or gpu is None else Trained(shape, gpu, profile.tp)
    model = Fitted(profile, shape, guide=guide)
    priced = WithHostWork(model, scan_ns=profile.scan_ns) if profile.scan_ns else model
    rows = errors_of(priced, samples)
    notes = model.outside.notes()
    _print(style, lambda: validation_data(model, rows, notes), lambda: validation_lines(model, rows, notes))


def compare(flags: Flags) -> None:
    """Times of typical steps by either of two profiles."""

    style = format_of(flags)
    first, second = (read_profile(_given(flags, name)) for name in ("profile", "other"))
    _print(style, lambda: comparison_data(first, second), lambda: comparison_lines(first, second))


def import_(flags: Flags) -> None:
    """Make a profile of what others measured: tables of kernel times, or steps of vLLM."""

    style, source, folder = format_of(flags), _given(flags, "source"), required_out(flags)
    check_folder(folder, "--out")
    samples = import_steps(
        source,
        model=flags.get("--model"),
        model_config=flags.get("--model-config"),
        gpu=flags.get("--gpu", "h100"),
        tp=flags.get("--tp", 1),
        run=flags.get("--run"),
        host_step_us=flags.get("--host-step-us"),
        host_seq_us=flags.get("--host-seq-us"),
        block_size=flags.get("--block-size", 16),
    )
    fitted = fit_steps(samples, bootstrap=_draws(flags), seed=_seed(flags))
    if is_folder(source):
        tables = f"--latency-model kernel-tables --kernel-profile {source}"
        say(f"note: this is a fit to the tables; {tables} prices with the tables themselves")
    try:
        _print(style, lambda: profile_data(fitted), lambda: profile_lines(fitted))
    finally:
        say(f"wrote {write_profile(folder, samples.meta, fitted)}")


GROUPS: dict[str, tuple[Group, ...]] = {
    "fit": (("Profile", _FIT), ("Server, of a client's run", _SERVER)),
    "show": (("Profile", (_FOLDER, FORMAT)),),
    "validate": (("Profile", _VALIDATE),),
    "compare": (("Profile", _COMPARE),),
    "import": (("Profile", _IMPORT),),
}


def _verb(what: str, function: str = "") -> Verb:
    return Verb(__name__, what, function)


PROGRAM = Program(
    "blis profile",
    "Step times from measurements.",
    {
        "fit": _verb("Fit step times to measured steps, or a server to one run of its clients."),
        "show": _verb("Show coefficients with intervals, errors, and the domain that was measured."),
        "validate": _verb("Compare predicted with measured step times of runs that were not fitted."),
        "compare": _verb("Compare what typical steps take by two profiles."),
        "import": _verb("Make a profile of what others measured.", "import_"),
    },
)


# -- parts ---------------------------------------------------------------------------------------------


def _print(style: str, data: Callable[[], Any], lines: Callable[[], Iterable[str]]) -> None:

    sys.stdout.write(to_json(data()) if style == "json" else "\n".join(lines()) + "\n")
    sys.stdout.flush()


def _given(flags: Flags, name: str) -> str:
    value: str | None = flags.get(name)
    if value is None:
        raise InputError(f"needs the {name}", key="blis profile", fix="name its folder")
    return value


def _draws(flags: Flags) -> int:
    return check_count(flags.get("--bootstrap", 50), least=0, most=MAX_REDRAWS, key="--bootstrap")


def _seed(flags: Flags) -> int:
    return check_count(flags.get("--seed", 0), least=0, most=MAX_SEED, key="--seed")


def _target(flags: Flags, paths: Sequence[str]) -> Path:
    """Folder of the profile."""

    if "--out" in flags:
        return Path(flags["--out"])
    folder = Path(paths[0]) if is_folder(paths[0]) else Path(paths[0]).parent
    if len(paths) > 1 or not is_file(folder / SAMPLES):
        raise InputError("where to write the profile is not clear", key="--out", fix="add --out DIR")
    return folder


def _provenance(folder: Path) -> dict[str, Any]:
    """The contents of the folder's existing profile.yaml, as written with the measurements."""

    if not is_file(folder / FILE):
        return {}
    values = read_meta(folder)[1]
    values.pop("fit", None)
    return values
