"""Time of a step beyond the kernels of an engine, and the part of a run outside what was learned.

The figures stand in `profiles/operators/terms.yaml`, by engine: factors of the kernels' sum for decodes and
for steps with prompts (small kernels, launches, imperfect overlap), time per step on GPU and host, per
sequence, and before the first token. `benchmarks/accuracy/train_terms.py` learns them from closed loops of
many models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.yaml_files import load_mapping
from blis_py.hardware.gpu import GpuSpec, is_of_amd
from blis_py.hardware.layout import Layout
from blis_py.latency.learned import servers_of_amd
from blis_py.latency.operator_work import WEIGHT_BYTES
from blis_py.models.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class EngineTerms:
    """Times in ns."""

    decode_scale: float = 1.0
    prefill_scale: float = 1.0
    decode_step_ns: float = 0.0
    prefill_block_scale: float = 1.0
    """A further factor of steps with prompts where weights have block scales: kernels of that format changed
    more than others between the versions that were measured and those that served."""
    prefill_step_ns: float = 0.0
    launch_layer_ns: float = 0.0
    """Host time to launch the kernels of a layer in a step with prompts, which no CUDA graph holds. The step
    takes at least that for every layer."""
    first_token_ns: float = 0.0
    """In front of the engine: tokenisation, HTTP, and between threads of the server."""
    first_seq_ns: float = 0.0
    """The same for each sequence that gets tokens at the same time."""
    learned: tuple[str, ...] = ()
    """Combinations of kind of model, format, GPU and layout in the measurements."""

    def beyond(
        self,
        shape: ModelShape,
        gpu: GpuSpec,
        layout: Layout,
        engine: str,
        measured: bool,
        unmeasured: Sequence[str] = (),
    ) -> str:
        """The part of a run outside what was learned, in one line; may be empty.

        Args:
            measured: whether kernels of the GPU were.
            unmeasured: kinds of layers for which no kernels of the GPU were measured, with what stands in.
        """
        missing = list(self._missing(shape, gpu, layout, engine, measured))
        if is_of_amd(gpu) and not self._learned_with(shape, gpu, layout):
            unmeasured = (*unmeasured, servers_of_amd(gpu))
        text = f"step times of what was not learned on together: {'; '.join(missing)}" if missing else ""
        return "; ".join(filter(None, (*(f"not validated for {kind}" for kind in unmeasured), text)))

    def _missing(
        self, shape: ModelShape, gpu: GpuSpec, layout: Layout, engine: str, measured: bool
    ) -> Iterator[str]:
        if not measured:
            yield f"kernels of the {gpu.name} (a related GPU's efficiencies on its datasheet)"
        if not self._learned_with(shape, gpu, layout):
            yield f"servers of {engine} with {_combination(shape, gpu, layout)}"

    def _learned_with(self, shape: ModelShape, gpu: GpuSpec, layout: Layout) -> bool:
        return _combination(shape, gpu, layout) in self.learned


def _combination(shape: ModelShape, gpu: GpuSpec, layout: Layout) -> str:
    return f"{kind_of(shape)} on {gpu.name} {layout}"


def kind_of(shape: ModelShape) -> str:
    """Kind of attention and feed-forward, and format of most weights."""
    attention = " ".join(_attention_of(shape))
    feed_forward = "MoE" if shape.moe_layers else "dense"
    return " ".join(part for part in (attention, feed_forward, _format_of(shape)) if part)


def _attention_of(shape: ModelShape) -> Iterator[str]:
    """Kinds of attention, but that of grouped queries to the whole context."""
    if shape.indexer or shape.blocks or shape.compressed:
        yield "sparse"
    if shape.compressed:
        yield "compressed"
    if shape.full_heads:
        yield "two shapes of heads"
    if shape.latent:
        yield "MLA"
    if shape.linear:
        yield {"gdn": "", "kda": "KDA ", "mamba2": "Mamba-2 "}[shape.linear.kind] + "hybrid"


def _format_of(shape: ModelShape) -> str:
    """Number format of most weights; kernels of formats with as many bits have little in common."""
    arithmetic, size = shape.weights.arithmetic, shape.weights.dense
    if shape.moe_layers:
        size = shape.weights.experts
    if size >= 2:
        return "16 bits"
    if arithmetic == "fp4":
        return "MXFP4" if size == WEIGHT_BYTES["w4a16_mxfp4"] else "NVFP4"
    return {"fp8": "FP8", "int8": "INT8"}.get(arithmetic, "INT4" if size < 1 else "INT8 weights")


def measured_servers(engine: str, gpu: GpuSpec, shape: ModelShape, layout: Layout) -> bool:
    """Whether servers with a model of these sizes in this format on this GPU were learned on."""
    return server_of(engine, gpu, shape, layout) in _file()["measured"]


def server_of(engine: str, gpu: GpuSpec, shape: ModelShape, layout: Layout) -> str:
    """A model on a GPU under an engine, of whatever name and number of GPUs."""
    kind = "DP EP" if layout.attention_dp > 1 else "EP" if layout.ep > 1 else "TP"
    scales = " with block scales" if shape.weights.block_scales else ""
    sizes = f"{shape.layers} layers of {shape.hidden:,} by {shape.moe_intermediate or shape.intermediate:,}"
    return f"{engine}, {kind_of(shape)}{scales} on {gpu.name} {kind}, {sizes}"


def terms_of(engine: str, gpu: GpuSpec, shape: ModelShape) -> EngineTerms:
    """The terms of an engine on a GPU of this generation, for models of this kind, or the nearest learned."""
    top = _file()
    name = next((name for name in _nearest(engine, gpu, shape) if name in top["groups"]), "")
    values = top["groups"].get(name, {})
    return EngineTerms(**values, learned=tuple(top["learned_on"].get(name, ())))


def group_of(engine: str, gpu: GpuSpec, shape: ModelShape) -> str:
    """Name of the terms that apply."""
    return next(_nearest(engine, gpu, shape))


def _nearest(engine: str, gpu: GpuSpec, shape: ModelShape) -> Iterator[str]:
    """Names of terms, those of the nearest servers first. The same code launches a kind of model on another
    generation of GPUs; launching latent or linear attention says nothing of launching plain one."""
    generations: tuple[str, ...] = ("blackwell", "hopper") if gpu.fp4_flops else ("hopper", "blackwell")
    if is_of_amd(gpu):
        generations = (*(("cdna4", "cdna3") if gpu.fp4_flops else ("cdna3", "cdna4")), *generations)
    plain = "sparse" if shape.moe_layers else "dense"
    latent = shape.latent or shape.compressed
    kind = "hybrid" if shape.linear else "mla" if latent and shape.moe_layers else plain
    for of_kind in dict.fromkeys((kind, plain)):
        yield from (f"{engine}-{of_kind}-{generation}" for generation in generations)


@cache
def _file() -> dict[str, Any]:
    path = bundled.root("profiles") / "operators" / "terms.yaml"
    top = {"groups": {}, "learned_on": {}, "measured": (), **load_mapping(path)}
    known = {field.name for field in fields(EngineTerms)}
    for name, values in top["groups"].items():
        for key in values:
            if key not in known:
                raise InputError("unknown key", file=path, key=f"groups.{name}.{key}")
    return top
