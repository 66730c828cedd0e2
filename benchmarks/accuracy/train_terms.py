"""Learn what a step takes beyond its kernels, by engine and kind of model, from closed loops.

    python benchmarks/accuracy/train_terms.py ../shared/data [--only trtllm-sparse] [--holdout]

Each group of points (engine, dense or sparse feed-forward, Hopper or Blackwell) has one set of terms:
factors of the kernels' sum for decodes and for steps with prompts, a time per step with prompts, and the
front end. They are found by Gauss-Newton on logarithms of TTFT and TPOT over an even sample of the group's
configurations, with large residuals weighted down and every term drawn towards none. No term belongs to a
model or a row. With --holdout every model family is predicted by the terms that the others show, too.

Points that contradict themselves are left out. A TTFT more than eight times off does not count: memory was
full, where it depends on the last block of a capacity, or the first wave compiled kernels.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from points import NotExpressed, Point, inferencemax, silicon

from blis_py.api import Simulation
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.latency.engine_terms import EngineTerms, kind_of
from blis_py.latency.hardware import load_gpu
from blis_py.latency.layout import Layout
from blis_py.latency.operators import Operators
from blis_py.setup.step_times import frontend_of

OUT = Path(__file__).resolve().parents[2] / "profiles" / "operators" / "terms.yaml"
EACH, MOST_IN_FLIGHT, ENOUGH = 3, 64, 6
"""Points of a configuration that are simulated, requests in flight of them, and points that make a group."""
LONGEST = np.log(8.0)
"""Residuals beyond this are of memory that was full, and do not count."""
NAMES = (
    "decode_scale",
    "prefill_scale",
    "prefill_step_ns",
    "decode_step_ns",
    "first_token_ns",
    "first_seq_ns",
)
Values = NDArray[np.float64]
PRIOR = np.array([0.15, 0.4, 10e6, 1e6, 20e6, 0.5e6])
"""Spread of each term around none: of logarithms for the factors, in ns for the others."""


@dataclass(frozen=True)
class Case:
    """A point and its simulation."""

    point: Point
    run: Simulation

    def look(self, values: Values) -> tuple[Values, Values]:
        """Logarithms of predicted over measured TTFT and TPOT under these terms, and their slopes: what
        part of either is decode steps, prompts, and constant."""
        model, point = self.run.latency, self.point
        assert isinstance(model, Operators)
        latency = model.with_terms(terms_from(values))
        front = frontend_of(self.run.config.frontend_ms or ()).plus(latency.frontend)
        latency.frontend = front
        record, _ = self.run.with_pool(latency=latency).simulate(False, None)
        ttft = float((record.first_token_ns - record.table.arrival_ns).mean())
        tpot = float(
            ((record.last_token_ns - record.first_token_ns) / np.maximum(record.emitted_tokens - 1, 1)).mean()
        )
        seqs, answer = point.concurrency, 0.9 * point.output_tokens
        context = int(seqs * 0.9 * (point.prompt_tokens + point.output_tokens / 2))
        decode = latency.step_ns(StepFeatures(decode_seqs=seqs, decode_kv_tokens=context, emitted_rows=seqs))
        of_decodes = min(decode / tpot, 1.0)
        first = front.before_enqueue_ns + front.behind_seq_ns * seqs
        wait = min(decode, 0.3 * ttft)
        of_prompts = max(ttft - first - wait, 0.0) / ttft
        slopes = np.array(
            [
                [wait / ttft, of_prompts, 1.2 / ttft, 1.0 / ttft, 1.0 / ttft, seqs / ttft],
                [of_decodes, 1.0 - of_decodes, seqs / answer / tpot, 1.0 / tpot, 0.0, 0.0],
            ]
        )
        measured = np.array([point.measured["ttft.mean"], point.measured["tpot.mean"]]) * 1e6
        return np.log(np.array([ttft, tpot]) / measured), slopes


def terms_from(values: NDArray[np.float64]) -> EngineTerms:
    decode, prefill, *ns = (float(value) for value in values)
    return EngineTerms(np.exp(decode), np.exp(prefill), **dict(zip(NAMES[2:], ns, strict=True)))


def group_of(point: Point) -> str:
    shape = point.shape()
    generation = "blackwell" if load_gpu(point.gpu).fp4_flops else "hopper"
    return f"{point.engine}-{'sparse' if shape.moe_layers else 'dense'}-{generation}"


def cases(data: Path, only: str | None) -> dict[str, list[Case]]:
    """By group: an even sample of every configuration, prompts and answers of all lengths."""
    configurations: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in (*silicon(data), *inferencemax(data)):
        if point.refused:
            continue
        width = (point.gpus, point.ep, point.attention_dp)
        key = (point.engine, point.model, point.precision, point.gpu, *width)
        configurations[key].append(point)
    found: dict[str, list[Case]] = defaultdict(list)
    for of_one in configurations.values():
        if only and only not in group_of(of_one[0]):
            continue
        of_one.sort(key=lambda p: (p.prompt_tokens, p.output_tokens, p.concurrency))
        small = [point for point in of_one if point.concurrency <= MOST_IN_FLIGHT] or of_one[:1]
        for point in small[:: max(1, len(small) // EACH)]:
            case = _case(point)
            if case is not None:
                found[group_of(point)].append(case)
    return {name: _published(of) for name, of in found.items()}


def _published(of: list[Case]) -> list[Case]:
    """Those whose launch flags are public, if enough: unknown limits and loops pass for terms."""
    read = [case for case in of if case.point.flags.get("status", "").startswith("read")]
    return read if len(read) >= ENOUGH else of


def _case(point: Point) -> Case | None:
    try:
        run = point.simulation()
        if point.impossible() or not isinstance(run.latency, Operators):
            return None
    except (NotExpressed, InputError):
        return None
    case = Case(point, run)
    return case


def learn(of: Sequence[Case], rounds: int = 2) -> tuple[Values, str]:
    """The terms, and the errors that they leave."""
    values = np.zeros(len(NAMES))
    counts = Counter(case.point.family for case in of)
    share = np.repeat([1.0 / counts[case.point.family] for case in of], 2)
    for _ in range(rounds):
        looks = [case.look(values) for case in of]
        base, slopes = np.concatenate([log for log, _ in looks]), np.concatenate([each for _, each in looks])
        weights = share * len(base) / share.sum() / np.maximum(np.abs(base), 0.1)
        weights[np.abs(base) > LONGEST] = 0.0
        spread = 1.0 / PRIOR**2
        left = slopes.T @ (weights[:, None] * slopes) + np.diag(spread)
        values = values + np.linalg.solve(left, -slopes.T @ (weights * base) - spread * values)
        values[2:] = np.maximum(values[2:], 0.0)
    return values, errors(of, values)


def errors(of: Sequence[Case], values: Values) -> str:
    off = np.abs(np.expm1(np.array([case.look(values)[0] for case in of])))
    told = [
        f"{metric} {off[:, i].mean():.1%} / {np.median(off[:, i]):.1%}"
        for i, metric in enumerate(("TTFT", "TPOT"))
    ]
    return f"{len(of)} points, mean / median: {', '.join(told)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--holdout", action="store_true")
    options = parser.parse_args()
    top = yaml.safe_load(OUT.read_text()) if OUT.exists() else {}
    groups, learned = top.get("groups") or {}, top.get("learned_on") or {}
    for name, of in sorted(cases(options.data, options.only).items()):
        values, left = learn(of)
        print(name, left, dict(zip(NAMES, np.round(values, 3).tolist(), strict=True)), flush=True)
        terms = terms_from(values)
        groups[name] = {key: float(f"{getattr(terms, key):.4g}") for key in NAMES}
        learned[name] = sorted({_combination(case.point) for case in of})
        if options.holdout:
            for family in sorted({case.point.family for case in of}):
                rest = [case for case in of if case.point.family != family]
                if rest:
                    left_out = [case for case in of if case.point.family == family]
                    print(f"  without {family}: {errors(left_out, learn(rest)[0])}", flush=True)
    head = "# Written by benchmarks/accuracy/train_terms.py from closed loops (AIConfigurator's samples,\n"
    head += "# InferenceMAX; Apache-2.0).\n"
    text = yaml.safe_dump({"groups": groups, "learned_on": learned}, width=100)
    OUT.write_text(head + text, encoding="utf-8")


def _combination(point: Point) -> str:
    layout = Layout(point.gpus, point.attention_dp, point.ep)
    return f"{kind_of(point.shape())} on {load_gpu(point.gpu).name} {layout}"


if __name__ == "__main__":
    main()
