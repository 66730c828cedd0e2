"""What the `trained` latency model is learned and scored on: step times by GPU, model and TP degree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import vllm_runs
import vllm_steps
from scipy.stats import qmc
from train_fit import Array, SampleGroup

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency import build
from blis_py.latency.kernel_folder import load_kernel_profile
from blis_py.latency.kernel_profile import interpolate
from blis_py.latency.trained import Basis
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import Weights

TABLES = {
    "h100_sxm_vllm_0.24.0": "h100",
    "h200_sxm_vllm_0.24.0": "h200",
    "h200_sxm_sglang_0.5.14": "h200",
}
"""Operator tables -> GPU."""
MODELS = {
    "qwen3-0.6b": (1,),
    "qwen3-1.7b": (1,),
    "llama-2-7b": (4,),
    "qwen3-8b": (1, 2),
    "llama-3.1-8b": (1, 2, 4),
    "mistral-nemo-12b": (1, 2),
    "qwen3-14b": (1, 2),
    "qwen3-32b": (2, 4),
    "codellama-34b": (2, 4),
    "llama-2-70b": (4,),
    "llama-3.1-70b": (4, 8),
    "mixtral-8x7b": (2, 4, 8),
    "qwen3-30b-a3b": (1, 2, 4),
    "llada2.0-mini": (1, 2),
}
"""Composed from operator tables: models they cover (16-bit, head size 128), at usual TP degrees. Llama-2-7B's
heads are in them at TP 4 only; of LLaDA2.0-mini, the layers as an autoregressive model would use them."""
B200 = "b200_sxm_vllm_0.24.0"
FP8_TABLES = {"h100_sxm_vllm_0.24.0": "h100", "h200_sxm_vllm_0.24.0": "h200", B200: "b200"}
FP8_MODELS = {
    "qwen3-8b": (1, 2),
    "llama-3.1-8b": (1, 2, 4),
    "qwen3-14b": (1, 2),
    "qwen3-32b": (1, 2, 4),
    "llama-3.1-70b": (1, 2, 4, 8),
}
"""Composed with FP8 weights and an FP8 KV cache; the LM head stays in 16 bits."""
PROFILES = {"RTX4090": "rtx-4090", "RTXPRO6000": "rtx-pro-6000"}
"""Layer profiles of Llama-3.1-8B -> GPU."""
STEPS_SOURCE = "vLLM 0.15 steps"
SUBSET = (("h100_sxm_vllm_0.24.0", "llama-3.1-8b", 2), ("h100_sxm_vllm_0.24.0", "qwen3-30b-a3b", 1))
"""Small enough for a test: these, the layer profiles, and the real steps."""

Progress = Callable[[str], None]


# --- batches to price --------------------------------------------------------------------------------


def decodes_and_prefills(kv_tokens: int) -> list[StepFeatures]:
    """48 batches: two pure decode batches to one prompt or chunk."""
    points = qmc.Halton(3, scramble=False).random(49)[1:]
    return [
        _prefill(u, kv_tokens, 8192, 16384) if i % 3 == 2 else _decode(u, kv_tokens, 512, 16384)
        for i, u in enumerate(points)
    ]


def small_batches(kv_tokens: int) -> list[StepFeatures]:
    """96 batches within the sizes that the layer profiles measured."""
    points = qmc.Halton(3, scramble=False).random(97)[1:]
    return [
        _prefill(u, kv_tokens, 2048, 8192) if i % 3 == 2 else _decode(u, kv_tokens, 256, 16384)
        for i, u in enumerate(points)
    ]


def mixed_batches(kv_tokens: int) -> list[StepFeatures]:
    """64 of prefill and decode together, within the sizes that were measured together."""
    points = qmc.Halton(5, scramble=False).random(65)[1:]
    steps = []
    for u in points:
        decode = _decode(u[:2], kv_tokens // 2, 128, 16384)
        steps.append(decode + _prefill(u[2:], kv_tokens // 2, 2048 - decode.decode_seqs, 8192))
    return steps


def _decode(u: Array, kv_tokens: int, most_seqs: int, most_context: int) -> StepFeatures:
    seqs = min(_between(u[0], 1, most_seqs), max(kv_tokens // 32, 1))
    context = max(min(_between(u[1], 32, most_context), kv_tokens // seqs), 1)
    return StepFeatures(
        decode_seqs=seqs, decode_kv_tokens=seqs * context, max_context=context, emitted_rows=seqs
    )


def _prefill(u: Array, kv_tokens: int, most_tokens: int, most_past: int) -> StepFeatures:
    tokens = min(_between(u[0], 16, most_tokens), kv_tokens)
    past = _between(2 * u[1], 64, most_past) if u[1] < 0.5 else 0  # half of them on top of cached tokens
    past = past if past + tokens <= kv_tokens else 0
    return StepFeatures(
        prefill_seqs=1,
        prefill_tokens=tokens,
        prefill_pairs=tokens * past + tokens * (tokens + 1) // 2,
        prefill_kv_tokens=past,
        prefill_prompt_pairs=tokens * (past + tokens + tokens / 2),
        max_context=past,
        emitted_rows=1,
    )


def _between(u: float, low: int, high: int) -> int:
    """Evenly spread over the logarithm."""
    return round(low * (high / low) ** u)


# --- groups ------------------------------------------------------------------------------------------


def groups(data: Path, progress: Progress, subset: bool = False) -> list[SampleGroup]:
    """Everything to learn from, or a small part of it."""
    found = []
    for folder, gpu in TABLES.items():
        for model, degrees in MODELS.items():
            for tp in degrees:
                if not subset or (folder, model, tp) in SUBSET:
                    progress(f"{folder} {model} TP{tp}")
                    found += _composed(folder, _tables(data, folder), model, gpu, tp, decodes_and_prefills)
    for folder, gpu in () if subset else FP8_TABLES.items():
        for model, degrees in FP8_MODELS.items():
            for tp in degrees:
                progress(f"{folder} {model} FP8 TP{tp}")
                path = _tables(data, folder)
                found += _composed(f"{folder} FP8", path, model, gpu, tp, decodes_and_prefills, True)
    for name, gpu in PROFILES.items():
        progress(f"{name} {vllm_runs.MODEL}")
        path = _layer_profile(data, name)
        found += _composed(f"{name} layers", path, vllm_runs.MODEL.lower(), gpu, 1, small_batches)
        found.append(_mixed_attention(f"{name} layers", path, vllm_runs.MODEL.lower(), gpu))
    return found + [_measured(data, run) for run in vllm_steps.RUNS]


def _tables(data: Path, folder: str) -> Path:
    """Of a GPU that has both, those in `kernels_more` are what the others lack."""
    first = data / "kernels_h200_h100" / folder
    return first if first.is_dir() else data / "kernels_more" / folder


def fp8(shape: ModelShape) -> ModelShape:
    """The model with FP8 weights but for the LM head, and an FP8 KV cache."""
    return replace(shape, weights=Weights.of(1.0, "fp8"), kv_dtype_bytes=1)


def scored_groups(data: Path) -> list[SampleGroup]:
    """Nothing is learned on these: whole steps of prefill and decode together, and the B200 in 16 bits, on
    which the terms learned on Hopper GPUs show what they are worth on a newer one."""
    mixed = [
        group
        for name, gpu in PROFILES.items()
        for group in _composed(
            f"{name} layers", _layer_profile(data, name), vllm_runs.MODEL.lower(), gpu, 1, mixed_batches
        )
    ]
    newer = [
        group
        for model, degrees in FP8_MODELS.items()
        for tp in degrees
        for group in _composed(B200, _tables(data, B200), model, "b200", tp, decodes_and_prefills)
    ]
    return mixed + newer


def _layer_profile(data: Path, name: str) -> Path:
    return data / "vllm_runs" / "kernel_profiles" / f"{name}__{vllm_runs.MODEL}__tp1"


def _mixed_attention(source: str, path: Path, model: str, gpu: str) -> SampleGroup:
    """What decodes beside a prefill add to the attention kernel; errors count as shares of the step."""
    shape, spec = load_model(model), load_gpu(gpu)
    latency = build("kernel-tables", shape=shape, gpu=spec, kernel_profile=path)
    profile = load_kernel_profile(path, shape, spec, 1)
    steps = mixed_batches(_kv_room(shape, spec, 1))

    def attention_ns(f: StepFeatures, decodes: tuple[float, float]) -> float:
        point = (f.prefill_tokens, f.prefill_kv_tokens, *decodes)
        return interpolate(profile.axes, profile.attention, point)

    added = [
        attention_ns(f, (f.decode_seqs, f.decode_kv_tokens / f.decode_seqs)) - attention_ns(f, (0, 0))
        for f in steps
    ]
    return SampleGroup(
        source,
        model,
        gpu,
        1,
        Basis(shape, spec, 1),
        steps,
        np.array(added),
        part="decode attention",
        relative_to=np.array([latency.step_ns(step) for step in steps], dtype=float),
    )


def _composed(
    source: str,
    path: Path,
    model: str,
    gpu: str,
    tp: int,
    sample: Callable[[int], list[StepFeatures]],
    quantised: bool = False,
) -> Iterator[SampleGroup]:
    """Steps added up from the kernels of one model; none where the model does not fit the GPUs."""
    shape, spec = load_model(model), load_gpu(gpu)
    shape = fp8(shape) if quantised else shape
    room = _kv_room(shape, spec, tp)
    if room < 16_384:
        return
    latency = build("kernel-tables", shape=shape, gpu=spec, tp=tp, kernel_profile=path)
    steps = sample(room)
    ns = np.array([latency.step_ns(step) for step in steps], dtype=float)
    yield SampleGroup(source, model, gpu, tp, Basis(shape, spec, tp), steps, ns, quantised=quantised)


def _kv_room(shape: ModelShape, gpu: GpuSpec, tp: int) -> int:
    """Tokens of KV beside the weights, in 90 % of the memory less 2 GB."""
    free = gpu.memory_bytes * 0.9 - 2e9 - shape.parameters * shape.weights.dense / tp
    return int(free * min(tp, shape.kv_heads) / shape.kv_bytes_per_token)


def _measured(data: Path, run: str) -> SampleGroup:
    """Decode steps of a real run, pauses left out."""
    model, tp = vllm_steps.RUNS[run]
    rows = vllm_steps.decode_steps(data, run)
    rows = rows[rows.us < 3 * rows.us.median()]
    steps = [
        StepFeatures(decode_seqs=int(n), decode_kv_tokens=int(kv), emitted_rows=int(n))
        for n, kv in zip(rows.seqs, rows.kv_tokens, strict=True)
    ]
    basis = Basis(load_model(model), load_gpu("h100"), tp)
    return SampleGroup(
        STEPS_SOURCE, model, "h100", tp, basis, steps, rows.us.to_numpy() * 1e3, with_host=True
    )
