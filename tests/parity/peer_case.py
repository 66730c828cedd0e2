"""A case that is replayed by `blis replay` and by the model of the peer."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from peer_model import PUBLISHED_ALPHA, PUBLISHED_BETA, Config, Hardware, Outcome, Quirks, Row, TrainedPhysics
from peer_model import replay as peer_replay

from blis_py.cli import main

MODELS = Path(__file__).resolve().parents[2] / "profiles" / "models"
HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
COLUMNS = (
    *("request_id", "client_id", "tenant_id", "slo_class", "session_id", "round_index", "prefix_group"),
    *("prefix_length", "streaming", "input_tokens", "output_tokens", "text_tokens", "image_tokens"),
    *("audio_tokens", "video_tokens", "reason_ratio", "model", "deadline_us", "server_input_tokens"),
    *("arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us", "num_chunks"),
    *("status", "error_message", "finish_reason"),
)
TEXT = ("client_id", "tenant_id", "session_id", "model", "status", "error_message", "finish_reason")
ENDLESS = 2**63 - 1
"""The peer's default horizon of `run`; its `replay` needs it, or it stops at twice the last arrival."""
CLASSES = ("critical", "standard", "", "batch", "sheddable", "background")
NO_DELAY, TEN_MS = (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10_000.0)


@dataclass(frozen=True)
class Case:
    rows: Sequence[Row]
    config: Config = field(default_factory=Config)
    differs: tuple[str, ...] = ()
    """The quirks of the peer that blis-py does without and that change something here."""
    shows: tuple[str, ...] = ()
    """What must happen, or the case would not be about anything."""
    model: str = "qwen3-14b"
    own_model: dict[str, Any] = field(default_factory=dict)
    """Keys of a config.json that replace those of `model`."""
    tp: int = 1
    alpha: Sequence[float] | None = None
    beta: Sequence[float] | None = None
    w: float | None = None
    expert_w: float | None = None
    gpu: str = "H100"
    hardware: Hardware | None = None
    automatic_max_model_len: bool = False
    """`--max-model-len 0`, which must come to what the config says."""


def traffic(
    count: int = 100,
    rate: float = 40,
    prompt: tuple[int, int] = (50, 600),
    output: tuple[int, int] = (2, 40),
    classes: Sequence[str] = CLASSES,
    groups: str = "",
    prefix: int = 0,
    patience_s: tuple[float, float] | None = None,
    seed: int = 0,
) -> list[Row]:
    """Poisson arrivals, lengths uniform between the given bounds."""
    draw, now_us, rows = random.Random(seed), 0, []
    for number in range(count):
        now_us += int(draw.expovariate(rate) * 1e6)
        group = draw.choice(groups) if groups else ""
        rows.append(
            Row(
                number,
                now_us,
                draw.randint(*prompt),
                draw.randint(*output),
                draw.choice(classes),
                group,
                prefix if group else 0,
                now_us + int(draw.uniform(*patience_s) * 1e6) if patience_s else 0,
            )
        )
    return rows


def at_once(rows: Sequence[Row]) -> list[Row]:
    return [replace(row, arrival_us=5_000) for row in rows]


def shuffled(rows: Sequence[Row]) -> list[Row]:
    """Out of order, with gaps between the ids."""
    return random.Random(1).sample([replace(row, id=7 * row.id + 3) for row in rows], len(rows))


Cells = Mapping[int, Mapping[str, str]]


def write_trace(folder: Path, rows: Sequence[Row], changes: Cells) -> None:
    (folder / "trace.yaml").write_text(HEADER)
    with (folder / "trace.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="0")
        writer.writeheader()
        for r in rows:
            cells = {
                "request_id": r.id,
                "slo_class": r.slo_class,
                "prefix_group": r.group,
                "prefix_length": r.prefix,
                "streaming": "true",
                "input_tokens": r.input,
                "output_tokens": r.output,
                "deadline_us": r.deadline_us,
                "arrival_time_us": r.arrival_us,
            }
            writer.writerow(dict.fromkeys(TEXT, "") | cells | dict(changes.get(r.id, {})))


def model_config(case: Case, folder: Path) -> Path:
    bundled = MODELS / f"{case.model}.json"
    if not case.own_model:
        return bundled
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(bundled.read_text()) | case.own_model))
    return path


def ours(case: Case, folder: Path, changes: Cells = MappingProxyType({})) -> dict[str, Any]:
    """The content of `--metrics-path`, with `results` from `--results-path`."""
    write_trace(folder, case.rows, changes)
    config, metrics, results = case.config, folder / "metrics.json", folder / "results.json"
    flags: dict[str, object] = {
        "--engine": "blis",
        "--trace-header": folder / "trace.yaml",
        "--trace-data": folder / "trace.csv",
        "--model": case.model,
        "--hardware": case.gpu,
        "--tp": case.tp,
        "--scheduler": config.scheduler,
        "--preemption-policy": config.preemption,
        "--max-num-scheduled-tokens": config.budget,
        "--max-num-running-reqs": config.max_num_seqs,
        "--long-prefill-token-threshold": config.threshold,
        "--block-size-in-tokens": config.block,
        "--total-kv-blocks": config.total_blocks,
        "--max-model-len": 0 if case.automatic_max_model_len else config.max_model_len,
        "--num-instances": config.instances,
        "--admission-latency": config.admission_us,
        "--routing-latency": config.routing_us,
        "--horizon": ENDLESS,
        "--metrics-path": metrics,
        "--results-path": results,
    }
    if case.own_model:
        flags["--model-config-folder"] = model_config(case, folder)
    if case.beta is not None:
        flags["--alpha-coeffs"] = ",".join(map(str, case.alpha or PUBLISHED_ALPHA))
        flags["--beta-coeffs"] = ",".join(map(str, case.beta))
    assert main(["replay", *(str(word) for flag in flags.items() for word in flag)]) == 0
    return json.loads(metrics.read_text()) | {"results": json.loads(results.read_text())}


def theirs(case: Case, folder: Path, quirks: Quirks) -> tuple[dict[int, Outcome], dict[str, int]]:
    latency = TrainedPhysics(
        model_config(case, folder),
        case.tp,
        PUBLISHED_ALPHA if case.alpha is None else case.alpha,
        PUBLISHED_BETA if case.beta is None else case.beta,
        case.w,
        case.expert_w,
        case.hardware,
    )
    return peer_replay(case.rows, case.config, latency, quirks)


def disagreements(measured: dict[str, Any], expected: dict[int, Outcome]) -> list[str]:
    """Everything that is further apart than 0.1 % or 50 µs, whichever is more."""
    found = []

    def compare(what: str, mine: float, peers: float) -> None:
        if abs(mine - peers) > max(50, 0.001 * peers):
            found.append(f"{what}: {mine:,.1f} us here, {peers:,.1f} us there")

    results = {row["request_id"]: row for row in measured["results"]}
    for row in measured["requests"]:
        number = int(row["requestID"].removeprefix("request_"))
        peer = expected[number]
        compare(f"TTFT of {number}", row["ttft_ms"] * 1e3, peer.ttft_us)
        if not peer.preemptions:
            compare(
                f"scheduling delay of {number}", row["scheduling_delay_ms"] * 1e3, peer.scheduling_delay_us
            )
        if (number in results) != (peer.outcome == "completed"):
            found.append(f"{number} is {peer.outcome} there")
        elif number in results:
            compare(f"E2E of {number}", results[number]["e2e_us"], peer.e2e_us)
            compare(f"ITL of {number}", results[number]["itl_mean_us"], peer.itl_us)
        if row["handled_by"] != f"instance_{peer.instance}":
            found.append(f"{number} went to {row['handled_by']}, there to {peer.instance}")
    for outcome, key in (("unservable", "dropped_unservable"), ("timed_out", "timed_out_requests")):
        count = sum(peer.outcome == outcome for peer in expected.values())
        if measured[key] != count:
            found.append(f"{key}: {measured[key]} here, {count} there")
    if measured["preemption_count"] != sum(peer.preemptions for peer in expected.values()):
        found.append("preemption_count")
    return found
