"""Hit rate against waiting time under cache-aware scheduling, as its fairness bound goes from 0 to infinity.

    python benchmarks/cache_aware.py                  # all runs and the picture: some ten minutes
    python benchmarks/cache_aware.py --only hot_34    # one stream; the figures of the others stay
    python benchmarks/cache_aware.py --draw           # only the picture, from the figures of the last time

Everything is simulated, so the figures depend on the code and not on the machine. They go into
results/cache_aware.json, the picture into results/cache_aware.png, and two tables to stdout, the
second of which is that of the guide.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cache_aware_plot import draw
from measure import ROOT
from provenance import provenance

import blis_py as blis
from blis_py import api
from blis_py.metrics.reuse import clairvoyant, unlimited

RESULTS = ROOT / "benchmarks" / "results"
MOONCAKE = ROOT.parent / "shared" / "data" / "mooncake" / "conversation_trace.jsonl.gz"
MOONCAKE_SOURCE = "Mooncake conversation trace (github.com/kvcache-ai/Mooncake, Apache-2.0; FAST 2025)"
UNLIMITED_QUEUE = 1_000_000
"""For `lpm_max_queue`: never fall back to the order of arrival."""

Point = dict[str, Any]


@dataclass(frozen=True)
class Stream:
    """One panel: requests, and the machine they go to.

    Attributes:
        bounds_ms: fairness bounds between 0 and infinity.
        requests: keyword arguments of `blis.build` that say which requests.
        engine: those that say which engine serves them, unless it is the usual one.
        variants: also run `lpm` with parts of it exchanged.
    """

    title: str
    source: str
    bounds_ms: tuple[int, ...]
    requests: Mapping[str, Any]
    engine: Mapping[str, Any] = field(default_factory=dict)
    variants: bool = False
    needs: Path | None = None

    def settings(self, policy: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "engine": "blis",
            "model": "llama-3.1-8b",
            "gpu": "h100",
            **self.engine,
            **self.requests,
            **policy,
        }


def hot(rate: float) -> Stream:
    return Stream(
        f"hot prefixes, {rate:g} requests/s",
        "workloads/hot-prefix.yaml",
        (1_000, 2_000, 3_000, 4_000, 5_000, 7_000, 10_000, 15_000, 20_000),
        {"workload": str(ROOT / "workloads" / "hot-prefix.yaml"), "rate": rate, "num_requests": 3000},
        {"num_kv_blocks": 4000},
        variants=True,
    )


def mooncake(title: str, time_scale: float, bounds_ms: tuple[int, ...] = ()) -> Stream:
    return Stream(
        f"Mooncake conversations, {title}",
        f"first 1,000 requests of the {MOONCAKE_SOURCE}, times x {time_scale:g}",
        bounds_ms,
        {"trace": str(MOONCAKE), "num_requests": 1000, "time_scale": time_scale},
        needs=MOONCAKE,
    )


STREAMS = {
    "hot_21": hot(21.0),
    "hot_34": hot(34.0),
    "hot_44": hot(44.0),
    "mooncake": mooncake("as recorded", 1.0, (5_000, 20_000, 60_000, 90_000, 120_000)),
    "mooncake_half": mooncake("at half the rate", 2.0),
}


def policies(stream: Stream) -> Iterator[dict[str, Any]]:
    """What is compared: order of arrival and of length, the policies that look at the cache, and variants."""
    for cache in ("none", "hash", "radix"):
        yield {"scheduler": "fcfs", "prefix_cache": cache}
    yield {"scheduler": "sjf", "prefix_cache": "radix"}
    aware = {"prefix_cache": "radix", "lpm_max_queue": UNLIMITED_QUEUE}
    for bound in (0, *stream.bounds_ms, None):
        yield {"scheduler": "lpm", **aware, "fairness_ms": bound}
    yield {"scheduler": "hrrn", **aware}
    yield {"scheduler": "dfs-weight", **aware}
    yield {"scheduler": "lpm", "prefix_cache": "radix"}  # falls back to fcfs above 128 waiting
    if stream.variants:
        yield {"scheduler": "lpm", **aware, "in_batch_sharing_tokens": None}
        yield {"scheduler": "lpm", **aware, "prefix_cache": "hash"}
        yield {"scheduler": "lpm", **aware, "radix_eviction_policy": "cold-subtree"}


def run(stream: Stream, policy: dict[str, Any], **fewer: int) -> Point:
    summary = blis.run(**stream.settings(policy) | fewer).summary
    cluster = summary["cluster"]
    waits = {name: part["scheduling_delay_ms"]["p99"] / 1000 for name, part in summary["tenants"].items()}
    return {
        **policy,
        "hit_rate": cluster["prefix_hit_rate"],
        "wait_p50_s": cluster["scheduling_delay_ms"]["p50"] / 1000,
        "wait_p99_s": cluster["scheduling_delay_ms"]["p99"] / 1000,
        "wait_p99_s_by_tenant": waits if len(waits) > 1 else {},
        "requests_per_s": cluster["throughput"]["requests_per_s"],
        "preemptions": cluster["preemptions"],
    }


def bounds(stream: Stream, **fewer: int) -> dict[str, Any]:
    """The most that could be found in this stream: at all, and in order of arrival by this many blocks."""
    simulation = api.build(**stream.settings({}) | fewer)
    table, engine = simulation.table, simulation.scheduler
    return {
        "requests": len(table),
        "mean_prompt_tokens": float(table.prompt_tokens.mean()),
        "num_kv_blocks": engine.num_kv_blocks,
        "ceiling": unlimited(table, engine.block_size).hit_rate,
        "belady": clairvoyant(table, engine.block_size, engine.num_kv_blocks).hit_rate,
    }


def measure(names: Sequence[str], **fewer: int) -> dict[str, Any]:
    """The figures of these streams; `fewer` replaces settings, to try it out."""
    measured = {}
    for name in names:
        stream = STREAMS[name]
        if stream.needs is not None and not stream.needs.exists():
            print(f"{name}: skipped, {stream.needs.name} is not beside the checkout", file=sys.stderr)
            continue
        measured[name] = {
            "title": stream.title,
            "source": stream.source,
            **bounds(stream, **fewer),
            "points": [run(stream, policy, **fewer) for policy in policies(stream)],
            "provenance": provenance(None),
        }
        print(f"{name}: done", file=sys.stderr)
    return measured


def name_of(point: Point) -> str:
    """The settings of a point that are not the usual ones."""
    words = [point["scheduler"], point["prefix_cache"]]
    if "fairness_ms" in point:
        bound = point["fairness_ms"]
        words.append("no bound" if bound is None else f"bound {bound / 1000:g} s")
    elif point["scheduler"] == "lpm" and "lpm_max_queue" not in point:
        words.append("fcfs above 128 waiting")
    if "in_batch_sharing_tokens" in point:
        words.append("no in-batch sharing")
    return ", ".join(
        [*words, *([point["radix_eviction_policy"]] if "radix_eviction_policy" in point else [])]
    )


def table(measured: Mapping[str, Any]) -> str:
    lines = []
    for stream in measured.values():
        belady = f"at most {stream['belady']:.1%} in order of arrival"
        lines += ["", f"{stream['title']}: at most {stream['ceiling']:.1%}, {belady}"]
        lines.append(
            f"{'':40} {'hits':>6} {'wait p50':>9} {'p99, s':>8} {'req/s':>6} {'preempted':>9}  p99 by tenant"
        )
        for point in stream["points"]:
            by_tenant = ", ".join(f"{name} {s:.1f}" for name, s in point["wait_p99_s_by_tenant"].items())
            waits = f"{point['wait_p50_s']:9.2f} {point['wait_p99_s']:8.2f}"
            work = f"{point['requests_per_s']:6.2f} {point['preemptions']:9,}"
            lines.append(
                f"{name_of(point):40} {point['hit_rate'] or 0:6.1%} {waits} {work}  {by_tenant}".rstrip()
            )
    return "\n".join(lines[1:])


def markdown(measured: Mapping[str, Any]) -> str:
    """The table of the guide: hits and p99 waiting time, with the radix cache and no fairness bound."""
    policies = ("fcfs", "sjf", "lpm", "hrrn", "dfs-weight")
    lines = [f"| stream | ceiling | Belady | {' | '.join(f'`{policy}`' for policy in policies)} |"]
    lines.append("|---" * (3 + len(policies)) + "|")
    for stream in measured.values():
        usual = {
            point["scheduler"]: f"{point['hit_rate']:.1%}, {point['wait_p99_s']:.3g} s"
            for point in stream["points"]
            if point["prefix_cache"] == "radix"
            and not {"in_batch_sharing_tokens", "radix_eviction_policy"} & point.keys()
            and (point["scheduler"] != "lpm" or point.get("fairness_ms", 0) is None)
        }
        cells = [stream["title"], f"{stream['ceiling']:.1%}", f"{stream['belady']:.1%}"]
        lines.append(f"| {' | '.join([*cells, *(usual[policy] for policy in policies)])} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="only draw what was measured last")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the figures and the picture")
    parser.add_argument("--requests", type=int, help="only so many of each stream, to see that it works")
    parser.add_argument("--only", nargs="+", choices=STREAMS, default=list(STREAMS), help="these streams")
    options = parser.parse_args()
    figures = options.out / "cache_aware.json"
    measured = json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else {}
    if not options.draw:
        measured |= measure(options.only, **({"num_requests": options.requests} if options.requests else {}))
        measured = {name: measured[name] for name in STREAMS if name in measured}
        options.out.mkdir(parents=True, exist_ok=True)
        figures.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    draw(measured, options.out / "cache_aware.png")
    print(table(measured), markdown(measured), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
