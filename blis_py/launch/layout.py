"""Division of model and requests among the GPUs of a server, as each engine's flags say it."""

from __future__ import annotations

from typing import NamedTuple

from blis_py.launch.findings import LaunchFindings
from blis_py.models.model_shape import ModelShape


class GpuDivision(NamedTuple):
    """GPUs of an instance, replicas of attention and groups of experts among them, and whole instances."""

    gpus: int = 1
    attention_dp: int = 1
    ep: int = 1
    instances: int = 1

    def __str__(self) -> str:
        parts = [
            f"TP{self.gpus}"
            if self.attention_dp == 1
            else f"{self.gpus} GPUs, attention DP{self.attention_dp}"
        ]
        return ", ".join([*parts, f"EP{self.ep}"] if self.ep > 1 else parts)


def _number(findings: LaunchFindings, part: str) -> int:
    return max(int(findings.parts.get(part, "1")), 1)


def _is_on(findings: LaunchFindings, part: str) -> bool:
    return findings.parts.get(part) == "True"


def vllm_division(findings: LaunchFindings, shape: ModelShape | None) -> GpuDivision:
    """The layers of experts are divided among the GPUs of all data-parallel ranks, with or without expert
    parallelism (`vllm/model_executor/layers/fused_moe/config.py`, FusedMoEParallelConfig.make)."""
    width, ranks = _number(findings, "tensor"), _number(findings, "data")
    spread = findings.parts.get("experts", "false").lower() == "true"
    experts = spread if shape is None else shape.moe_layers > 0
    if not experts:
        return GpuDivision(width, instances=ranks)
    gpus = width * ranks
    return GpuDivision(gpus, ranks, gpus if spread else 1)


def sglang_division(findings: LaunchFindings, shape: ModelShape | None) -> GpuDivision:
    """`--tp` counts all GPUs; `--attn-dp-size` replicas of attention among them, as `--dp` does with
    `--enable-dp-attention`, and else whole servers (`sglang/srt/server_args.py`)."""
    width, ranks = _number(findings, "tensor"), _number(findings, "data")
    replicas = _number(findings, "replicas")
    spread = _is_on(findings, "all_experts") or findings.parts.get("a2a", "none") not in ("none", "None")
    ep = width if spread else _number(findings, "experts")
    if _is_on(findings, "attention_dp"):
        return GpuDivision(width, ranks if replicas == 1 else replicas, ep)
    return GpuDivision(width, replicas, ep, ranks)


def trtllm_division(findings: LaunchFindings, shape: ModelShape | None) -> GpuDivision:
    """Attention DP has as many replicas as there are GPUs (`tensorrt_llm/mapping.py`)."""
    width = _number(findings, "tensor")
    return GpuDivision(width, width if _is_on(findings, "attention_dp") else 1, _number(findings, "experts"))


DIVISIONS = {"vllm": vllm_division, "sglang": sglang_division, "trtllm": trtllm_division}
