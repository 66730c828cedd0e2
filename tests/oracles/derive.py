"""Derives the figures in `peer/` from recorded runs of BLIS, for checkouts that do not have the runs.

    python tests/oracles/derive.py ../shared/data/peer_runs

Each file keeps the inputs of a run (flags, requests) and what came of it: the times of its requests in us,
the first routing decisions with all candidates and scores, what detectors said at first.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

SOURCE = (
    "BLIS (inference-sim, Apache-2.0), commit f90a1e3a of 22 Aug 2026, with one bug fixed: after a step that "
    "leaves the batch empty, a queued event may not start the next step before the last one ended"
)
PEER = Path(__file__).with_name("peer")
CASES = (
    *("01_weighted_default_prefix/csd50", "02_scorers_prefix_affinity_mix/"),
    *("03_scorers_lru_vllmdp_running_mix/", "04_scorers_load_kv_timeouts/"),
    *("05_least_loaded_busiest/ll", "05_least_loaded_busiest/busiest", "06_token_bucket/", "07_tier_shed/"),
    *("07_tier_shed/flag", "08_gaie_legacy/", "09_tenant_budgets/", "10_flow_fifo_ttl/"),
    *("11_flow_priority_shed/shed", "12_flow_slo_deadline/", "13_flow_eviction/"),
    *("17_sessions_spec_accumulate/", "18_session_mode_closed_loop/column"),
    *("18_session_mode_closed_loop/dist", "19_concurrency_client/", "26_goodput_multi_model/"),
)
DECISIONS = 100
COLUMNS = (
    "request_id",
    "tenant_id",
    "slo_class",
    "session_id",
    "round_index",
    "prefix_group",
    "prefix_length",
)
COLUMNS += ("input_tokens", "output_tokens", "model", "deadline_us", "arrival_time_us", "think_time_us")
NUMBERS = {"request_id", "round_index", "prefix_length"} | {
    c for c in COLUMNS if c.endswith(("tokens", "us"))
}
TIMES = ("arrival_us", "ttft_us", "e2e_us", "scheduling_delay_us", "gateway_queue_delay_us")
SERVED = ("request", "instance", "round", "prompt", "output", *TIMES)
CANDIDATE = ("q", "b", "kv", "inf", "cached", "score")
FILES = {"--trace-header", "--trace-data", "--workload-spec", "--policy-config", "--metrics-path", "--log"}
FILES |= {"--results-path", "--trace-output", "--saturation-config", "--saturation-report", "--detectors"}


def unpacked(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def command_of(folder: Path, end: str) -> list[str]:
    """Verb and flags, without files."""
    lines = (folder / "cmd.txt").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith("blis ") and f"metrics{end}.json" in shlex.split(one)]
    words, kept = iter(shlex.split(line)[1:]), list[str]()
    for word in words:
        if word in FILES:
            next(words)
        else:
            kept.append(word)
    return kept


def sent(folder: Path) -> dict[str, Any]:
    """The columns of a trace that say anything."""
    if not (folder / "trace.csv.gz").exists():
        return {"spec": (folder / "spec.yaml").read_text()}
    rows = list(csv.DictReader(io.StringIO(unpacked(folder / "trace.csv.gz"))))
    used = [name for name in COLUMNS if any(row.get(name) not in (None, "", "0") for row in rows)]
    table = [[int(row[name]) if name in NUMBERS else row[name] for name in used] for row in rows]
    grows = "session_context_growth: accumulate" in (folder / "trace.yaml").read_text()
    return {"context_grows": grows, "columns": used, "sent": table}


def served(metrics: dict[str, Any]) -> list[list[Any]]:
    """Times of each request in us; 0 = it did not come to that."""

    def us(request: dict[str, Any], name: str) -> int:
        return round(request.get(name, 0.0) * 1e3)

    return [
        [
            *(
                request["requestID"].removeprefix("request_"),
                int(request["handled_by"].removeprefix("instance_")),
                request["round_index"],
            ),
            *(
                request["num_prefill_tokens"],
                request["num_decode_tokens"],
                round(request["arrived_at"] * 1e6),
            ),
            *(us(request, f"{name.removesuffix('_us')}_ms") for name in TIMES[1:]),
        ]
        for request in metrics["requests"]
    ]


def decisions(log: list[dict[str, Any]]) -> list[Any]:
    """The first ones of the router: request, target, candidates, saturation at the dispatch before."""
    saturation = {entry["req"]: entry["sat"] for entry in log if entry["kind"] == "gw_dispatch"}
    return [
        [
            *(entry["req"].removeprefix("request_"), int(entry["target"].removeprefix("instance_"))),
            [[one.get(key, 0) for key in CANDIDATE] for one in entry["cand"]],
            saturation.get(entry["req"], 0),
        ]
        for entry in log
        if entry["kind"] == "route"
    ][:DECISIONS]


def refused(log: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Requests that were turned away, by where."""
    found: dict[str, list[str]] = {}
    for entry in log:
        admitted = entry.get("reason") == "flow-control-enqueued"
        if entry["kind"] in ("gw_shed", "gw_expire") or (entry["kind"] == "admission" and not admitted):
            found.setdefault(entry["kind"], []).append(entry["req"].removeprefix("request_"))
    return found


def evicted(log: list[dict[str, Any]]) -> dict[str, Any]:
    """Victims in order: request, instance, time in us."""
    found = [
        [entry["req"].removeprefix("request_"), int(entry["from"].removeprefix("instance_")), entry["t_us"]]
        for entry in log
        if entry["kind"] == "gw_evict"
    ]
    return {"evicted": found} if found else {}


def goodput(folder: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    """Targets of the trace's header as they stand there, and the goodput of each class."""
    header = (folder / "trace.yaml").read_text() if (folder / "trace.yaml").exists() else ""
    if "goodput_slo_targets" not in header:
        return {}
    names = ("count", "slo_attainment", "goodput_rps")
    classes = {name: {key: one[key] for key in names} for name, one in metrics["per_class"].items()}
    whole = {key: metrics[key] for key in names[1:]}
    targets = header[header.index("goodput_slo_targets") :]
    return {"goodput": {"targets": targets, "classes": classes, "all": whole}}


def verdicts(folder: Path) -> dict[str, Any]:
    if not (folder / "saturation_report.json.gz").exists():
        return {}
    report = json.loads(unpacked(folder / "saturation_report.json.gz"))
    first = [
        [e["timestamp"], e["detector"], e["result"]["level"], e["result"]["score"]] for e in report["trace"]
    ]
    config = (folder / "sat.yaml").read_text()
    return {"detectors": {"config": config, "final": report["final"], "trace": first[: 3 * DECISIONS]}}


def derived(folder: Path, variant: str) -> dict[str, Any]:
    end = f"_{variant}" if variant else ""
    metrics = json.loads(unpacked(folder / f"metrics{end}.json.gz"))
    log = [json.loads(line) for line in unpacked(folder / f"decisions{end}.jsonl.gz").splitlines()]
    command = command_of(folder, end)
    bundle = folder / "bundle.yaml"
    by_bundle = bundle.exists() and variant != "flag"
    return {
        "source": f"{SOURCE}; recorded run {folder.name} {variant}".strip(),
        "command": command,
        "bundle": bundle.read_text() if by_bundle else "",
        **sent(folder),
        "served": served(metrics),
        **goodput(folder, metrics),
        "refused": refused(log),
        **evicted(log),
        "decisions": decisions(log),
        **verdicts(folder),
    }


def lines_of(found: dict[str, Any]) -> str:
    """JSON with a row per line."""
    parts = []
    for key, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            parts.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(runs: str) -> None:
    PEER.mkdir(exist_ok=True)
    for name in CASES:
        case, _, variant = name.partition("/")
        found = derived(Path(runs) / case, variant)
        (PEER / f"{case}{'_' + variant if variant else ''}.json").write_text(lines_of(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
