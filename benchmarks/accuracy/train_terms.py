"""Learn what a step takes beyond its kernels, by engine and kind of model, from closed loops.

    python benchmarks/accuracy/train_terms.py ../shared/data [--seconds 240] [--part 1/2] [--near] [--only N]

Each group of points (engine; dense, sparse or MLA; Hopper, Blackwell, CDNA 3 or 4) has one set of terms:
factors of the kernels' sum for decodes and for steps with prompts, a time per step, and the front end. They
are found by Gauss-Newton on logarithms of TTFT and TPOT over an even sample of the group's configurations,
with slopes by differences in every round, large residuals weighted down more from round to round, and every
term drawn towards none. No term belongs to a model or a row. Groups of an engine and kind of model on both
generations of GPUs are learned together, their times to launch a layer drawn towards each other: the host
launches, and hosts are alike (SGLang's attention module with its launches takes 534 to 638 us beside H100,
H200, B200 and B300, `Tables.launch_ns`), while versions are not. A bound shows only where it binds, and a
group has few such points: prompts that are short and yet beyond the CUDA graphs. The terms that the others
show without a model family stand in `benchmarks/results`, for the column of the accuracy page in which every
family is left out.

Kernels of AMD's GPUs were not measured: their terms may be several times as far from none as others', and
half of their groups judge them (`amd.py`).

Points that contradict themselves, or that another run contradicts, are left out. A TTFT more than eight times
off does not count: memory was full, where it depends on the last block of a capacity.

Simulations and groups that are learned are kept in `build/accuracy` by a hash of the code: a run that stops
after some seconds is continued by the next one. The files are written once all groups are there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from blis_py import native

native.activate()  # ahead of the modules that it replaces

from amd import amd_points, of_amd, teaching  # noqa: E402
from point_sets import points_of  # noqa: E402
from points import NotExpressed, Point, figures_ms, under_terms  # noqa: E402
from predictions import KEPT, code_hash  # noqa: E402

from blis_py.api import Simulation  # noqa: E402
from blis_py.errors import InputError  # noqa: E402
from blis_py.hardware.gpu import load_gpu  # noqa: E402
from blis_py.hardware.layout import Layout  # noqa: E402
from blis_py.latency.base import unbounded  # noqa: E402
from blis_py.latency.engine_terms import EngineTerms, group_of, kind_of, server_of  # noqa: E402
from blis_py.latency.operators import Operators  # noqa: E402
from blis_py.setup.step_times import server_terms  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "profiles" / "operators" / "terms.yaml"
WITHOUT = ROOT / "benchmarks" / "results" / "terms_without.yaml"
EACH, OF_A_GROUP, MAX_IN_FLIGHT = 3, 12, 64
"""Points of a configuration that are simulated, more where a group has less than so many, and requests in
flight of them."""
LONGEST = np.log(8.0)
"""Residuals beyond this are of memory that was full, and do not count."""
NAMES = (
    "decode_scale",
    "prefill_scale",
    "prefill_block_scale",
    "prefill_step_ns",
    "decode_step_ns",
    "launch_layer_ns",
    "first_token_ns",
    "first_seq_ns",
)
METRICS = ("ttft.mean", "tpot.mean")
Values = NDArray[np.float64]
FACTORS = 3
"""Terms that are factors; the first ones."""
ALIKE, ALIKE_NS = NAMES.index("launch_layer_ns"), 1e6
"""The term that is alike in groups learned together, and the spread of its differences: half of its own."""
PRIOR = np.array([0.15, 0.4, 0.4, 10e6, 1e6, 2e6, 20e6, 0.5e6])
"""Spread of each term around none: of logarithms for the factors, in ns for the others."""
UNMEASURED = 10.0
"""Times that spread, where the kernels beneath were not measured."""
STARTS = [np.array([0.0, 0.2, 0.0, 1e6, 0.1e6, launch, 10e6, 0.1e6]) for launch in (3e6, 0.5e6)]
STEPS = np.array([0.05, 0.1, 0.1, 2e6, 0.2e6, 0.2e6])
"""Where searches begin, and differences by which slopes of the terms of steps are taken. Launches begin where
they bound most steps, and where they bound few: a bound has no slope on the other side."""
SCALES, STEPS_EACH = (2.0, 1.0, 0.5), 2
"""Size of residuals beyond which they are weighted down, by round, and steps with the slopes of a round."""


@dataclass(frozen=True)
class Case:
    """A point and its simulation."""

    point: Point
    run: Simulation
    number: int = 0
    """Of its group among those that are learned together."""

    @property
    def at(self) -> NDArray[np.int64]:
        """Places of its group's terms among those of all."""
        return places(self.number)

    def look(self, values: Values) -> Values:
        """Logarithms of predicted over measured TTFT and TPOT under these terms; kept."""
        own = values[self.at]
        key = f"{self.point.source} {self.point.id} {own.tolist()}"
        if key not in looks():
            ms = figures_ms(under_terms(self.run, terms_from(own)), METRICS)
            logs = [float(np.log(ms[metric] / self.point.measured[metric])) for metric in METRICS]
            looks()[key] = logs
            with kept("looks").open("a") as file:
                file.write(json.dumps([key, logs]) + "\n")
        return np.array(looks()[key])

    def slopes(self, values: Values, base: Values) -> Values:
        """Of both logarithms, here `base`, over every term."""
        found = np.zeros((2, len(values)))
        for i, (place, step) in enumerate(zip(self.at, STEPS, strict=False)):
            if NAMES[i] == "prefill_block_scale" and not self.point.shape().weights.block_scales:
                continue
            other = values.copy()
            other[place] += step
            found[:, place] = (self.look(other) - base) / step
        ttft_ns = np.exp(base[0]) * self.point.measured["ttft.mean"] * 1e6
        found[0, self.at[len(STEPS) :]] = 1.0 / ttft_ns, self.point.concurrency / ttft_ns
        return found


def places(number: int) -> NDArray[np.int64]:
    """Places of the terms of a group among those of all that are learned together, one after the other."""
    return number * len(NAMES) + np.arange(len(NAMES))


def terms_from(values: NDArray[np.float64]) -> EngineTerms:
    found = [*np.exp(values[:FACTORS]), *values[FACTORS:]]
    terms: dict[str, Any] = dict(zip(NAMES, map(float, found), strict=True))
    return EngineTerms(**terms)


def samples(data: Path) -> dict[str, list[Point]]:
    """By group: an even sample of every configuration, prompts and answers of all lengths. A measurement
    under several names counts once."""
    configurations: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    seen = set()
    for point in (*points_of(data), *teaching(amd_points(data))):
        same = point.model, point.prompt_tokens, point.output_tokens, *(point.measured[m] for m in METRICS)
        if point.refused or point.contradicted or same in seen:
            continue
        seen.add(same)
        configurations[point.alike[:-3]].append(point)
    groups: dict[str, list[list[Point]]] = defaultdict(list)
    for of_one in configurations.values():
        of_one.sort(key=lambda p: (p.prompt_tokens, p.output_tokens, p.concurrency))
        small = [point for point in of_one if point.concurrency <= MAX_IN_FLIGHT] or of_one[:1]
        try:
            groups[_group(of_one[0])].append(small)
        except NotExpressed:
            continue
    return {name: list(_evenly(of_each)) for name, of_each in groups.items()}


def _evenly(configurations: Sequence[list[Point]]) -> Iterator[Point]:
    """Points of each configuration of a group."""
    each = max(EACH, -(-OF_A_GROUP // len(configurations)))
    for of_one in configurations:
        yield from of_one[:: max(1, len(of_one) // each)]


def cases(groups: Iterable[Sequence[Point]]) -> list[Case]:
    """Those of each group that can be simulated, priced operator by operator."""
    found: list[Case] = []
    for number, of in enumerate(groups):
        found += _published([case for point in of if (case := _case(point, number))])
    return found


def _published(of: list[Case]) -> list[Case]:
    """Points whose launch flags were published, if they are of several model families."""
    read = [case for case in of if case.point.flags.get("status", "").startswith("read")]
    return read if len({case.point.family for case in read}) > 1 else of


def _group(point: Point) -> str:
    return group_of(point.engine, load_gpu(point.gpu), point.shape())


def _case(point: Point, number: int) -> Case | None:
    try:
        run = point.simulation()
        if point.impossible():
            return None
    except (NotExpressed, InputError):
        return None
    run = run if isinstance(unbounded(run.latency), Operators) else by_operators(point, run)
    return Case(point, run, number)


def by_operators(point: Point, run: Simulation) -> Simulation:
    """A run that the formula of `trained` prices, operator by operator: dense models of other formats on the
    same GPUs have no other prices."""
    layout = Layout(point.gpus, point.attention_dp, point.ep)
    made_of = point.shape(), load_gpu(point.gpu), layout, point.engine
    return run.with_pool(latency=Operators(*made_of, server=server_terms(run.config)))


@dataclass(frozen=True)
class Fit:
    """The terms of groups that are learned together, and their points around them."""

    of: Sequence[Case]
    values: Values
    logs: Values
    slopes: Values

    def without(self, family: str) -> Values:
        """The terms that the other families show; slopes as they are with all."""
        values, share = self.values, shares(self.of, family)
        for _ in range(2 * len(SCALES)):
            logs = self.logs + self.slopes @ (values - self.values)
            values = improved(values, logs, self.slopes, share, SCALES[-1], spread_of(self.of))
        return values

    def loss(self) -> float:
        """Weighted sum of the logarithms' sizes, each at most 1, and what draws groups together."""
        off = float(shares(self.of) @ np.minimum(np.abs(self.logs), 1.0))
        return off + float(self.values @ drawn_together(len(self.values) // len(NAMES)) @ self.values)

    def errors(self, number: int) -> str:
        """Of the points of a group."""
        own = [case.number == number for case in self.of]
        off = np.abs(np.expm1(self.logs)).reshape(-1, 2)[own]
        figures = [
            f"{metric} {off[:, i].mean():.1%} / {np.median(off[:, i]):.1%}"
            for i, metric in enumerate(("TTFT", "TPOT"))
        ]
        return f"{len(off)} points, mean / median: {', '.join(figures)}"


def shares(of: Sequence[Case], without: str = "") -> Values:
    """Weights of both figures of each point, 1 in the mean of a group: those of a family count by the root of
    their number, and one family may be left out."""
    kept = [case for case in of if case.point.family != without]
    counts = Counter((case.number, case.point.family) for case in kept)
    weights = np.array([counts[case.number, case.point.family] or np.inf for case in of]) ** -0.5
    for number in {case.number for case in of}:
        own = np.array([case.number == number for case in of])
        weights[own] *= np.count_nonzero(weights[own]) / max(weights[own].sum(), 1e-9)
    return np.repeat(weights, 2)


def spread_of(of: Sequence[Case]) -> float:
    """How far from none terms may be, in units of `PRIOR`."""
    return UNMEASURED if of_amd(of[0].point) else 1.0


def improved(
    values: Values, logs: Values, slopes: Values, share: Values, scale: float, spread: float = 1.0
) -> Values:
    """One step of Gauss-Newton.

    Args:
        scale: size of residuals beyond which they are weighted down.
        spread: of terms around none, in units of `PRIOR`.
    """
    weights = share / np.maximum(np.abs(logs), 0.1)
    weights /= 1.0 + (logs / scale) ** 2
    weights[np.abs(logs) > LONGEST] = 0.0
    groups = len(values) // len(NAMES)
    draw = np.diag(np.tile((spread * PRIOR) ** -2, groups)) + drawn_together(groups)
    left = slopes.T @ (weights[:, None] * slopes) + draw
    found: Values = values + np.linalg.solve(left, -slopes.T @ (weights * logs) - draw @ values)
    times = np.arange(len(values)) % len(NAMES) >= FACTORS
    found[times] = np.maximum(found[times], 0.0)
    return found


@cache
def drawn_together(groups: int) -> Values:
    """Matrix of the squared differences between groups, in spreads."""
    found = np.zeros((groups * len(NAMES), groups * len(NAMES)))
    alike = np.array([places(number)[ALIKE] for number in range(groups)])
    for one, other in combinations(alike, 2):
        found[[one, other], [one, other]] += ALIKE_NS**-2
        found[[one, other], [other, one]] -= ALIKE_NS**-2
    return found


def learn(of: Sequence[Case], near: Values | None = None) -> Fit:
    """The best that the searches visit.

    Args:
        near: search from these terms alone, as after a small change of the kernels.
    """
    if near is not None:
        return min(visited(of, near, SCALES[-2:]), key=Fit.loss)
    high, low = (np.tile(start, 1 + max(case.number for case in of)) for start in STARTS)
    return min((*visited(of, high, SCALES), *visited(of, low, SCALES[1:])), key=Fit.loss)


def present(names: Sequence[str]) -> Values | None:
    """The terms of groups as they stand in the file; None if it lacks one."""
    of_groups: dict[str, Any] = yaml.safe_load(OUT.read_text())["groups"]
    if not set(names) <= of_groups.keys():
        return None
    values = np.array([[of_groups[name][key] for key in NAMES] for name in names])
    values[:, :FACTORS] = np.log(values[:, :FACTORS])
    return values.ravel()


def visited(of: Sequence[Case], values: Values, scales: Sequence[float]) -> Iterator[Fit]:
    """Gauss-Newton, with the slopes of every round; where it begins comes first."""
    for scale in scales:
        logs = [case.look(values) for case in of]
        slopes = np.concatenate([case.slopes(values, base) for case, base in zip(of, logs, strict=True)])
        yield Fit(of, values, np.concatenate(logs), slopes)
        for _ in range(STEPS_EACH):
            values = improved(values, np.concatenate(logs), slopes, shares(of), scale, spread_of(of))
            logs = [case.look(values) for case in of]
            yield Fit(of, values, np.concatenate(logs), slopes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; run again")
    parser.add_argument("--part", default="1/1", help="2/2: the second of two runs beside each other")
    parser.add_argument("--near", action="store_true", help="search from the present terms alone")
    parser.add_argument(
        "--only", default="", help="groups with this in their names, beside the others as they are"
    )
    options = parser.parse_args()
    part, parts = (int(text) for text in options.part.split("/"))
    end = time.monotonic() + options.seconds
    of_groups = {name: of for name, of in samples(options.data).items() if options.only in name}
    together = [list(names) for _, names in groupby(sorted(of_groups, key=_hosts), _hosts)]
    for names in together[part - 1 :: parts]:
        if time.monotonic() < end and not set(names) <= learned().keys():
            of = cases(of_groups[name] for name in names)
            keep(names, of, present(names) if options.near else None)
    known = learned()
    if missing := sorted(of_groups.keys() - known.keys()):
        print(f"{', '.join(missing)}: not learned yet; run again")
    elif options.only:
        add({name: known[name] for name in of_groups})
    else:
        write({name: found for name, found in sorted(known.items()) if found["families"]})


def _hosts(name: str) -> tuple[str, bool]:
    """Groups of one engine and kind of model whose hosts launch alike: CUDA, or ROCm."""
    kind, _, generation = name.rpartition("-")
    return kind, generation.startswith("cdna")


def kept(what: str) -> Path:
    """A file of what the present code has found so far."""
    KEPT.mkdir(parents=True, exist_ok=True)
    learner = sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    return KEPT / f"{what}-{code_hash()}-{learner}.jsonl"


@cache
def looks() -> dict[str, list[float]]:
    """What simulations showed, by point and terms."""
    file = kept("looks")
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(map(json.loads, lines))


def learned() -> dict[str, Any]:
    """Groups that the present code has learned already."""
    file = kept("terms")
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(map(json.loads, lines))


def keep(names: Sequence[str], of: Sequence[Case], near: Values | None = None) -> None:
    """Learn groups together and keep what they show."""
    fit = learn(of, near) if of else None
    with kept("terms").open("a") as file:
        for number, name in enumerate(names):
            own = [case for case in of if case.number == number]
            found = _shown(name, fit, own) if fit and own else {"families": []}
            file.write(json.dumps([name, found]) + "\n")


def _shown(name: str, fit: Fit, of: Sequence[Case]) -> dict[str, Any]:
    """What a group shows, as it is kept."""
    values, at = fit.values, of[0].at
    print(
        name,
        fit.errors(of[0].number),
        dict(zip(NAMES, np.round(values[at], 3).tolist(), strict=True)),
        flush=True,
    )
    families = sorted({case.point.family for case in of})
    return {
        "groups": _plain(values[at]),
        "learned_on": sorted({_combination(case.point) for case in of}),
        "measured": sorted({_server(case.point) for case in of}),
        "families": families,
        "without": {each: _plain(fit.without(each)[at]) for each in families if len(families) > 1},
    }


def write(known: dict[str, Any]) -> None:
    """Both files. Without the only family of a group, the other sparse models of its engine have to do."""
    without = {name: found["without"] for name, found in known.items() if found["without"]}
    for name, found in known.items():
        sister = known.get(_sister(name))
        if not found["without"] and sister and _sister(name) != name:
            without[name] = {found["families"][0]: sister["groups"]}
    parts = ("groups", "learned_on")
    top: dict[str, Any] = {part: {name: found[part] for name, found in known.items()} for part in parts}
    measured = sorted({server for found in known.values() for server in found["measured"]})
    _write(OUT, {**top, "measured": measured})
    _write(WITHOUT, {"without": without})


def add(known: dict[str, Any]) -> None:
    """Put groups in the place of those in the file."""
    top: dict[str, Any] = yaml.safe_load(OUT.read_text())
    for part in ("groups", "learned_on"):
        top[part] = dict(
            sorted({**top[part], **{name: found[part] for name, found in known.items()}}.items())
        )
    top["measured"] = sorted(
        {*top["measured"], *(one for found in known.values() for one in found["measured"])}
    )
    _write(OUT, top)


def _sister(name: str) -> str:
    """The other sparse models of an engine, for a family that is the only one of its group."""
    return name.replace("-mla-", "-sparse-") if "-mla-" in name else name.replace("-sparse-", "-mla-")


def _plain(values: Values) -> dict[str, float]:
    terms = terms_from(values)
    return {key: float(f"{getattr(terms, key):.4g}") for key in NAMES}


def _write(path: Path, top: dict[str, Any]) -> None:
    head = "# Written by benchmarks/accuracy/train_terms.py from closed loops (AIConfigurator's samples,\n"
    head += "# InferenceMAX; Apache-2.0), all groups by the same code.\n"
    path.write_text(head + yaml.dump(top, Dumper=_Plain, width=100), encoding="utf-8")


class _Plain(yaml.SafeDumper):
    """Without references to equal parts."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _server(point: Point) -> str:
    layout = Layout(point.gpus, point.attention_dp, point.ep)
    return server_of(point.engine, load_gpu(point.gpu), point.shape(), layout)


def _combination(point: Point) -> str:
    layout = Layout(point.gpus, point.attention_dp, point.ep)
    return f"{kind_of(point.shape())} on {load_gpu(point.gpu).name} {layout}"


if __name__ == "__main__":
    main()
