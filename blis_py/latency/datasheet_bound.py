"""Lower bound of a step's time by the datasheet: operations at the peak, bytes at the full bandwidth.

It counts the products with the weights, causal pairs of full attention and the weights and KV that have to be
read once, divided over all GPUs of an instance. What differs by engine (windowed and linear attention,
indexers, communication, activations) is left out, and narrow weights are multiplied at the GPU's fastest peak
for their size: nothing that obeys the datasheet is faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import GpuSpec
from blis_py.latency.base import LatencyModel
from blis_py.latency.notes import forget
from blis_py.models.layer_groups import layer_groups
from blis_py.models.model_shape import ModelShape

_NOTED = 0.97
"""Share of the bound below which a price is reported."""
_MOST_CHUNKS = 32
"""Steps of a prompt that are priced."""


def bound_ns(shape: ModelShape, gpu: GpuSpec, gpus: int, step: StepFeatures) -> float:
    """Least time of a step of one sequence, or of decodes, in ns."""
    return max(_compute_ns(shape, gpu, step), _memory_ns(shape, gpu, step)) / gpus


def bound_notes(
    model: LatencyModel,
    shape: ModelShape,
    gpu: GpuSpec | None,
    gpus: int,
    prompt_tokens: int,
    budget_tokens: int,
) -> tuple[str, ...]:
    """A note for each kind of step that is priced below the bound, from one request alone.

    Args:
        gpu: None if the device has no datasheet.
        prompt_tokens: the longest prompt.
        budget_tokens: most tokens of a step.
    """
    if gpu is None or not prompt_tokens:
        return ()
    prompt_tokens = min(prompt_tokens, _MOST_CHUNKS * budget_tokens)
    notes = []
    for name, steps in _of_one_request(prompt_tokens, budget_tokens).items():
        price = sum(map(model.step_ns, steps))
        bound = sum(bound_ns(shape, gpu, gpus, step) for step in steps)
        if price < _NOTED * bound:
            where = f"{gpu.name}" if gpus == 1 else f"{gpus} {gpu.name}"
            notes.append(
                f"{model.name} is faster than the hardware: {name} is priced at {price / 1e6:,.4g} ms, "
                f"and the datasheet's peak of {where} needs {bound / 1e6:,.4g} ms; not for sizing"
            )
    forget(model)
    return tuple(notes)


def _of_one_request(prompt_tokens: int, budget_tokens: int) -> dict[str, list[StepFeatures]]:
    """The steps of a prompt, and its first decode."""
    chunk = max(min(budget_tokens, prompt_tokens), 1)
    starts = range(0, prompt_tokens, chunk)
    decode = StepFeatures(
        decode_seqs=1, decode_kv_tokens=prompt_tokens, max_context=prompt_tokens, emitted_rows=1
    )
    return {
        f"a prompt of {prompt_tokens:,} tokens": [_chunk(start, chunk, prompt_tokens) for start in starts],
        f"a decode step of one sequence of {prompt_tokens:,} tokens": [decode],
    }


def _chunk(start: int, most: int, prompt_tokens: int) -> StepFeatures:
    tokens = min(most, prompt_tokens - start)
    return StepFeatures(
        prefill_seqs=1,
        prefill_tokens=tokens,
        prefill_pairs=tokens * start + tokens * (tokens + 1) // 2,
        prefill_kv_tokens=start,
        prefill_prompt_pairs=tokens * (prompt_tokens + tokens / 2),
        max_context=start,
        emitted_rows=int(start + tokens == prompt_tokens),
    )


def _compute_ns(shape: ModelShape, gpu: GpuSpec, step: StepFeatures) -> float:
    tokens = step.prefill_tokens + step.decode_seqs
    ns = sum(2 * tokens * count / _peak(gpu, size) for count, size in _matrices(shape))
    ns += 2 * step.emitted_rows * shape.embedding_parameters / _peak(gpu, shape.weights.head)
    return 1e9 * (ns + (step.prefill_pairs + step.decode_kv_tokens) * _pair_s(shape, gpu))


def _memory_ns(shape: ModelShape, gpu: GpuSpec, step: StepFeatures) -> float:
    """Weights and the KV of full layers, each read once; of experts those of one token."""
    moved = sum(count * size for count, size in _matrices(shape))
    moved += step.emitted_rows and shape.embedding_parameters * shape.weights.head
    if _reads_whole_contexts(shape):
        token = sum(group.layers * group.token_bytes for group in layer_groups(shape) if not group.window)
        moved += token * (step.prefill_kv_tokens + step.decode_kv_tokens)
    return 1e9 * moved / gpu.hbm_bytes_per_s


def _matrices(shape: ModelShape) -> Iterator[tuple[float, float]]:
    """Weights that a token is multiplied by, and bytes of each."""
    w, dense = shape.weights, shape.plain_layers
    yield shape.cached_layers * shape.attention_parameters, w.attention
    yield (shape.layers - shape.cached_layers) * shape.linear_parameters, w.linear
    yield dense * shape.dense_ffn_parameters, w.dense
    yield shape.moe_layers * shape.shared_parameters, w.shared
    yield shape.moe_layers * shape.experts_per_token * shape.expert_parameters, w.experts


def _pair_s(shape: ModelShape, gpu: GpuSpec) -> float:
    """Attention of the full layers for one query-key pair; latent attention without its expansion."""
    if not _reads_whole_contexts(shape):
        return 0.0
    full = shape.cached_layers - shape.windowed_layers
    latent = shape.latent
    head_dim = shape.full_heads.head_dim if shape.full_heads else shape.head_dim
    key_value = 2 * head_dim if latent is None else shape.head_dim + latent.value_dim
    return full * 2 * shape.heads * key_value / _peak(gpu, min(shape.kv_dtype_bytes, 2))


def _reads_whole_contexts(shape: ModelShape) -> bool:
    """Whether layers without a window read every token."""
    return not (shape.indexer or shape.compressed or shape.blocks)


def _peak(gpu: GpuSpec, size: float) -> float:
    """Fastest peak in operations per second of products with elements of so many bytes."""
    peaks = [gpu.fp16_flops]
    if size < 2:
        peaks += [gpu.fp8_flops, gpu.int8_flops]
    if size < 1:
        peaks.append(gpu.fp4_flops)
    return max(peaks)
