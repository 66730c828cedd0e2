"""`blis replay` beside an independent model of the peer, request by request, corner by corner."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from peer_model import BLIS, Config, Outcome, Quirks, Row, TrainedPhysics
from peer_model import replay as peer_replay

from blis_py.cli import main

MODELS = Path(__file__).resolve().parents[2] / "profiles" / "models"
HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
COLUMNS = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,streaming,"
    "input_tokens,output_tokens,text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,model,"
    "deadline_us,server_input_tokens,arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,"
    "num_chunks,status,error_message,finish_reason"
)
ENDLESS = 2**63 - 1


def write_trace(folder: Path, rows: Sequence[Row]) -> Path:
    lines = [COLUMNS]
    for r in rows:
        lines.append(
            f"{r.id},c,t,{r.slo_class},,0,{r.group},{r.prefix},true,{r.input},{r.output},{r.input},0,0,0,0,,"
            f"{r.deadline_us},0,{r.arrival_us},0,0,0,0,ok,,"
        )
    (folder / "trace.yaml").write_text(HEADER)
    (folder / "trace.csv").write_text("\n".join(lines) + "\n")
    return folder / "trace.csv"


def ours(folder: Path, rows: Sequence[Row], config: Config, flags: Mapping[str, object]) -> dict[str, dict]:
    """What `blis replay` reports, with the peer's spelling of every flag."""
    metrics, results = folder / "metrics.json", folder / "results.json"
    everything = {
        "--trace-data": write_trace(folder, rows),
        "--trace-header": folder / "trace.yaml",
        "--scheduler": config.scheduler,
        "--preemption-policy": config.preemption,
        "--max-num-scheduled-tokens": config.budget,
        "--max-num-running-reqs": config.max_num_seqs,
        "--long-prefill-token-threshold": config.threshold,
        "--block-size-in-tokens": config.block,
        "--total-kv-blocks": config.total_blocks,
        "--max-model-len": config.max_model_len,
        "--num-instances": config.instances,
        "--admission-latency": config.admission_us,
        "--routing-latency": config.routing_us,
        "--horizon": ENDLESS,
        "--hardware": "H100",
        "--metrics-path": metrics,
        "--results-path": results,
    } | dict(flags)
    arguments = [str(word) for pair in everything.items() for word in pair]
    assert main(["replay", *arguments]) == 0
    return {"metrics": json.loads(metrics.read_text()), "results": json.loads(results.read_text())}
