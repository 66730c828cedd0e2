"""Measured operating points of public benchmarks, read from two folders of `../shared/data`: `silicon` (means
of TTFT and TPOT) and `inferencemax` (with medians and p99), each with rows, groups and launch flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from points import Point, Row, _flags, _float, _latencies_ms, _rows

AMD = "AMD GPUs: on a table of their own"
AMD_ENGINE = "AMD's own engine, which is not simulated"


def points_of(data: Path) -> list[Point]:
    """Points of both sets. Those that another run contradicts are marked, without any prediction."""
    found = [*silicon(data), *inferencemax(data)]
    wrong = set(contradicted([point for point in found if not point.refused]))
    return [replace(point, contradicted=True) if point.id in wrong else point for point in found]


def contradicted(points: Sequence[Point]) -> Iterator[str]:
    """Points of which another run of the same engine, model, format and division says otherwise: its first
    tokens took less than half the time at the same load (most of the others began with one test request, so
    that the first wave of requests waited for kernels to be compiled), or its answers took more than twice as
    long a token with fewer requests in flight."""
    least: dict[tuple[object, ...], float] = {}
    for point in points:
        least[point.alike] = min(point.measured["ttft.mean"], least.get(point.alike, np.inf))
    sound = [p for p in points if p.measured["ttft.mean"] <= 2 * least[p.alike]]
    yield from {p.id for p in points} - {p.id for p in sound}
    slowest: dict[tuple[object, ...], float] = {}
    for point in sorted(sound, key=lambda p: p.concurrency):
        *same, _ = point.alike
        tpot_ms = point.measured["tpot.mean"]
        if slowest.get(tuple(same), 0.0) > 2 * tpot_ms:
            yield point.id
        slowest[tuple(same)] = max(tpot_ms, slowest.get(tuple(same), 0.0))


_SLURM_FROM = "2025-12-31"
"""Day from which SGLang's servers on B200 ran on Slurm nodes, too."""
_LAUNCH = ("hw", "framework", "image", "model", "precision", "spec_decoding", "isl", "osl", "tp", "ep")
_LAUNCH += ("dp_attention", "disagg")
"""What two launches of InferenceMAX have in common that have the same flags."""


def silicon(data: Path) -> Iterator[Point]:
    """Points of `silicon`; those with prefill and decode apart are refused here."""
    folder = data / "silicon"
    flags, groups = _flags(folder), {}
    if (folder / "row_groups.csv.gz").exists():
        groups = {row["row"]: row for row in _rows(folder / "row_groups.csv.gz")}
    rows = _rows(folder / "rows.csv.gz")
    groups_of = [groups.get(str(number), {}) for number in range(len(rows))]
    candidates = [flags.get(group.get("group", ""), [{}])[0] for group in groups_of]
    published = {_figures(row): read for row, read in zip(rows, candidates, strict=True) if read.get("gpus")}
    for row, group, own in zip(rows, groups_of, candidates, strict=True):
        read = own if own.get("gpus") else published.get(_figures(row), own)
        batch, labelled = _number_of(row, "batch_size"), int(_float(group.get("concurrency", "")) or 0)
        gpus, dp, ep = _width(row, read, labelled // batch if row["mode"] == "agg" else 1)
        report = labelled > batch or read.get("gpus") or row["mode"] != "agg"
        yield Point(
            id=row["id"],
            source="silicon",
            engine=row["backend"],
            version=row["backend_version"] or _version_of(read.get("image", "")),
            model=row["model_path"],
            precision=row["precision"],
            gpu=row["system"].partition("_")[0],
            gpus=gpus,
            attention_dp=dp,
            ep=ep,
            prompt_tokens=int(row["isl"]),
            output_tokens=int(row["osl"]),
            concurrency=labelled if report and labelled else batch * dp,
            measured={
                "ttft.mean": float(row["silicon_ttft_ms"]),
                "tpot.mean": float(row["silicon_tpot_ms"]),
            },
            gemm_form=row["gemm_quant_mode"],
            flags=read,
            **_of_client(read, row["system"], row["backend"], int(row["osl"])),
            refused=_refused(row["mode"] != "agg", read.get("mtp", ""), row["system"], gpus)
            or _mislabelled(read),
        )


def inferencemax(data: Path) -> Iterator[Point]:
    """Points of `inferencemax`."""
    folder = data / "inferencemax"
    flags = _as_configured(_flags(folder))
    groups = {row["row"]: row for row in _rows(folder / "row_groups.csv.gz")}
    engines = {"trt": "trtllm"}
    for number, row in enumerate(_rows(folder / "rows.csv.gz")):
        read = flags.get(groups[str(number)]["group"], {})
        gpu, framework = row["hw"].partition("-")[0], row["framework"]
        amd = gpu.startswith("mi")
        gpus = int(_float(row["tp"]) or 1)
        shared = "attention-dp" in read.get("data_parallel", "") or row["dp_attention"] == "true"
        yield Point(
            id=f"{row['run']}-{number}",
            source="inferencemax",
            engine=engines.get(framework, framework),
            version=_version_of(row["image"]),
            model=row["model"],
            precision=row["precision"],
            gpu=gpu,
            gpus=gpus,
            attention_dp=gpus if shared else 1,
            ep=_expert_groups(read, gpus, _float(row["ep"]) or 1),
            prompt_tokens=int(row["isl"]),
            output_tokens=int(row["osl"]),
            concurrency=int(row["conc"]),
            measured=_latencies_ms(row),
            flags=read,
            **_of_client(read, gpu, framework, int(row["osl"])),
            refused=_refused(row["disagg"] == "True", row["spec_decoding"].replace("none", "no"), gpu, gpus)
            or ("" if not amd else AMD_ENGINE if framework == "atom" else AMD),
        )


def _as_configured(flags: dict[str, list[Row]]) -> dict[str, Row]:
    """Flags by group. Where the script that was read lacks the width, its flags are those of another one; the
    same launch as it was configured has its own, if it is there (DeepSeek at TP4 came with 0.95 of the
    memory, and does not fit into the 0.82 of TP8)."""
    of_launch = {_launch(rows[0]): rows[0] for rows in flags.values() if rows[0].get("match") == "full"}
    found = {group: rows[0] for group, rows in flags.items()}
    lacking = [group for group, row in found.items() if row.get("match") == "search space differs"]
    return found | {group: of_launch.get(_launch(found[group]), found[group]) for group in lacking}


def _launch(row: Row) -> tuple[str, ...]:
    return tuple(row[key] for key in _LAUNCH)


def _figures(row: Row) -> tuple[str, ...]:
    """What two rows have in common that are one measurement, under two names and rounded twice."""
    same = [row[key] for key in ("backend", "model_path", "isl", "osl")]
    return *same, *(f"{float(row[key]):.3g}" for key in ("silicon_ttft_ms", "silicon_tpot_ms"))


def _refused(apart: bool, mtp: str, gpu: str, gpus: int) -> str:
    """Reasons that hold for whole classes of points."""
    if apart:
        return "prefill and decode on GPUs of their own"
    if mtp.startswith(("yes", "mtp", "either")):
        return "multi-token prediction ran, or may have"
    if gpu.startswith("gb200") and gpus > 4:
        return "a disaggregated deployment under the label of one engine"
    return ""


def _of_client(read: Row, gpu: str, engine: str, output_tokens: int) -> dict[str, Any]:
    """Whether a server was cold, and the requests of its run.

    On B200, InferenceX ran SGLang and vLLM on Docker nodes alone until its pull request 379. Their containers
    were removed behind each server, no kernels were kept outside them since its pull request 89, and the
    client sent one request ahead until its pull request 480. As some kernels are compiled at their first use,
    the launch script of these nodes had more requests for DeepSeek-R1-0528 (`runners/launch_b200-nvd.sh`).
    From then on a server could be on a Slurm node, too, whose containers were kept by their name
    (`runners/launch_b200-nb.sh`); which node it was is not published.
    """
    measured = read.get("measured") or read.get("run_dates", "")
    first_only = read.get("bench_warmup", "").startswith("1 test request")
    on_docker = gpu.startswith("b200") and engine in ("sglang", "vllm") and measured < _SLURM_FROM
    if not (first_only and on_docker):
        return {}
    longer = (read.get("model_served") or read["model"]) == "deepseek-ai/DeepSeek-R1-0528"
    return {"cold": True, "requests_each": 10 if not longer else 20 if output_tokens == 8192 else 50}


def _mislabelled(read: Row) -> str:
    """Runs of which the results do not say what was configured: InferenceX's script for gpt-oss on H100 had
    512 requests in flight at every configured concurrency until its pull request 310, while sequences of the
    server and requests in all followed the configuration. The label is what the client had."""
    unlisted = read.get("match") == "label conc not listed"
    if unlisted and "gptoss_fp4_h100" in read.get("script", ""):
        return "the client's script ignored the configured concurrency, which is not recorded"
    return ""


def _version_of(image: str) -> str:
    """Of the engine, by the tag of its image; may be empty."""
    found = re.search(r"v?(\d+\.\d+\.\d+[\w.]*)", image.rpartition(":")[2])
    return found[1] if found else ""


def _width(row: Row, read: Row, batches: int) -> tuple[int, int, int]:
    """GPUs, replicas of attention, groups of experts: as launched, or else as labelled. Where the label lacks
    attention DP it follows from the batch, which is of one replica (the requests in flight are so many
    `batches`), or from AIConfigurator's rule tp × attention DP = expert TP × EP."""
    gpus = _float(read.get("gpus", ""))
    if gpus:
        shared = "attention-dp" in read.get("data_parallel", "")
        return int(gpus), int(gpus) if shared else 1, _expert_groups(read, int(gpus), 1)
    tp, dp = _number_of(row, "tp_size"), _number_of(row, "attention_dp_size")
    moe_tp, moe_ep = _number_of(row, "moe_tp_size"), _number_of(row, "moe_ep_size")
    if not _float(row["attention_dp_size"]):
        dp = max(batches, moe_tp * moe_ep // tp, 1)
    if moe_tp * moe_ep == tp and dp > 1:  # a width that counts its replicas twice
        return tp, dp, moe_ep
    return max(tp * dp, moe_tp * moe_ep), dp, moe_ep


def _expert_groups(read: Row, gpus: int, labelled: float) -> int:
    said = read.get("expert_parallel", "")
    if found := re.fullmatch(r"ep (\d+)", said):
        return int(found[1])
    return gpus if said == "on" else 1 if said == "off" else int(labelled)


def _number_of(row: Row, key: str) -> int:
    return max(int(_float(row[key]) or 1), 1)
