"""KV capacity: the number of KV blocks that fit beside the model, per tensor-parallel rank.

    blocks = floor((memory*utilisation - weights/tp - activations - overhead) / KV bytes of a block)

Activations and overhead are an engine's own (`memory_overheads`). Weights are counted as the checkpoint
stores them, within 1 % of what vLLM reports to have loaded; an encoder of images would come on top.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

from blis_py.errors import InputError
from blis_py.hardware.gpu import GIB, GpuSpec
from blis_py.hardware.layout import Layout
from blis_py.hardware.memory_overheads import BLIS_OVERHEADS, MemoryOverheads
from blis_py.models.kv_pages import KVPages
from blis_py.models.layer_groups import layer_groups
from blis_py.models.model_shape import ModelShape

_TP_DEGREES = (1, 2, 4, 8, 16, 32)
_FEWER_SEQS = (1024, 512, 256, 128, 64, 32, 16, 8)
_USEFUL_TOKENS = 2048
"""Minimum number of tokens for which a suggestion leaves room."""


class KvCapacity(NamedTuple):
    """Breakdown of a rank's memory, and the KV blocks that remain. Bytes are per rank."""

    model: str
    gpu: str
    tp: int
    gpu_memory_utilization: float
    block_size: int
    memory_bytes: int
    """Memory to which the utilisation applies."""
    memory_basis: str
    """Origin of that figure; empty for the datasheet."""
    usable_bytes: int
    """Memory times utilisation."""
    weight_bytes: int
    activation_bytes: int
    activation_basis: str
    """Reason for the activation memory; empty for a constant."""
    overhead_bytes: int
    block_bytes: int
    """Keys and values of one block on one rank."""
    blocks: int
    """Zero or negative if the model does not fit."""
    groups: int = 1
    """Groups of layers with blocks of their own in the pool."""
    sequences: int | None = None
    """Sequences for whose states of linear attention there is memory; None = they have none."""

    @property
    def kv_bytes(self) -> int:
        """Memory left for KV, before rounding down to blocks."""
        return self.usable_bytes - self.weight_bytes - self.activation_bytes - self.overhead_bytes

    @property
    def tokens(self) -> int:
        """Tokens that the pool holds, as vLLM counts them: each in a block of every group."""
        return self.blocks // self.groups * self.block_size

    def describe(self) -> str:
        """A one-line summary for a report."""
        memory = activations = ""
        if self.memory_basis:
            share = f"{self.gpu_memory_utilization:g} of the {self.memory_bytes / GIB:.2f}"
            memory = f" ({share} {self.memory_basis})"
        if self.activation_basis:
            activations = f" ({self.activation_basis})"
        gib = [f"{part / GIB:.1f}" for part in (self.usable_bytes, self.weight_bytes, self.activation_bytes)]
        shared = f", shared by {self.groups} groups of layers," if self.groups > 1 else ""
        return (
            f"KV capacity: {self.blocks:,} blocks of {self.block_size}{shared} = {self.tokens:,} tokens "
            f"({self.model} on {self.gpu} TP{self.tp}, per GPU {gib[0]} GiB usable{memory} "
            f"- {gib[1]} weights - {gib[2]} activations{activations} "
            f"- {self.overhead_bytes / GIB:.2f} overhead "
            f"= {self.kv_bytes / GIB:.1f} GiB)"
        )


class _Plan(NamedTuple):
    """Inputs of the capacity."""

    shape: ModelShape
    gpu: GpuSpec
    tp: int
    block_size: int
    utilization: float
    tokens: int
    seqs: int
    overheads: MemoryOverheads
    layout: Layout
    states: int | None
    pages: KVPages | None


def kv_capacity(
    shape: ModelShape,
    gpu: GpuSpec,
    tp: int = 1,
    *,
    block_size: int = 16,
    gpu_memory_utilization: float = 0.9,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    overheads: MemoryOverheads = BLIS_OVERHEADS,
    layout: Layout | None = None,
    states: int | None = None,
    pages: KVPages | None = None,
) -> KvCapacity:
    """KV blocks of one instance of `tp` GPUs.

    Args:
        max_num_batched_tokens, max_num_seqs: limits of a step, for which the engine reserves memory.
        overheads: the engine's memory beyond weights and KV.
        layout: division of the `tp` GPUs, if it is not tensor parallelism alone.
        states: sequences with a state of linear attention; None = the engine's share of the pool.
        pages: groups of layers that share the pool; None = one group, and windows set aside in advance.

    Raises:
        InputError: `tp` does not divide the model, a setting is out of range, or the model does not fit (the
            message suggests a fix).
    """
    layout = layout or Layout(tp)
    check_tp(shape, layout.attention_tp)
    if block_size < 1:
        raise InputError("must be at least 1", key="--block-size", value=block_size)
    if not 0 < gpu_memory_utilization <= 1:
        fix = "give a fraction above 0, at most 1"
        raise InputError(
            "not a fraction", key="--gpu-memory-utilization", value=gpu_memory_utilization, fix=fix
        )
    tokens, seqs = max_num_batched_tokens, max_num_seqs
    limits = (gpu_memory_utilization, tokens, seqs)
    plan = _Plan(shape, gpu, tp, block_size, *limits, overheads, layout, states, pages)
    capacity = _budget(plan)
    if not _holds(capacity, 1):
        raise _does_not_fit(plan, capacity)
    return capacity


def check_tp(shape: ModelShape, tp: int) -> None:
    """Check that a TP degree does not split a head. KV heads fewer than `tp` are replicated.

    Raises:
        InputError: it does.
    """
    if tp < 1:
        raise InputError("must be at least 1", key="--tp", value=tp)
    if not _divides(shape, tp):
        fits = ", ".join(str(degree) for degree in _TP_DEGREES if _divides(shape, degree))
        problem = f"does not divide the {shape.heads} heads and {shape.kv_heads} KV heads of {shape.name}"
        raise InputError(problem, key="--tp", value=tp, fix=f"use one of {fits}")


def kv_heads_per_rank(shape: ModelShape, tp: int) -> int:
    """At least one: KV heads are replicated if there are fewer of them than ranks."""
    return ceil(shape.kv_heads / tp)


def rank_block_bytes(shape: ModelShape, layout: Layout, block_size: int) -> int:
    """Contents of a block on one rank, replicated heads included."""
    return int(_token_bytes(shape, layout, BLIS_OVERHEADS) * block_size)


def model_weight_bytes(shape: ModelShape) -> float:
    """Bytes of the whole model's weights: every matrix in its own format, unquantised parts in that of the
    activations. Biases are left out."""
    w = shape.weights
    sparse_layer = shape.shared_parameters * w.shared + shape.experts * shape.expert_parameters * w.experts
    linear = (
        shape.cached_layers * shape.attention_parameters * w.attention
        + (shape.layers - shape.cached_layers) * shape.linear_parameters * w.linear
        + shape.plain_layers * shape.dense_ffn_parameters * w.dense
        + shape.moe_layers * sparse_layer
    )
    linear += _indexer_bytes(shape) + shape.extra_parameters * shape.dtype_bytes
    routers = shape.moe_layers * shape.router_parameters
    head = 0 if shape.tied_embeddings else shape.embedding_parameters * w.head
    return linear + head + (shape.embedding_parameters + routers + shape.norm_parameters) * shape.dtype_bytes


def _indexer_bytes(shape: ModelShape) -> float:
    if shape.indexer is None:
        return 0.0
    plain = shape.indexer.plain_parameters(shape.hidden) * shape.dtype_bytes
    return shape.indexer.layers * (shape.indexer.query_parameters * shape.indexer.weight_bytes + plain)


def _undivided_bytes(shape: ModelShape) -> float:
    """Matrices that every rank holds whole: latent attention's projections down, the indexer's, and those to
    and from narrower experts (`ReplicatedLinear` in `deepseek_v2.py` of vLLM and of SGLang)."""
    w = shape.weights
    whole = shape.moe_layers * 2 * shape.hidden * shape.expert_hidden * w.shared
    whole += shape.extra_parameters * shape.dtype_bytes + _indexer_bytes(shape)
    down = 0
    if shape.latent is not None:
        down = shape.hidden * (shape.latent.query_rank + shape.latent.cached_elements)
    elif shape.compressed is not None:
        down, _ = shape.compressed.matrices(shape.hidden, shape.heads)
    return shape.cached_layers * down * w.attention + whole


def rank_weight_bytes(shape: ModelShape, layout: Layout) -> float:
    """Weights of one rank: attention, shared experts and embeddings are replicated with it."""
    undivided = _undivided_bytes(shape)
    whole = model_weight_bytes(shape) - undivided
    w, sparse = shape.weights, shape.moe_layers
    copies = sparse * layout.redundant_experts * shape.expert_parameters * w.experts / layout.gpus + undivided
    if layout.attention_dp == 1:
        return whole / layout.gpus + copies
    routed = sparse * shape.experts * shape.expert_parameters * w.experts
    dense = shape.plain_layers * shape.dense_ffn_parameters * w.dense
    return (routed + dense) / layout.gpus + copies + (whole - routed - dense) / layout.attention_tp


def _token_bytes(shape: ModelShape, layout: Layout, overheads: MemoryOverheads) -> float:
    """Bytes that a rank caches for a token.

    Where the allocator groups layers by their window, windowed ones keep no more than the window, or have a
    pool in proportion.
    """
    apart = _has_windows_apart(shape, overheads)
    groups = list(layer_groups(shape, layout.attention_tp))
    total = sum(
        group.layers * group.token_bytes * (overheads.window_share if group.window and apart else 1)
        for group in groups
    )
    return total if shape.compressed else int(total)


def _window_bytes(shape: ModelShape, layout: Layout, overheads: MemoryOverheads) -> float:
    """Bytes that a rank keeps for the windows of a sequence, where they have no pool of their own."""
    compressed = 0 if shape.compressed is None else shape.compressed.sequence_bytes
    if overheads.window_share or not _has_windows_apart(shape, overheads):
        return compressed
    groups = layer_groups(shape, layout.attention_tp)
    return compressed + sum(group.layers * group.window * group.token_bytes for group in groups)


def _has_windows_apart(shape: ModelShape, overheads: MemoryOverheads) -> bool:
    """Whether windowed layers have blocks of their own; not without others to be apart from, in proportion
    to their pool."""
    alone = shape.windowed_layers == shape.cached_layers
    return overheads.windows_apart and not (overheads.window_share and alone)


def default_max_model_len(shape: ModelShape, blocks: int, block_size: int) -> int:
    """The model's longest sequence (RoPE scaling applied), capped to the capacity of the KV blocks."""
    return min(shape.max_position_embeddings, blocks * block_size)


def _divides(shape: ModelShape, tp: int) -> bool:
    return shape.heads % tp == 0 and (shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0)


def _budget(plan: _Plan) -> KvCapacity:
    shape, gpu, tp, block_size, utilization, tokens, seqs, overheads, layout, _, pages = plan
    memory_bytes, basis = gpu.memory_bytes, ""
    if overheads.visible_memory:
        memory_bytes = gpu.visible_memory_bytes
        basis = "that CUDA sees" if gpu.visible_known else "that CUDA is assumed to see"
    weights = rank_weight_bytes(shape, layout) + overheads.rope_bytes(shape)
    weights += overheads.encoder_bytes(shape) / layout.attention_tp
    experts = shape.moe_layers * shape.experts * shape.expert_parameters * shape.weights.experts / layout.gpus
    weights += experts * (overheads.padded_experts(shape, layout.gpus // layout.ep) - 1)
    activations = overheads.activations(shape, tp, tokens, seqs)
    outside_gib = overheads.single_gpu_gib if tp == 1 else overheads.rank_gib
    overhead = (outside_gib + overheads.graph_gib) * GIB
    if overheads.share_of_started:
        memory_bytes, overhead, basis = int(memory_bytes - overhead), 0.0, "free before loading"
    usable = memory_bytes * utilization
    block_bytes = int(_token_bytes(shape, layout, overheads) * block_size)
    if pages is not None:
        block_bytes = pages.block_bytes(block_size)
    kv_bytes = usable - weights - activations.bytes - overhead
    if overheads.share_of_free:
        free = memory_bytes - weights - activations.bytes - overhead
        usable, kv_bytes = free * utilization + (memory_bytes - free), free * utilization
    held = _held(plan, kv_bytes) if pages is None else _Held(0.0, None)
    kv_bytes -= held.bytes
    blocks = int(kv_bytes // block_bytes)
    return KvCapacity(
        model=shape.name,
        gpu=gpu.name,
        tp=tp,
        gpu_memory_utilization=utilization,
        block_size=block_size,
        memory_bytes=memory_bytes,
        memory_basis=basis,
        usable_bytes=int(usable),
        weight_bytes=int(weights),
        activation_bytes=int(activations.bytes),
        activation_basis=activations.basis,
        overhead_bytes=int(overhead + held.bytes),
        block_bytes=block_bytes,
        blocks=blocks,
        groups=1 if pages is None else len(pages.groups),
        sequences=held.sequences,
    )


class _Held(NamedTuple):
    """Part of the pool that is set aside."""

    bytes: float
    sequences: int | None
    """Sequences that it is enough for; None = any number."""


def _held(plan: _Plan, kv_bytes: float) -> _Held:
    """Room for the windows and states of all running sequences."""
    room_bytes = max(kv_bytes, 0.0)
    state_bytes = _state_bytes(plan.shape, plan.layout)
    states = _held_states(plan, room_bytes, state_bytes) if state_bytes else _Held(0.0, None)
    windows_bytes = _held_windows(plan, max(room_bytes - states.bytes, 0.0))
    return states._replace(bytes=states.bytes + windows_bytes)


def _held_states(plan: _Plan, room_bytes: float, state_bytes: int) -> _Held:
    """Room for states: of all that may run where an engine reserves it, else of no more sequences than the
    pool has room for. Each is assumed to take at least as much of it by its length."""
    if plan.overheads.states_reserved:
        return _Held(float(plan.seqs * state_bytes), plan.seqs)
    fitting = int(room_bytes / 2) // state_bytes
    if plan.overheads.state_share:
        states = min(int(room_bytes * plan.overheads.state_share) // state_bytes, fitting)
        if plan.states is not None:
            states = min(plan.states, int(room_bytes) // state_bytes)
        return _Held(float(states * state_bytes), states)
    return _Held(min(plan.seqs * state_bytes, room_bytes / 2), min(plan.seqs, fitting))


def _held_windows(plan: _Plan, room_bytes: float) -> float:
    """Bytes that running sequences can fill: whole windows, or as many tokens as other layers hold."""
    shape, layout, overheads = plan.shape, plan.layout, plan.overheads
    window_bytes = _window_bytes(shape, layout, overheads)
    if not window_bytes:
        return 0.0
    share = 0.5 if shape.compressed else shape.windowed_layers / shape.cached_layers
    return min(plan.seqs * window_bytes, room_bytes * share)


def _state_bytes(shape: ModelShape, layout: Layout) -> int:
    """Bytes that a rank keeps for the state of a sequence: it has the heads of its share of attention."""
    return 0 if shape.linear is None else shape.linear.sequence_bytes // layout.attention_tp


def _holds(capacity: KvCapacity, tokens: int) -> bool:
    """Whether there is room for so many tokens, and for a sequence."""
    return capacity.tokens >= tokens and capacity.sequences != 0


def _does_not_fit(plan: _Plan, capacity: KvCapacity) -> InputError:
    needed = capacity.weight_bytes + capacity.activation_bytes + capacity.overhead_bytes
    problem = (
        f"{capacity.model} does not fit on {capacity.gpu} at TP{capacity.tp}: each GPU needs "
        f"{needed / GIB:.1f} GiB before any KV{_of_states(plan)}, "
        f"{capacity.usable_bytes / GIB:.1f} GiB are usable"
    )
    ways = _ways_to_fit(plan)
    return InputError(
        problem, fix="try " + " or ".join(ways) if ways else "use a larger GPU or a smaller model"
    )


def _of_states(plan: _Plan) -> str:
    """The part of the memory that is reserved for states, in words."""
    state_bytes = _state_bytes(plan.shape, plan.layout) if plan.overheads.states_reserved else 0
    if not state_bytes:
        return ""
    return f" ({plan.seqs * state_bytes / GIB:.1f} for the states of {plan.seqs:,} sequences)"


def _ways_to_fit(plan: _Plan) -> list[str]:
    """Single changes that would leave useful room."""

    def fits(changed: _Plan) -> bool:
        return _holds(_budget(changed), _USEFUL_TOKENS)

    ways, shape = [], plan.shape
    degrees = [tp for tp in _TP_DEGREES if tp > plan.tp and _divides(shape, tp)]
    wider = {tp: plan._replace(tp=tp, layout=plan.layout._replace(gpus=tp)) for tp in degrees}
    tp = next((tp for tp in degrees if fits(wider[tp])), None)
    if tp is not None:
        ways.append(f"--tp {tp}")
    fractions = [percent / 100 for percent in range(50, 96) if percent / 100 > plan.utilization]
    fraction = next((fraction for fraction in fractions if fits(plan._replace(utilization=fraction))), None)
    if fraction is not None:
        ways.append(f"--gpu-memory-utilization {fraction:.2f}")
    seqs = next((n for n in _FEWER_SEQS if n < plan.seqs and fits(plan._replace(seqs=n))), None)
    if seqs is not None:
        ways.append(f"--max-num-seqs {seqs}")
    for dtype, size in (("FP8", 1.0), ("4-bit", 0.5)):
        smaller = replace(shape, weights=shape.weights.at_most(size))
        if smaller != shape and fits(plan._replace(shape=smaller)):
            ways.append(f"a checkpoint with {dtype} weights")
            break
    return ways
