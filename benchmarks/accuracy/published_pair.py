"""Two published servers with A10, prefill and decode apart and together: predicted beside what was measured.

    python benchmarks/accuracy/published_pair.py

Measured: Mooncake's documentation (Qwen2.5-7B-Instruct in 4 bits, SGLang). The link is not published, nor
how lengths were drawn up to those named; assumed: 25 GbE for each GPU, and uniformly from half of them on.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import blis_py as blis

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "quantization_config": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": True,
    },
}
"""Of the model, as its publisher has it."""
FIGURES = ("e2e_ms.mean", "ttft_ms.mean", "ttft_ms.p99", "itl_ms.mean", "itl_ms.p99")
APART = {"prefill_instances": 1, "decode_instances": 1, "handoff": "sglang", "pd_link": "eth25"}
LAYOUTS: dict[str, dict[str, Any]] = {"together": {"num_instances": 2}, "apart": APART}
MEASURED_MS = {
    (8192, "together"): (4587, 767, 1265, 10.3, 12.7),
    (8192, "apart"): (3414, 733, 2953, 7.2, 10.8),
    (2048, "together"): (11683, 310, 721, 25.7, 294.9),
    (2048, "apart"): (11519, 1112, 2726, 17.1, 19.7),
}
"""By the longest prompt and the layout: E2E, TTFT, its p99, ITL, its p99."""
CASES = ((4, 8192, 50, 1.0), (2, 2048, 200, 4.0))
"""TP, longest prompt, requests, requests/s."""


def served(
    folder: Path, tp: int, prompt: int, requests: int, rate: float, layout: dict[str, Any]
) -> list[float]:
    """Predicted figures in ms."""
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    lengths = [rng.integers(most // 2, most, requests, endpoint=True) for most in (prompt, 512)]
    rows = (f"{a:.6f},{i},{o}\n" for a, i, o in zip(arrivals, *lengths, strict=True))
    (folder / "drawn.csv").write_text("arrival_s,input_tokens,output_tokens\n" + "".join(rows))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    run = blis.run(
        model_config=str(folder / "config.json"),
        gpu="a10",
        tp=tp,
        latency_model="trained",
        prefix_cache="radix",
        max_num_batched_tokens=8192,
        trace=str(folder / "drawn.csv"),
        **layout,
    )
    of: dict[str, Any] = run.summary["cluster"]
    return [of[name][statistic] for name, statistic in (each.split(".") for each in FIGURES)]


def table() -> str:
    """A line for each case and layout: predicted (measured)."""
    lines = ["predicted (measured), ms    E2E           TTFT          p99           ITL           p99"]
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            for name, layout in LAYOUTS.items():
                pairs = zip(served(Path(folder), *case, layout), MEASURED_MS[case[1], name], strict=True)
                figures = " ".join(f"{ours:6.0f} ({real:5.0f})" for ours, real in pairs)
                lines.append(f"{case[1]:5} {name:9} {figures}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
