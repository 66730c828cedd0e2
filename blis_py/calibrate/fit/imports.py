"""Foreign measurements as samples: steps logged by vLLM, and steps composed of measured kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.core.bounds import MAX_TOKENS, check_count, clock_ns
from blis_py.core.features import FEATURE_NAMES, StepFeatures
from blis_py.errors import InputError
from blis_py.files.cells import meant
from blis_py.files.csv_files import table_rows
from blis_py.files.paths import is_folder
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency.fitted_shape import facts_of
from blis_py.latency.kernel_tables import KernelTables
from blis_py.models.model_shape import ModelShape, config_name, load_model
from blis_py.traces.samples import SCHEMA, Column, StepSamples, samples_from

_VLLM_COLUMNS = (
    "experiment",
    "prefill_reqs",
    "decode_reqs",
    "prefill_tokens",
    "kv_used_blocks",
    "next_sampled_gap_steps",
    "cycle_us_mean",
)
_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_CONTEXTS = (64, 256, 512, 1024, 2048, 4096, 8192)
_CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_PASTS = (0, 512, 2048, 8192)
_MIXED = 200
_KV_TOKENS = 500_000
"""Limit on the total context of a composed batch of decodes."""


def import_steps(
    source: str | Path,
    *,
    model: str | None,
    model_config: str | Path | None = None,
    gpu: str = "h100",
    tp: int = 1,
    run: str | None = None,
    host_step_us: float | None = None,
    host_seq_us: float | None = None,
    block_size: int = 16,
) -> StepSamples:
    """Samples from a CSV of vLLM's steps, or from a folder of kernel times.

    Args:
        model, model_config, gpu, tp: what was measured, or for kernels, what is composed of them.
        run: part of the name of the one run to take from a CSV that has several.
        host_step_us, host_seq_us: host time that kernels do not contain; None = the GPU profile's.
        block_size: tokens of a KV block in a CSV.

    Raises:
        InputError: the source is neither, or lacks necessary information.
    """
    if model is None and model_config is None:
        raise InputError("no model given", key="--model", fix="name the model these times belong to")
    check_count(block_size, least=1, most=MAX_TOKENS, key="--block-size")
    shape = load_model(model or config_name(str(model_config)), model_config)
    spec = load_gpu(gpu)
    path = Path(source)
    if is_folder(path):
        return _kernel_steps(path, shape, spec, tp, host_step_us, host_seq_us)
    if host_step_us is not None or host_seq_us is not None:
        problem = "measured steps contain the host's time already"
        raise InputError(problem, key="--host-step-us", fix="drop it")
    return _vllm_steps(path, shape, spec, tp, run, block_size)


def _meta(shape: ModelShape, gpu: GpuSpec, tp: int, **more: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "device": gpu.name,
        "device_kind": "cuda",
        "model": shape.name,
        "model_config": facts_of(shape),
        "tp": tp,
        **more,
    }


# -- vLLM ----------------------------------------------------------------------------------------------


def _vllm_steps(
    path: Path, shape: ModelShape, gpu: GpuSpec, tp: int, run: str | None, block_size: int
) -> StepSamples:
    """Steps with an exactly known cadence: those followed by a sampled step.

    The log contains neither the cached length of prompts, nor the distribution of the KV blocks in use.
    Prompts are taken as new and of equal length; the remaining blocks, half a block per sequence less, are
    attributed to the decodes.
    """
    chosen, column = _steps_of_run(path, run)
    prompts, new, decodes = column["prefill_reqs"], column["prefill_tokens"], column["decode_reqs"]
    cached = column["kv_used_blocks"] * block_size - (prompts + decodes) * (block_size // 2) - new
    each = new / np.maximum(prompts, 1)
    cycle_ns = np.rint(column["cycle_us_mean"] * 1e3)
    columns: dict[str, Any] = {
        "source": [chosen] * len(prompts),
        "shape": np.arange(len(prompts)),
        "regime": ["eager"] * len(prompts),
        "prefill_seqs": prompts,
        "prefill_tokens": new,
        "prefill_pairs": np.rint(new * (each + 1) / 2),
        "decode_seqs": decodes,
        "decode_kv_tokens": np.where(decodes > 0, np.maximum(cached, 0), 0),
        "emitted_rows": prompts + decodes,
        "gpu_ns": cycle_ns,
        "total_ns": cycle_ns,
    }
    return samples_from(_meta(shape, gpu, tp, clock="wall", imported=path.name), columns, len(prompts))


def _steps_of_run(path: Path, run: str | None) -> tuple[str, dict[str, Column]]:
    """The name of the selected run, and the columns of its steps.

    Raises:
        InputError: values that are not numbers or out of bounds, or not exactly one matching run.
    """
    rows: dict[str, list[list[float]]] = {}
    for line, (name, *cells) in table_rows(path, _VLLM_COLUMNS):
        try:
            numbers = [float(cell or "nan") for cell in cells]
        except ValueError:
            raise InputError("must be numbers", file=f"{path}:{line}", value=",".join(cells)) from None
        rows.setdefault(meant(name), []).append(numbers)
    names = sorted(rows)
    fitting = [name for name in names if run is None or run in name]
    if len(fitting) != 1:
        fix = f"choose one with --run: {', '.join(names)}"
        raise InputError(f"{len(fitting)} runs fit", file=path, key="--run", value=run, fix=fix)
    column = dict(zip(_VLLM_COLUMNS[1:], np.array(rows[fitting[0]]).T, strict=True))
    known = (column["next_sampled_gap_steps"] == 1) & (column["cycle_us_mean"] > 0)
    known &= column["prefill_reqs"] + column["decode_reqs"] > 0
    column = {name: values[known] for name, values in column.items()}
    for name, values in column.items():
        if not ((values >= 0) & (values <= MAX_TOKENS)).all():
            raise InputError(f"must be numbers from 0 to {MAX_TOKENS:,}", file=path, key=name)
    return fitting[0], column


# -- kernels -------------------------------------------------------------------------------------------


def _kernel_steps(
    folder: Path,
    shape: ModelShape,
    gpu: GpuSpec,
    tp: int,
    host_step_us: float | None,
    host_seq_us: float | None,
) -> StepSamples:
    """Steps of a planned grid, priced by the sum of their measured kernels."""
    tables = KernelTables(shape, gpu, tp, folder)
    for key, value in (("--host-step-us", host_step_us), ("--host-seq-us", host_seq_us)):
        if value is not None:
            clock_ns(value, 1000, key=key)
    if host_step_us is None:
        gpu.require_roofline("the host time of a step, without --host-step-us,")
    host_step_ns = gpu.host_step_ns if host_step_us is None else host_step_us * 1e3
    host_seq_ns = gpu.host_seq_ns if host_seq_us is None else host_seq_us * 1e3
    steps = [("decode", step) for step in _decodes(shape)]
    steps += [("prefill", step) for step in _prefills(shape)]
    steps += [("mixed", step) for step in _mixed(shape)]
    gpu_ns = np.array([tables.step_ns(step) for _, step in steps])
    host_ns = np.array([int(host_step_ns + host_seq_ns * step.seqs + 0.5) for _, step in steps])
    columns: dict[str, Any] = {
        "source": [source for source, _ in steps],
        "shape": np.arange(len(steps)),
        "regime": ["eager"] * len(steps),
        "gpu_ns": gpu_ns,
        "total_ns": gpu_ns + host_ns,
        **{name: [getattr(step, name) for _, step in steps] for name in FEATURE_NAMES},
    }
    meta = _meta(shape, gpu, tp, composed_of=tables.provenance)
    return samples_from(meta, columns, len(steps))


def _step(prompts: int, chunk: int, past: int, seqs: int, context_tokens: int) -> StepFeatures:
    return StepFeatures(
        prefill_seqs=prompts,
        prefill_tokens=prompts * chunk,
        prefill_pairs=prompts * (chunk * past + chunk * (chunk + 1) // 2),
        prefill_kv_tokens=prompts * past,
        prefill_prompt_pairs=prompts * chunk * (past + 1.5 * chunk),
        decode_seqs=seqs,
        decode_kv_tokens=seqs * context_tokens,
        max_context=max(context_tokens if seqs else 0, past if prompts else 0),
        emitted_rows=prompts + seqs,
    )


def _decodes(shape: ModelShape) -> Sequence[StepFeatures]:
    return [
        _step(0, 0, 0, seqs, context)
        for seqs, context in product(_BATCHES, _CONTEXTS)
        if seqs * context <= _KV_TOKENS and context < shape.max_position_embeddings
    ]


def _prefills(shape: ModelShape) -> Sequence[StepFeatures]:
    return [
        _step(prompts, chunk, past, 0, 0)
        for prompts, chunk, past in product((1, 4), _CHUNKS, _PASTS)
        if prompts * chunk <= _CHUNKS[-1] and past + chunk <= shape.max_position_embeddings
    ]


def _mixed(shape: ModelShape) -> Sequence[StepFeatures]:
    rng = np.random.default_rng(0)
    longest = min(shape.max_position_embeddings, _CONTEXTS[-1]) - 1
    logs = rng.random((_MIXED, 4)) * np.log([2048, longest / 2, 256, longest / 2])
    parts = np.exp(logs).astype(int)
    return [
        _step(1, int(chunk), int(past), min(int(seqs), _KV_TOKENS // int(context)), int(context))
        for chunk, past, seqs, context in parts
    ]
