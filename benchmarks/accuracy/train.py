"""Learns the coefficients of the `trained` latency model and says how well it does on what it has not seen.

    python benchmarks/accuracy/train.py ../shared/data          # about ten minutes
    python benchmarks/accuracy/train.py ../shared/data --check  # only: are the committed ones these?

Writes profiles/trained/coefficients.yaml (the same bytes from the same data) and
benchmarks/results/trained.json (every group's errors, with provenance), and prints the tables.

Learned on: steps composed of measured kernels (`kernel-tables`) at a low-discrepancy sample of batches; and,
for the host's time, which kernels do not show, decode steps of two real vLLM runs and the mean TPOT of five.
Of batches of prefill and decode, only the attention is learned on, where it was measured in such batches;
their whole steps are only predicted. What 8-bit formats cost is learned after, on quantised models.
Every error printed under `new model` or `new GPU` comes from coefficients learned without a single group of
that model or GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import vllm_runs
import vllm_steps
from served_runs import served_runs
from train_fit import Array, SampleGroup, ServedRun, predict, train
from train_groups import TABLES, groups, scored_groups

from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.learned import learned_on
from blis_py.latency.trained import COEFFICIENT_NAMES, Coefficients, Trained, Training
from blis_py.models.model_shape import load_model

ROOT = Path(__file__).resolve().parents[2]
COEFFICIENTS = ROOT / "profiles" / "trained" / "coefficients.yaml"
RESULT = ROOT / "benchmarks" / "results" / "trained.json"

# --- how well it predicts ----------------------------------------------------------------------------


def left_out(
    found: Sequence[SampleGroup], runs: Sequence[ServedRun], attribute: str
) -> dict[str, Coefficients]:
    """For each model (or GPU): coefficients learned without it."""
    values = list(dict.fromkeys(getattr(group, attribute) for group in found))
    return {
        value: train(
            [group for group in found if getattr(group, attribute) != value],
            [run for run in runs if getattr(run, attribute) != value],
        )
        for value in values
    }


def without_run(found: Sequence[SampleGroup], runs: Sequence[ServedRun]) -> dict[str, Coefficients]:
    """For each real run: coefficients learned without it, and without any real step of its model."""
    return {
        run.name: train(
            [group for group in found if not (group.with_host and group.model == run.model)],
            [other for other in runs if other is not run],
        )
        for run in runs
    }


def others(data: Path, group: SampleGroup) -> dict[str, Array]:
    """Prices of the other models. Roofline without host where the group's times have none;
    that of trained-physics is not separate. `kernel-tables` only where it is not the truth itself."""
    shape, gpu = group.basis.shape, load_gpu(group.gpu)
    roofline = build("roofline", shape=shape, gpu=gpu, tp=group.tp)
    physics = build("trained-physics", shape=shape, gpu=gpu, tp=group.tp)
    prices = {
        "roofline": [
            t.synchronous_ns if group.with_host else t.gpu_ns for t in map(roofline.step, group.steps)
        ],
        "trained-physics": [physics.step_ns(step) for step in group.steps],
    }
    if group.with_host:
        folder = data / vllm_steps.KERNELS
        tables = build("kernel-tables", shape=shape, gpu=gpu, tp=group.tp, kernel_profile=folder)
        prices["kernel-tables"] = [tables.step_ns(step) for step in group.steps]
    return {name: np.array(ns, dtype=float) for name, ns in prices.items()}


def regimes(group: SampleGroup) -> dict[str, Array]:
    """Which steps are which."""
    prefill = np.array([step.prefill_seqs > 0 for step in group.steps])
    decode = np.array([step.decode_seqs > 0 for step in group.steps])
    masks = {
        "all": prefill | decode,
        "decode": ~prefill,
        "prefill": prefill & ~decode,
        "mixed": prefill & decode,
    }
    return {name: mask for name, mask in masks.items() if mask.any()}


def scores(group: SampleGroup, prices: dict[str, Array]) -> dict[str, dict[str, dict[str, float]]]:
    """regime -> latency model -> mean absolute and mean relative error."""
    return {
        regime: {
            name: {"mape": float(np.abs(error).mean()), "bias": float(error.mean())}
            for name, ns in prices.items()
            for error in [(ns / group.ns - 1)[mask]]
        }
        for regime, mask in regimes(group).items()
    }


def real_runs(data: Path, final: Coefficients, folds: dict[str, Coefficients]) -> dict[str, Any]:
    """The real vLLM runs end to end, none of them learned on: with the run's GPU left out of the training,
    with its kernels in it, and with roofline and trained-physics."""
    folder, shape, result = data / "vllm_runs", load_model(vllm_runs.MODEL), {}
    for run, gpu in vllm_runs.GPUS.items():
        spec = load_gpu(gpu)
        seen = tuple(load_gpu(name).name for name in folds if name != gpu)
        models = {
            "trained, new GPU": Trained(shape, spec, 1, Training(folds[gpu], seen)),
            "trained, seen kernels": Trained(shape, spec, 1, Training(final, (*seen, spec.name))),
            "roofline": build("roofline", shape=shape, gpu=spec),
            "trained-physics": build("trained-physics", shape=shape, gpu=spec),
        }
        result[run] = {
            name: {
                latency: {"mean": error.mean, "p50": error.p50, "p90": error.p90, "p99": error.p99}
                for latency, error in vllm_runs.errors(folder, run, model).items()
            }
            for name, model in models.items()
        }
    return result


# --- output ------------------------------------------------------------------------------------------

_COLUMNS = (
    "trained, new model",
    "trained, new GPU",
    "trained, seen",
    "roofline",
    "trained-physics",
    "kernel-tables",
)


def summary(rows: Sequence[dict[str, Any]], key: str, regime: str) -> dict[str, dict[str, dict[str, float]]]:
    """Mean over the groups of each source (or model), every group counting the same."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for value in dict.fromkeys(row[key] for row in rows):
        there = [row["errors"][regime] for row in rows if row[key] == value and regime in row["errors"]]
        names = [name for name in _COLUMNS if there and name in there[0]]
        table[value] = {
            name: {part: float(np.mean([e[name][part] for e in there])) for part in ("mape", "bias")}
            for name in names
        }
    return {value: row for value, row in table.items() if row}


def print_table(title: str, table: dict[str, dict[str, dict[str, float]]]) -> None:
    print(f"\n{title:34}" + "".join(f"{name:>20}" for name in _COLUMNS))
    for value, row in table.items():
        cells = [f"{row[n]['mape']:.1%} {row[n]['bias']:+.1%}" if n in row else "" for n in _COLUMNS]
        print(f"{value:34}" + "".join(f"{cell:>20}" for cell in cells))


def coefficients_yaml(
    coefficients: Coefficients, found: Sequence[SampleGroup], rows: Sequence[dict[str, Any]]
) -> str:
    """The committed file: coefficients, what they were learned on, and the errors on what was left out."""
    lines = [
        "# Coefficients of the `trained` latency model (blis_py/latency/trained.py), learned by",
        "#     python benchmarks/accuracy/train.py ../shared/data",
        "# on figures derived from: AIConfigurator operator tables (NVIDIA, Apache-2.0; vLLM 0.24 on H100",
        "# and H200 SXM in 16 bits and FP8 and on B200 in FP8, SGLang 0.5.14 on H200 SXM), layer profiles",
        "# of Llama-3.1-8B on RTX 4090 and RTX PRO 6000 (LLMServingSim, MIT; vLLM 0.19), decode steps of",
        "# two vLLM 0.15 runs on H100, and the mean TPOT of five (BLIS, Apache-2.0).",
        "coefficients:",
        *(f"  {name}: {getattr(coefficients, name)!r}" for name in COEFFICIENT_NAMES),
        "gpus: [" + ", ".join(dict.fromkeys(load_gpu(group.gpu).name for group in found)) + "]",
        *learned_yaml(found),
        f"groups: {len(found)}  # model, GPU, TP degree, source; all of the same weight",
        f"steps: {sum(len(group.ns) for group in found)}",
        "# [mean relative error, bias] in %, mean over groups. new model, new GPU: with coefficients learned",
        "# without any group of the model or GPU that is priced; seen: learned on it.",
        "validation:",
    ]
    for source, row in summary(rows, "source", "all").items():
        cells = [f"{name[9:]}: [{100 * e['mape']:.1f}, {100 * e['bias']:+.1f}]" for name, e in _own(row)]
        lines.append(f"  {source}: {{{', '.join(cells)}}}")
    return "\n".join(lines) + "\n"


def learned_yaml(found: Sequence[SampleGroup]) -> list[str]:
    """What there is to learn from, for the notes of runs that go beyond it."""
    learned = learned_on((g.basis.shape, load_gpu(g.gpu), g.tp, longest_context(g)) for g in found)
    return [
        "learned_on:  # TP degrees by kind and format of the weights and GPU, the longest context",
        "  tp:",
        *(f"    {kind}: {{{_degrees(gpus)}}}" for kind, gpus in learned.tp.items()),
        f"  longest_tokens: {learned.longest_tokens}",
    ]


def _degrees(gpus: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{gpu}: [{', '.join(map(str, degrees))}]" for gpu, degrees in gpus.items())


def longest_context(group: SampleGroup) -> int:
    """Tokens of the longest sequence in any of its steps."""
    decodes = [f.decode_kv_tokens // f.decode_seqs for f in group.steps if f.decode_seqs]
    prompts = [f.prefill_kv_tokens + f.prefill_tokens for f in group.steps if f.prefill_seqs]
    return max(*decodes, *prompts, 0)


def _own(row: dict[str, dict[str, float]]) -> list[tuple[str, dict[str, float]]]:
    return [(name, error) for name, error in row.items() if name.startswith("trained, ")]


def main(data: Path, check: bool) -> int:
    found = groups(data, lambda line: print(line, file=sys.stderr))
    runs = served_runs(data, train([group for group in found if not group.with_host]))
    final = train(found, runs)
    without_model, without_gpu = left_out(found, runs, "model"), left_out(found, runs, "gpu")
    rows = []
    for group in [*(group for group in found if group.part == "step"), *scored_groups(data)]:
        unseen = (without_model[group.model], without_gpu[group.gpu], final)
        prices = {name: predict(group, c) for name, c in zip(_COLUMNS, unseen, strict=False)}
        if not check:
            prices |= others(data, group)
        about = {"source": group.source, "gpu": group.gpu, "model": group.model, "tp": group.tp}
        rows.append({**about, "steps": len(group.ns), "errors": scores(group, prices)})
    text = coefficients_yaml(final, found, rows)
    if check:
        same = COEFFICIENTS.read_text(encoding="utf-8") == text
        print("the same" if same else "NOT the same")
        return 0 if same else 1
    COEFFICIENTS.write_text(text, encoding="utf-8")
    for regime in ("all", "decode", "prefill", "mixed"):
        print_table(f"{regime}: MAPE, bias", summary(rows, "source", regime))
    print_table("by model: MAPE, bias", summary([r for r in rows if r["source"] in TABLES], "model", "all"))
    cards = real_runs(data, final, without_gpu)
    print_runs(cards)
    small = groups(data, lambda line: None, subset=True)
    result = {
        "provenance": _provenance(),
        "coefficients": _plain(final),
        "subset": _plain(train(small)),
        "without_model": {name: _plain(c) for name, c in without_model.items()},
        "without_gpu": {name: _plain(c) for name, c in without_gpu.items()},
        "without_run": {name: _plain(c) for name, c in without_run(found, runs).items()},
        "groups": rows,
        "real_runs": cards,
    }
    RESULT.write_text(json.dumps(_rounded(result), indent=1) + "\n", encoding="utf-8")
    return 0


def _provenance() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from provenance import provenance

    return provenance(None)


def print_runs(runs: dict[str, Any]) -> None:
    print(
        f"\n{'real vLLM runs, end to end':34}{'latency':8}"
        + "".join(f"{n:>8}" for n in ("mean", "p50", "p90", "p99"))
    )
    for run, models in runs.items():
        for name, errors in models.items():
            for latency, error in errors.items():
                print(f"{run + ' ' + name:34}{latency:8}" + "".join(f"{e:>+8.1%}" for e in error.values()))


def _plain(coefficients: Coefficients) -> dict[str, float]:
    return {name: getattr(coefficients, name) for name in COEFFICIENT_NAMES}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    sys.exit(main(options.data, options.check))
