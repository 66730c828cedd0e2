"""Measured steps made up from prices that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blis_py.traces.samples import StepSamples, samples_from

META = {"device": "cpu", "device_kind": "cpu", "clock": "cpu", "model": "made-up", "dtype": "float32"}
STEP, TOKEN, KV, PAIR, PROMPT, HOST, HOST_SEQ = 5e6, 4e4, 900.0, 60.0, 3e5, 2e5, 6000.0

Columns = dict[str, Any]
Price = Callable[[Columns], Any]


def gpu_price(c: Columns) -> Any:
    """STEP + TOKEN * tokens + KV * decode KV + PAIR * pairs + PROMPT * prompts."""
    tokens = c["prefill_tokens"] + c["decode_seqs"]
    return (
        STEP
        + TOKEN * tokens
        + KV * c["decode_kv_tokens"]
        + PAIR * c["prefill_pairs"]
        + PROMPT * c["prefill_seqs"]
    )


def compositions(count: int, rng: np.random.Generator) -> Columns:
    """Decode, prefill and mixed steps."""
    kind = rng.integers(0, 3, count)
    seqs = np.where(kind == 1, 0, np.exp(rng.uniform(0, np.log(64), count)).astype(int))
    context = rng.integers(1, 128, count)
    longest = np.where(seqs > 1, context * rng.uniform(1, 3, count), context * (seqs > 0))
    chunk = np.where(kind == 0, 0, np.exp(rng.uniform(0, np.log(400), count)).astype(int))
    return {
        "prefill_seqs": (chunk > 0) * 1,
        "prefill_tokens": chunk,
        "prefill_pairs": chunk * (chunk + 1) // 2,
        "prefill_prompt_pairs": 1.5 * chunk * chunk,
        "decode_seqs": seqs,
        "decode_kv_tokens": seqs * context,
        "max_context": longest.astype(int),
        "emitted_rows": seqs + (chunk > 0),
    }


def made_up(
    count: int = 300,
    *,
    price: Price = gpu_price,
    noise: float = 0.0,
    repetitions: int = 1,
    source: str = "grid",
    regime: str = "eager",
    seed: int = 0,
    **meta: Any,
) -> StepSamples:
    """Steps that take what `price` says, times noise of this relative standard deviation."""
    rng = np.random.default_rng(seed)
    columns = {name: np.repeat(value, repetitions) for name, value in compositions(count, rng).items()}
    rows = count * repetitions
    host = HOST + HOST_SEQ * (columns["prefill_seqs"] + columns["decode_seqs"])
    gpu, host = (
        np.rint(part * np.exp(noise * rng.standard_normal(rows) - noise**2 / 2))
        for part in (price(columns), host)
    )
    columns |= {
        "source": [source] * rows,
        "shape": np.repeat(np.arange(count), repetitions),
        "repetition": np.tile(np.arange(repetitions), count),
        "regime": [regime] * rows,
        "gpu_ns": gpu,
        "total_ns": gpu + host,
    }
    return samples_from({**META, **meta}, columns, rows)
