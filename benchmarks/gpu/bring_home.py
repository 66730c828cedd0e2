"""Reads what campaigns left and puts it where it belongs: rows and tables, profiles with their fits.

    python benchmarks/gpu/bring_home.py DIR... [--into ROOT] [--caches DIR]

    benchmarks/results/gpu/DEVICE/SCRIPT.json    rows; GPU, driver, clocks, versions and revision of each run
    benchmarks/results/gpu/DEVICE/README.md      tables of all that is there, and of what is not
    profiles/fits/DEVICE/MODEL/                  samples and the latency model fitted to them

Several folders may be of one campaign, or of several, and what was brought home before stays: of a row the
latest counts, of a profile the longest.
What was rehearsed on a CPU goes nowhere but to an `--into` of its own. Needs the engine's packages, no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import caches
from gpu_tables import Results, by_gpu, draw, table_of

from blis_py.calibrate.fit import FittedProfile, fit, write_profile
from blis_py.errors import InputError
from blis_py.traces.samples import StepSamples, read_samples, write_samples
from engine.profile.provenance import device_name
from engine.profile.store import SAMPLES, fold, recovered
from engine.revision import ROOT

RESULTS = Path("benchmarks/results/gpu")
FITS = Path("profiles/fits")
_TITLE = """# Measured on this GPU

Written by `benchmarks/gpu/bring_home.py`; [how to measure](../../../../docs/gpu.md).

"""


def write_results(results: Results, folder: Path) -> list[Path]:
    """A file for each script, and one with all tables; what stands there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    both, written = known(folder), []
    both.runs |= results.runs
    for row in (row for rows in results.rows.values() for row in rows.values()):
        both.add(row)
    for script, by_key in sorted(both.rows.items()):
        rows = list(by_key.values())
        used = dict.fromkeys(row["run"] for row in rows)
        fields = {"runs": {run: both.runs.get(run, {}) for run in used}, "rows": rows}
        written.append(folder / f"{script}.json")
        written[-1].write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    written.append(folder / "README.md")
    written[-1].write_text(_TITLE + draw(both), encoding="utf-8")
    return written


def known(folder: Path) -> Results:
    """What was brought home before."""
    found = Results()
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        found.runs |= report["runs"]
        for row in report["rows"]:
            found.add(row)
    return found


def longest_profiles(folders: Iterable[Path]) -> dict[Path, StepSamples]:
    """Samples by the place where they belong, below the fits; of several of one model the longest."""
    found: dict[Path, StepSamples] = {}
    for profile in (path for folder in folders for path in sorted((folder / "profiles").glob("*"))):
        samples = recovered(profile)
        if samples is None or not len(samples):
            continue
        place = Path(device_name(samples.meta)) / str(samples.meta["model"])
        if place not in found or len(samples) > len(found[place]):
            found[place] = samples
    return found


def write_fit(samples: StepSamples, folder: Path) -> list[Any]:
    """Samples and fit of one profile, unless there are more samples already; a row of a table."""
    meta = samples.meta
    name = f"{meta['device']}, {meta['model']}"
    fold(folder)
    if (folder / SAMPLES).exists() and len(read_samples(folder / SAMPLES)) > len(samples):
        return [name, len(samples), meta["rounds"], "kept what is there: it has more steps", "", ""]
    folder.mkdir(parents=True, exist_ok=True)
    write_samples(samples, folder / SAMPLES)
    try:
        fitted = fit(samples)
    except InputError as error:
        return [name, len(samples), meta["rounds"], f"not fitted: {error}", "", ""]
    write_profile(folder, meta, fitted)
    return [name, len(samples), meta["rounds"], "fitted", *_errors(fitted)]


def _errors(fitted: FittedProfile) -> list[str]:
    """Cross-validated mean absolute error of each regime."""
    lines = [
        f"{regime} {entry.cross_validated.mape:.1%}"
        for regime, entry in fitted.regimes.items()
        if entry.cross_validated is not None
    ]
    return [", ".join(lines), str(sum(entry.shapes for entry in fitted.regimes.values()))]


def main() -> int:
    options = _options()
    results = by_gpu(options.folder)
    if not any(found.rows for found in results.values()):
        print("nothing was measured there: no results.jsonl with rows", file=sys.stderr)
        return 2
    if "cpu" in results and options.into.resolve() == ROOT:
        print("rehearsed on a CPU: no figures of a GPU; give --into another folder", file=sys.stderr)
        return 2
    for gpu, found in results.items():
        place = device_name({"device_kind": "cpu" if gpu == "cpu" else "cuda", "device": gpu})
        for path in write_results(found, options.into / RESULTS / place):
            print(path)
        revisions = {str(report.get("revision")) for report in found.runs.values()}
        if len(revisions) > 1:
            print(
                f"note: rows of {len(revisions)} revisions stand side by side: {', '.join(sorted(revisions))}"
            )
    fits = [
        write_fit(samples, options.into / FITS / place)
        for place, samples in longest_profiles(options.folder).items()
    ]
    header = ("profile", "steps", "rounds", "outcome", "error, cross-validated", "shapes")
    print(table_of(header, fits) or "no profiles")
    if options.caches is not None:
        for folder in options.folder:
            print(caches.unpack(folder, options.caches) or f"{folder}: no compiled kernels to unpack")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="+", type=Path, help="what `make gpu` wrote to")
    parser.add_argument("--into", type=Path, default=ROOT, help="instead of this checkout")
    parser.add_argument("--caches", type=Path, help="folder to unpack compiled kernels to")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
