"""Whether a server fitted to one run predicts another: no fit may be worse than the bundled preset.

    python benchmarks/accuracy/transfer.py ../shared/data/vllm_h100_runs [--requests 1500] [--only 7b]

Four sets of pairs, each of the same server at another load or time: the three runs of Llama-2-7B (six
ordered pairs, 6 to 14 requests/s), two of them together against the third, slices of the 70B and 34B runs,
and the slow stage of each run against its fast one. The bundled step times were learned on steps of two of
these runs, so the preset is hard to beat here. As many requests before each part are simulated, too, and do
not count. A row has the mean absolute error of the means of TTFT, TPOT and E2E, with the preset and with the
fit; with the factor on step times that is best for the predicted part in hindsight; and with the factor that
is best for the parts fitted to, taken as it is. The last two say how much one factor could gain, and how much
of that another run reveals. Everything goes to `results/transfer.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from h100_runs import Run, names, read

from blis_py.api import build
from blis_py.calibrate.fit.server import fit_server
from blis_py.calibrate.fit.server_runs import NAMES, ServerRun, ServerRuns
from blis_py.calibrate.token_times import TokenTimes
from blis_py.requests.table import Labels
from blis_py.setup.setup import Setup

RESULTS = Path(__file__).resolve().parents[1] / "results" / "transfer.json"
_METRICS = ("TTFT mean", "TPOT mean", "E2E mean")
_SMALL = "llama-2-7b"
"""Model of the three runs of one server."""
_FACTORS = [round(0.95 + 0.005 * step, 3) for step in range(21)]
_ERRORS = {
    "error_before": "preset",
    "error_after": "fit",
    "error_of_best_factor": "best factor in hindsight",
    "error_of_their_factor": "best factor of the parts fitted to",
}
Part = tuple[str, Setup, TokenTimes, float]
"""Name, server, requests, and the seconds at their beginning that do not count."""


def times_of(run: Run, begin: int, count: int) -> TokenTimes:
    """Consecutive requests of a run, from a request on."""
    rows = np.arange(begin, min(begin + count, len(run.table)))
    table = run.table
    return TokenTimes(
        source=run.name,
        request_id=rows.astype(np.int64),
        slo_class=Labels.constant("", len(rows)),
        output_tokens=table.output_tokens[rows],
        sent_s=table.arrival_ns[rows] / 1e9,
        ttft_s=run.ttft_ms[rows] / 1e3,
        e2e_s=run.e2e_ms[rows] / 1e3,
        incomplete=0,
        prompt_tokens=table.prompt_tokens[rows],
        same_prompt=table.content[rows],
    )


def setup_of(run: Run) -> Setup:
    limits = {key: run.facts[key] for key in ("num_kv_blocks", "block_size", "max_num_seqs")}
    budget = run.facts["max_num_batched_tokens"]
    model, tp = run.facts["model"], run.facts["tp"]
    return build(model=model, gpu="h100", tp=tp, max_num_batched_tokens=budget, num_requests=1, **limits)


def pairs(folder: Path, count: int) -> Iterator[tuple[str, list[Part], Part]]:
    runs = {name: read(folder, name) for name in names(folder)}
    small = [run for run in runs.values() if _SMALL in run.name]
    for one in small:
        for other in small:
            if one is not other:
                yield "7b", [_quarter(one, count)], _quarter(other, count)
    for one in small:
        others = [_quarter(other, count) for other in small if other is not one]
        yield "several", others, _quarter(one, count)
    for run in runs.values():
        if _SMALL not in run.name:
            early, late = (_part(run, round(len(run.table) * at), count) for at in (0.2, 0.6))
            yield "slices", [early], late
            yield "slices", [late], early
    for run in runs.values():
        slow, fast = (_part(run, round(len(run.table) * at), count) for at in (0.05, 0.75))
        yield "load", [slow], fast


def _quarter(run: Run, count: int) -> Part:
    return _part(run, len(run.table) // 4, count)


def _part(run: Run, begin: int, count: int) -> Part:
    first = max(begin - count, 0)
    warm_up_s = float(run.table.arrival_ns[begin] - run.table.arrival_ns[first]) / 1e9
    return f"{run.name} from {begin:,}", setup_of(run), times_of(run, first, begin - first + count), warm_up_s


class Hindsight:
    """Errors of each part by the factor on step times."""

    def __init__(self) -> None:
        self._known: dict[str, dict[float, float]] = {}

    def errors(self, part: Part) -> dict[float, float]:
        if part[0] not in self._known:
            run = ServerRuns([ServerRun.of(part[1], part[2], part[3])])
            numbers = run.runs[0].numbers_of(part[1])
            scale = np.eye(len(NAMES))[NAMES.index("step_scale")]
            self._known[part[0]] = {
                factor: error_of(run.errors(run.times(numbers + (factor - 1) * scale))) for factor in _FACTORS
            }
        return self._known[part[0]]

    def best(self, parts: list[Part]) -> float:
        """The factor with the smallest mean error over parts."""
        return min(_FACTORS, key=lambda factor: sum(self.errors(part)[factor] for part in parts))


def error_of(errors: Mapping[str, float]) -> float:
    return float(np.mean([abs(errors[name]) for name in _METRICS]))


def row(kind: str, fitted_to: list[Part], other: Part, hindsight: Hindsight) -> dict[str, Any]:
    skipped_s = max(part[3] for part in fitted_to)
    fit = fit_server(fitted_to[0][1], [part[2] for part in fitted_to], skipped_s)
    numbers = np.array([fit.numbers[name].value for name in NAMES])
    run = ServerRuns([ServerRun.of(*other[1:])])
    before = run.errors(run.times(run.runs[0].numbers_of(other[1])))
    after = run.errors(run.times(numbers))
    best, theirs = hindsight.best([other]), hindsight.best(fitted_to)
    return {
        "kind": kind,
        "fitted_to": " and ".join(part[0] for part in fitted_to),
        "asked": other[0],
        "numbers": dict(zip(NAMES, numbers.round(4).tolist(), strict=True)),
        "before": {name: round(before[name], 4) for name in _METRICS},
        "after": {name: round(after[name], 4) for name in _METRICS},
        "error_before": round(error_of(before), 4),
        "error_after": round(error_of(after), 4),
        "best_factor": best,
        "error_of_best_factor": round(hindsight.errors(other)[best], 4),
        "factor_of_the_fitted": theirs,
        "error_of_their_factor": round(hindsight.errors(other)[theirs], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--only", nargs="+", default=["7b", "several", "slices", "load"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows, hindsight = [], Hindsight()
    for kind, fitted_to, other in pairs(given.folder, given.requests):
        if kind in given.only:
            rows.append(row(kind, fitted_to, other, hindsight))
            print(json.dumps(rows[-1]), flush=True)
    worst = max(each["error_after"] - each["error_before"] for each in rows)
    means = {key: float(np.mean([each[key] for each in rows])) for key in _ERRORS}
    print(f"{len(rows)} pairs: at worst {100 * worst:+.2f} points")
    for key, mean in means.items():
        print(f"{_ERRORS[key]:>40}: {mean:.2%}")
    given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
