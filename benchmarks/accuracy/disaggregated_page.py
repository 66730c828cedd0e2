"""The section of results/accuracy.md on prefill and decode apart, from the last run of `disaggregated.py`."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "disaggregated.json"
PAGE = ROOT / "benchmarks" / "results" / "accuracy.md"
MTP = "multi-token prediction ran, or may have"
AMD = "AMD GPUs: no kernels measured"
ASIDE = (MTP, AMD)
"""Reasons that do not count against coverage."""
Entry = dict[str, Any]
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}

TITLE = "## Prefill and decode on GPUs of their own"
HEAD = f"""\
{TITLE}

Made by `python benchmarks/accuracy/disaggregated.py ../shared/data`: each side with the instances, widths,
division of attention and experts and flags of the recipe that was run; hand-over and prices are its engine's.
The link is that of the machine (NVLink within a GB200 rack, else 400 Gb/s for each GPU). Throughput is tokens
in and out per second and GPU, where it was published; else it follows from the means, by Little's law, for
the measured and the predicted one. A run has ten requests for each in flight; on GB200 it had five (SGLang)
or eight (TensorRT-LLM) where Dynamo's own jobs held the client, as their scripts say (`dynamo_jobs.py`);
throughput that falls short of Little's law by 7 and 4 % there, and by 2 % elsewhere, agrees. The bars are
30 % for TTFT, 15 % for TPOT and throughput, in the median.
A point is contradicted where another run of the same layout had its first tokens in less than half the time
at the same load, as for points with prefill and decode together.
"""


ORDERS = """\
The bar is 80 % of pairs of layouts at equal GPUs, as in the first line. Requests in flight were seldom the
same for two layouts, and where they differ much their order is that of the loads; the second line, of about
the same load, says more about layouts. The third is too short for a share. Left every measurement counts,
right every pair of settings once.
"""
MISSED = """\
What is missed, and why, as far as it is known:

- Means of TTFT in closed loops. All requests in flight begin at once, and a tenth to a fifth of all is this
  first wave: TensorRT-LLM's jobs on GB200 had warmed up with eight prompts, one after another. Where medians
  were published they are predicted better than the means.
- Prompts of SGLang with attention DP in NVFP4 on GB200, priced too fast: 10,600 tokens/s and GPU were
  measured at saturation, 15,300 are priced in full steps. Its experts by CUTLASS run without tuning (SGLang
  tunes only TensorRT-LLM's); those of the tables were tuned. With TensorRT-LLM's on B200, and in FP8 under
  DeepEP,
  saturation is met.
- TTFT near saturation of the prefill side. With a fixed number of requests in flight, a prefill that is
  priced 20 % too slow makes their queue several times as long; throughput is then off by those 20 %
  only. The factor of steps with prompts was learned on instances that do both; on Blackwell instances
  for prefill alone with attention DP seem to be faster, on Hopper they are not.
- Prompts of SGLang in FP8 on GB200 with TP4, priced too fast: at saturation 13,400 tokens/s were measured.
  The term of block scales, learned where both sides are together, explains half of it. The dense products of
  these servers are FlashInfer's (`SGLANG_ENABLE_FLASHINFER_GEMM`), the measured ones DeepGEMM's.
- Prompts of gpt-oss-120b under TensorRT-LLM on GB200, priced a third too fast: 108,000 tokens/s and GPU were
  measured at saturation. Dynamo's generator names no kernel of experts for context servers, and CUTLASS was
  the default; one kernel was measured.
- SGLang in FP8 with 24 GPUs for decodes: 32 ms for a token at any load. The branch with its script was not
  found.
- TPOT of SGLang in FP8 on GB200 with TP4 under load: the kernels of experts that were measured reach half of
  the memory bandwidth at 16 requests; these servers reached three quarters.
- TPOT of gpt-oss-120b under TensorRT-LLM with TP4, as where prefill and decode are together.
- TTFT of SGLang in NVFP4 on B200 with prompts of 1,024 tokens: 3 to 8 s at any load, with 16 requests in
  flight as well, though a prompt takes less than 0.2 s and the link a millisecond. No queue that is
  known here explains that.
- Steps of prompts in SGLang end at `max_prefill_tokens`, too, which is not simulated: with prompts of 8,192
  tokens and larger chunks, two are computed at once where three are priced.
- Settings that were not published are those of another recipe with the same instance; where memory or
  places were others, so is the queue.

Points not run yet are those with most requests in flight; a run continues where the last one ended.
"""


def section() -> list[str]:
    """Lines of results/accuracy.md, from the last run."""
    if not RESULTS.exists():
        return []
    top = json.loads(RESULTS.read_text())
    of = [entry for entry in top["points"] if "errors" in entry]
    sound = [entry for entry in of if not entry.get("contradicted")]
    lines = ["", HEAD, *table("points", {"all": of, "no other run contradicts": sound})]
    if earlier := sum("earlier" in entry for entry in of):
        lines += ["", f"{earlier} of them, of most requests in flight, are of earlier step times."]
    lines += ["", *table("engine, GPU", by(of, lambda e: f"{e['engine']}, {e['gpu']}"))]
    lines += ["", *table("model", by(of, lambda e: f"{_family(e)} {e['precision']}"))]
    lines += ["", *table("prompt + answer", by(of, lambda e: " + ".join(map(str, e["lengths"]))))]
    lines += ["", *table("decode instance", by(of, lambda e: _shape(e["layout"])))]
    lines += ["", *tails(of), "", *orders(top["pairs"], top["points"]), "", *coverage(top["points"])]
    return [*lines, "", *MISSED.splitlines()]


def put(text: str) -> str:
    """The page with this section in place of the old one, ahead of the history."""
    rest = re.sub(rf"\n{re.escape(TITLE)}.*?(?=\n## )", "", text, flags=re.DOTALL)
    return rest.replace("\n## History", "\n".join(section()) + "\n\n## History", 1)


def _family(entry: Entry) -> str:
    return "gpt-oss-120b" if "gpt-oss" in entry["model"] else "deepseek"


def _shape(layout: str) -> str:
    """Kind of the decode instances."""
    one = layout.rpartition("× ")[2]
    wide = int(one.rpartition("EP")[2]) >= 16 if "EP" in one else False
    return "wide EP" if wide else "attention DP" if "DP" in one else "TP"


def by(of: Iterable[Entry], key: Callable[[Entry], str]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in of:
        found[key(entry)].append(entry)
    return dict(sorted(found.items()))


def cells(of: Sequence[Entry], name: str) -> list[str]:
    """Median of absolute errors, median with sign, share within the bar."""
    errors = np.array([entry["errors"][name] for entry in of if name in entry["errors"]])
    if not len(errors):
        return ["", "", ""]
    bar = 0.3 if name.startswith("ttft") else 0.15
    near = f"{100 * np.mean(np.abs(errors) <= bar):.0f}"
    return [f"{100 * np.median(np.abs(errors)):.1f}", f"{100 * np.median(errors):+.1f}", near]


def table(title: str, groups: dict[str, list[Entry]]) -> list[str]:
    names = {"ttft.mean": ("TTFT", 30), "tpot.mean": ("TPOT", 15), "throughput": ("throughput", 15)}
    heads = [
        head for name, bar in names.values() for head in (f"{name} median", f"{name} bias", f"{name} ≤ {bar}")
    ]
    lines = [f"| {title} | points | {' | '.join(heads)} |", "|---|---:|" + "---:|" * len(heads)]
    for group, of in groups.items():
        row = [cell for name in names for cell in cells(of, name)]
        lines.append(f"| {group} | {len(of)} | {' | '.join(row)} |")
    return lines


def tails(of: Sequence[Entry]) -> list[str]:
    lines = [
        "| engine | points | metric | mean | median | p99 | p99 bias |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for engine, some in by((e for e in of if e["source"] != "silicon"), lambda e: e["engine"]).items():
        for metric, label in METRICS.items():
            found = [cells(some, f"{metric}.{statistic}") for statistic in ("mean", "median", "p99")]
            row = [*(each[0] for each in found), found[2][1]]
            lines.append(f"| {engine} | {len(some)} | {label} | {' | '.join(row)} |")
    return lines


def orders(of: dict[str, list[Entry]], points: Sequence[Entry]) -> list[str]:
    """Pairs of measurements, and of different settings: many were measured several times."""
    known = {entry["id"]: entry for entry in points}
    titles = "layouts of as many GPUs, more than 10 % apart", "pairs", "right, %", "different", "right, %"
    lines = [f"| {' | '.join(titles)} |", "|---|---:|---:|---:|---:|"]
    for name, found in of.items():
        ends: dict[frozenset[Any], list[bool]] = defaultdict(list)
        for pair in found:
            ends[frozenset(_setting(known[one]) for one in pair["pair"])].append(pair["right"])
        rights = [pair["right"] for pair in found], [np.mean(each) for each in ends.values()]
        each, once = (f"{100 * np.mean(some):.0f}" if some else "" for some in rights)
        lines.append(f"| {name} | {len(found)} | {each} | {len(ends)} | {once} |")
    return [*lines, "", *ORDERS.splitlines()]


def _setting(entry: Entry) -> tuple[Any, ...]:
    """What was measured, whenever it was."""
    names = ("engine", "gpu", "precision", "layout", "concurrency")
    return (*(entry[name] for name in names), *entry["lengths"])


def coverage(of: Sequence[Entry]) -> list[str]:
    """Points on NVIDIA GPUs without multi-token prediction, how many of them can be expressed and were run;
    the others beside them."""
    lines = ["| set, engine, GPU | points | expressed | % | run | beside |", "|---|---:|---:|---:|---:|---:|"]
    every = {"all": list(of), **by(of, lambda e: f"{e['source']}, {e['engine']}, {e['gpu']}")}
    for name, some in every.items():
        counted = [e for e in some if e.get("refused") not in ASIDE]
        able = sum("refused" not in e for e in counted)
        ran = sum("errors" in e for e in counted)
        share = f"{100 * able / len(counted):.0f}" if counted else ""
        lines.append(f"| {name} | {len(counted)} | {able} | {share} | {ran} | {len(some) - len(counted)} |")
    counts = Counter(e["refused"] for e in of if "refused" in e).most_common()
    return [*lines, "", "| reason | points |", "|---|---:|", *(f"| {why} | {n} |" for why, n in counts)]
