"""Recorded runs of BLIS, from the figures in `peer/`, and the same requests through our own command line."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from blis_py.cli import main

PEER = Path(__file__).with_name("peer")
COLUMNS = """
    request_id client_id tenant_id slo_class session_id round_index prefix_group prefix_length streaming
    input_tokens output_tokens text_tokens image_tokens audio_tokens video_tokens reason_ratio model
    deadline_us server_input_tokens arrival_time_us send_time_us first_chunk_time_us last_chunk_time_us
    num_chunks status error_message finish_reason x_request_id adapter think_time_us
"""
TRACE = COLUMNS.split()
TEXT = {"client_id", "tenant_id", "slo_class", "session_id", "prefix_group", "model", "error_message"}
TEXT |= {"finish_reason", "x_request_id", "adapter"}
UNSAID = dict.fromkeys(TRACE, "0") | dict.fromkeys(TEXT, "") | {"streaming": "false", "status": "ok"}
Row = dict[str, Any]


class Served(NamedTuple):
    """What came of a request."""

    request: str
    instance: int
    round: int
    prompt: int
    output: int
    arrival_us: int
    ttft_us: int
    e2e_us: int
    scheduling_delay_us: int
    gateway_queue_delay_us: int


class Candidate(NamedTuple):
    """An instance as the router knew it."""

    queue: int
    batch: int
    kv: float
    in_flight: int
    cached: int
    score: float


class Decision(NamedTuple):
    request: str
    target: int
    candidates: list[Candidate]
    saturation: float
    """At the dispatch from the gateway."""


class PeerRun:
    """One recorded run."""

    def __init__(self, name: str) -> None:
        found = json.loads((PEER / f"{name}.json").read_text())
        self.command: list[str] = found["command"]
        self.bundle: str = found["bundle"]
        self.spec: str = found.get("spec", "")
        self.context_grows: bool = found.get("context_grows", False)
        self.sent: list[Row] = [
            dict(zip(found.get("columns", ()), row, strict=True)) for row in found.get("sent", ())
        ]
        self.served = [Served(*row) for row in found["served"]]
        self.refused: dict[str, list[str]] = found["refused"]
        self.detectors: dict[str, Any] = found.get("detectors", {})
        self.goodput: dict[str, Any] = found.get("goodput", {})
        self.evicted: dict[str, int] = {request: time_us for request, _, time_us in found.get("evicted", ())}
        """Victims and their times in us."""
        self.decisions = [
            Decision(request, target, [Candidate(*one) for one in candidates], saturation)
            for request, target, candidates, saturation in found["decisions"]
        ]

    def flag(self, name: str, default: str = "") -> str:
        return self.command[self.command.index(name) + 1] if name in self.command else default

    def without(self, *flags: str) -> list[str]:
        """The command without these flags and their values."""
        words, kept = iter(self.command), list[str]()
        for word in words:
            if word in flags:
                next(words)
            else:
                kept.append(word)
        return kept

    def again(
        self,
        folder: Path,
        *more: str,
        command: list[str] | None = None,
        keep: Callable[[Row], bool] = lambda row: True,
        bundle: bool = True,
    ) -> list[Served]:
        """What our simulator makes of the same requests, or of those to keep; its metrics are in `folder`."""
        metrics = folder / "metrics.json"
        words = [*(command or self.command), *self._files(folder, keep, bundle), *more]
        code = main([*words, "--engine", "blis", "--format", "json", "--metrics-path", str(metrics)])
        assert code == 0
        return [_served(one) for one in json.loads(metrics.read_text()).get("requests", [])]

    def _files(self, folder: Path, keep: Callable[[Row], bool], bundle: bool) -> list[str]:
        words = []
        if self.bundle and bundle:
            (folder / "bundle.yaml").write_text(self.bundle)
            words += ["--policy-config", str(folder / "bundle.yaml")]
        if self.spec:
            (folder / "spec.yaml").write_text(self.spec)
            return [*words, "--workload-spec", str(folder / "spec.yaml")]
        header = {"trace_version": 3, "time_unit": "microseconds", "mode": "generated", "warm_up_requests": 0}
        growth = {"session_context_growth": "accumulate"} if self.context_grows else {}
        targets = yaml.safe_load(self.goodput["targets"]) if self.goodput else {}
        (folder / "trace.yaml").write_text(json.dumps(header | growth | targets))
        with (folder / "trace.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, TRACE)
            writer.writeheader()
            for row in filter(keep, self.sent):
                writer.writerow(UNSAID | row | {"send_time_us": row["arrival_time_us"]})
        return [
            *words, "--trace-header", str(folder / "trace.yaml"), "--trace-data", str(folder / "trace.csv"),
        ]  # fmt: skip


@cache
def peer_run(name: str) -> PeerRun:
    return PeerRun(name)


def _served(one: Row) -> Served:
    def us(name: str) -> int:
        return round(one.get(name, 0.0) * 1e3)

    return Served(
        one["requestID"].removeprefix("request_"),
        int(one["handled_by"].removeprefix("instance_")),
        one.get("round_index", 0),
        one["num_prefill_tokens"],
        one["num_decode_tokens"],
        round(one["arrived_at"] * 1e6),
        *(us(f"{name}_ms") for name in ("ttft", "e2e", "scheduling_delay", "gateway_queue_delay")),
    )


def apart(ours: list[Served], theirs: list[Served]) -> list[tuple[Served, Served]]:
    """Pairs of which a time differs by more than the rounding, or anything else at all."""
    return [
        (mine, peers)
        for mine, peers in zip(ours, theirs, strict=True)
        if mine[1:5] != peers[1:5]
        or any(abs(a - b) > 1 and b > 0 for a, b in zip(mine[5:], peers[5:], strict=True))
    ]
