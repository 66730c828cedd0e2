"""Runs of the engine that the simulator has to predict: models, policies, loads, sharing, scarce memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Flags = dict[str, str]


@dataclass(frozen=True)
class Model:
    """What is served, and the limits that its profile and all of its runs share."""

    path: str
    load_format: str
    limits: Flags
    diffusion: bool = False
    """Answers come in blocks, by denoising."""

    @property
    def flags(self) -> list[str]:
        """For `blis engine profile` and `blis engine run`."""
        load = {"--model": self.path, "--load-format": self.load_format, "--device": "cpu"}
        return spelled({**load, "--clock": "steady", **self.limits})


def spelled(flags: Flags) -> list[str]:
    """A command line; a flag with an empty value stands alone."""
    return [word for name, value in flags.items() for word in (name, value) if word]


MODELS = {
    "tiny": Model(
        "engine/tiny/checkpoints/ar",
        "safetensors",
        {
            "--max-num-seqs": "16",
            "--max-num-batched-tokens": "512",
            "--max-model-len": "512",
            "--num-kv-blocks": "600",
        },
    ),
    "small": Model(
        "benchmarks/accuracy/small",
        "dummy",
        {
            "--max-num-seqs": "16",
            "--max-num-batched-tokens": "512",
            "--max-model-len": "1024",
            "--num-kv-blocks": "1200",
        },
    ),
    "tiny-diffusion": Model(
        "engine/tiny/checkpoints/diffusion",
        "safetensors",
        {
            "--max-num-seqs": "8",
            "--max-num-batched-tokens": "512",
            "--max-model-len": "512",
            "--num-kv-blocks": "200",
        },
        diffusion=True,
    ),
}
"""The trained tiny models, and one of a few times their cost with random weights."""


@dataclass(frozen=True)
class Case:
    """One run of the engine.

    load: arrival rate as a share of what the profile says the engine can do on this workload.
    lengths: mean, deviation, least and most of prompts and of outputs.
    scheduling: flags of engine and simulator alike.
    clients: what each client adds to the spec; shares of the rate are `rate_fraction`.
    """

    name: str
    model: str
    load: float
    requests: int = 160
    prompt: tuple[int, int, int, int] = (120, 60, 8, 320)
    output: tuple[int, int, int, int] = (40, 20, 2, 120)
    scheduling: Flags = field(default_factory=dict)
    clients: tuple[dict[str, Any], ...] = ({},)

    def spec(self, rate: float) -> dict[str, Any]:
        """The workload spec."""
        shared = {
            "arrival": {"process": "poisson"},
            "input_distribution": gaussian(*self.prompt),
            "output_distribution": gaussian(*self.output),
        }
        clients = [
            {"id": f"client-{i}", "rate_fraction": 1 / len(self.clients), **shared, **own}
            for i, own in enumerate(self.clients)
        ]
        return {
            "version": "2",
            "seed": 11,
            "num_requests": self.requests,
            "aggregate_rate": rate,
            "clients": clients,
        }


def gaussian(mean: int, deviation: int, least: int, most: int) -> dict[str, Any]:
    params = {"mean": mean, "std_dev": deviation, "min": least, "max": most}
    return {"type": "gaussian", "params": params}


SHORT: dict[str, Any] = {"prompt": (60, 30, 4, 160), "output": (30, 15, 2, 80), "requests": 240}
BLOCKS: dict[str, Any] = {"prompt": (60, 30, 4, 160), "output": (80, 30, 8, 160), "requests": 120}
LONG: dict[str, Any] = {"prompt": (60, 30, 8, 160), "output": (120, 60, 8, 300), "requests": 300}
CLASSES = tuple({"slo_class": name} for name in ("critical", "standard", "batch"))
DOCUMENTS = tuple({"prefix_group": f"document-{i}", "prefix_length": 240} for i in range(4))

CASES = (
    Case("fcfs 30 %", "small", 0.3),
    Case("fcfs 60 %", "small", 0.6),
    Case("fcfs 80 %", "small", 0.8),
    Case("fcfs 95 %", "small", 0.95),
    Case("fcfs 110 %", "small", 1.1),
    Case(
        "priority-fcfs 90 %, classes, chunks",
        "small",
        0.9,
        scheduling={"--scheduler": "priority-fcfs", "--long-prefill-token-threshold": "96"},
        clients=CLASSES,
    ),
    Case("sjf 90 %", "small", 0.9, scheduling={"--scheduler": "sjf"}),
    Case("shared prefixes, hash, 70 %", "small", 0.7, clients=DOCUMENTS),
    Case(
        "one long system prompt, hash, 90 %",
        "small",
        0.9,
        prompt=(60, 30, 8, 160),
        output=(100, 40, 8, 160),
        clients=({"prefix_group": "system", "prefix_length": 640},),
    ),
    Case(
        "shared prefixes, lpm over radix, 80 %",
        "small",
        0.8,
        scheduling={"--scheduler": "lpm", "--prefix-cache": "radix"},
        clients=DOCUMENTS,
    ),
    Case("preemption, 85 %", "small", 0.85, scheduling={"--num-kv-blocks": "90"}),
    Case("fcfs 60 %", "tiny", 0.6, **SHORT),
    Case(
        "priority-fcfs 95 %, preemption by priority",
        "tiny",
        0.95,
        **SHORT,
        scheduling={
            "--scheduler": "priority-fcfs",
            "--preemption-policy": "priority",
            "--num-kv-blocks": "60",
        },
        clients=CLASSES,
    ),
    Case(
        "lpm over radix 90 %, shared prefixes, scarce memory",
        "tiny",
        0.9,
        **SHORT,
        scheduling={"--scheduler": "lpm", "--prefix-cache": "radix", "--num-kv-blocks": "110"},
        clients=tuple({"prefix_group": f"prompt-{i}", "prefix_length": 128} for i in range(6)),
    ),
    Case(
        "fcfs 110 %, long answers, scarce memory", "tiny", 1.1, **LONG, scheduling={"--num-kv-blocks": "60"}
    ),
    Case(
        "priority-fcfs 110 %, long answers, preemption by priority",
        "tiny",
        1.1,
        **LONG,
        scheduling={
            "--scheduler": "priority-fcfs",
            "--preemption-policy": "priority",
            "--num-kv-blocks": "60",
        },
        clients=CLASSES,
    ),
    Case("synchronous 70 %", "tiny-diffusion", 0.7, **BLOCKS, scheduling={"--no-dllm-fdfo": ""}),
    Case("first done first out 70 %", "tiny-diffusion", 0.7, **BLOCKS),
)
