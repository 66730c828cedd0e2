"""The architecture of a model as far as it affects time and memory, read from a HuggingFace config."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import ceil
from pathlib import Path
from typing import Any

from blis_py.core.light_dataclass import dataclass
from blis_py.errors import InputError
from blis_py.files.paths import is_file, is_folder
from blis_py.files.profiles import find_profile, known_names, listed_as, stem_of
from blis_py.models.attention_shapes import Indexer, LatentAttention, indexed_layers, read_latent
from blis_py.models.block_attention import BlockIndexer, read_blocks
from blis_py.models.compressed_attention import CompressedAttention, read_compressed
from blis_py.models.grouped_heads import GroupedHeads, read_heads
from blis_py.models.hf_config import ConfigFile
from blis_py.models.image_encoder import ImageEncoder, read_image_encoder
from blis_py.models.layer_groups import layer_groups
from blis_py.models.layer_kinds import EXPERTS, WINDOW, LayerKinds, layer_kinds, window_of
from blis_py.models.linear_attention import LinearAttention, read_linear
from blis_py.models.model_types import ModelType, understood
from blis_py.models.published_formats import PublishedCheckpoint, published_checkpoint, publishers_of
from blis_py.models.weights import LayerCounts, Quantisation, Weights, unquantised

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
_UNSCALED_ROPE = frozenset({"default", "su", "longrope", "llama3", "mrope"})
_EXPERTS_PER_TOKEN = (
    *(
        "num_experts_per_tok",
        "experts_per_token",
        "num_experts_per_token",
        "top_k_experts",
        "moe_top_k",
        "moe_k",
    ),
)
_SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_DENSE_WIDTH = ("dense_intermediate_size", "intermediate_size_mlp", "intermediate_size")
_SHARED_WIDTH = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
    "share_expert_dims",
)
_SCORES = ("scoring_func", "score_function", "moe_router_activation_func")
PRICED_AS_FULL = "priced as if to all"
"""In the note on windowed layers, which holds for all latency models but operators."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with gated (three-matrix) feed-forward layers; see `attention_shapes` for attention other
    than that of grouped queries.

    Sizes are of the whole model, before division by tensor parallelism.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of a dense layer's feed-forward; unused if every layer is sparse."""
    vocab: int
    tied_embeddings: bool
    max_position_embeddings: int
    """Longest sequence, with RoPE scaling applied."""
    dtype_bytes: int = 2
    """Bytes per activation and embedding element."""
    kv_dtype_bytes: int = 2
    """Bytes per element of the KV cache."""
    weights: Weights = field(default_factory=Weights)
    """Bytes per weight of the linear layers."""
    experts: int = 0
    """Routed experts of a sparse layer; 0 = dense model."""
    experts_per_token: int = 0
    moe_intermediate: int = 0
    """Width of one routed expert."""
    shared_intermediate: int = 0
    """Width of the shared experts together, or of a dense feed-forward beside routed experts."""
    expert_hidden: int = 0
    """Width of the vectors between which routed experts map, if a projection of all of them narrows it
    first; 0 = the hidden size."""
    ffn_matrices: int = 3
    """Matrices of a feed-forward: 3 with a gate, 2 without."""
    bare_layers: int = 0
    """Layers without a feed-forward."""
    shared_unsaid: bool = False
    """Whether shared experts follow only from the model's type, not from its config (Llama 4)."""
    dense_layers: int = 0
    """Dense layers of a sparse model (first ones or interleaved)."""
    interleave_step: int = 0
    """`interleave_moe_layer_step` of the config; 0 = absent."""
    sliding_window: int = 0
    """Attention window of the windowed layers in tokens, 0 = none. Operators and the KV pools of most engines
    heed it; where time and KV capacity treat every layer as full attention, a note states it."""
    windowed_layers: int = 0
    chunked_windows: bool = False
    """Whether these attend to the present chunk of so many tokens, not to the last ones."""
    latent: LatentAttention | None = None
    """Multi-head latent attention, instead of grouped queries."""
    linear: LinearAttention | None = None
    """Layers of linear attention among the others."""
    compressed: CompressedAttention | None = None
    """Attention over a compressed cache, instead of grouped queries."""
    blocks: BlockIndexer | None = None
    """Layers of grouped queries that read chosen blocks."""
    full_heads: GroupedHeads | None = None
    """Heads of the layers without a window, where they are of another shape than `heads` and `kv_heads`."""
    gated_attention: bool = False
    """Whether attention's output is gated, which doubles the projection of the queries."""
    routing: str = "skewed"
    """Distribution of tokens over experts: `balanced` where the router is trained to balance (sigmoid
    scores with a bias per expert), else `skewed`, or `steep`."""
    router_fp32: bool = False
    """Whether engines multiply by the router in FP32."""
    norm_over_heads: bool = False
    """Whether queries and keys are normalised over all heads, which ranks have to sum for."""
    residual_streams: int = 1
    """Hidden vectors of a token that layers mix (hyper-connections)."""
    further_layers: int = 0
    """Layers of multi-token prediction: in the checkpoint, not loaded without speculative decoding."""
    further_embeddings: bool = False
    """Whether each of them has embeddings and an LM head of its own."""
    image_encoder: ImageEncoder | None = field(default=None, compare=False, repr=False)
    """None = the model reads text alone."""
    kinds: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)
    """Kinds of layers in order, with how many follow each other; see `layer_kinds`."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Assumptions where the config contains more than is modelled, or less than is needed."""

    @property
    def is_moe(self) -> bool:
        return self.experts >= 2

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers - self.bare_layers if self.is_moe else 0

    @property
    def plain_layers(self) -> int:
        """Layers with a feed-forward and without routed experts."""
        return self.layers - self.moe_layers - self.bare_layers

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that all layers cache for one token, rounded up."""
        return ceil(sum(group.layers * group.token_bytes for group in layer_groups(self)))

    @property
    def cached_layers(self) -> int:
        """Layers with a KV cache, windowed ones included."""
        return self.layers - (0 if self.linear is None else self.linear.layers)

    @property
    def kv_elements(self) -> int:
        """Elements that a layer caches for one token."""
        if self.latent is not None:
            return self.latent.cached_elements
        return 2 * self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Projections of one layer with a KV cache; their mean where layers differ."""
        if self.compressed is not None:
            return sum(self.compressed.matrices(self.hidden, self.heads))
        if self.latent is not None:
            gate = self.heads * self.latent.value_dim if self.gated_attention else 0
            return sum(self.latent.matrices(self.hidden, self.heads)) + self.hidden * gate
        gate = self.heads if self.gated_attention else 0
        own = self.hidden * (2 * (self.heads + self.kv_heads) + gate) * self.head_dim
        if self.full_heads is None:
            return own
        full = self.cached_layers - self.windowed_layers
        both = self.windowed_layers * own + full * self.full_heads.parameters(self.hidden)
        return both // self.cached_layers

    @property
    def indexer(self) -> Indexer | None:
        """The indexer of sparse attention; None = attention to all tokens."""
        return None if self.latent is None else self.latent.indexer

    @property
    def indexer_parameters(self) -> int:
        """One layer's indexer."""
        return 0 if self.indexer is None else self.indexer.parameters(self.hidden)

    @property
    def extra_parameters(self) -> int:
        """Compressors and indexers of all layers that every rank holds whole, in 16 bits."""
        if self.compressed is not None:
            return self.compressed.small_parameters(self.hidden)
        return 0 if self.blocks is None else self.blocks.layers * self.blocks.parameters(self.hidden)

    @property
    def linear_parameters(self) -> int:
        """One layer of linear attention."""
        return 0 if self.linear is None else self.linear.parameters(self.hidden)

    @property
    def is_plain(self) -> bool:
        """Whether all attention is of grouped queries with a KV cache."""
        special = self.latent or self.linear or self.compressed or self.blocks or self.full_heads
        return not special and not self.gated_attention and self.ffn_matrices == 3 and not self.expert_hidden

    @property
    def dense_ffn_parameters(self) -> int:
        """The feed-forward of one dense layer."""
        return self.ffn_matrices * self.hidden * self.intermediate

    @property
    def expert_parameters(self) -> int:
        """One routed expert of one layer."""
        return self.ffn_matrices * (self.expert_hidden or self.hidden) * self.moe_intermediate

    @property
    def shared_parameters(self) -> int:
        """The shared experts of one sparse layer, and the projections to and from narrower experts."""
        narrowing = 2 * self.hidden * self.expert_hidden
        return self.ffn_matrices * self.hidden * self.shared_intermediate + narrowing

    @property
    def router_parameters(self) -> int:
        """The gate of one sparse layer."""
        return self.hidden * self.experts if self.is_moe else 0

    @property
    def embedding_parameters(self) -> int:
        """The token embedding (as many again in the LM head, unless tied)."""
        return self.vocab * self.hidden

    @property
    def norm_parameters(self) -> int:
        """Two norms per layer, and the last one; the mixing of hidden vectors where there are several."""
        streams = self.residual_streams
        mixing = 2 * self.layers * (2 + streams) * streams * streams * self.hidden if streams > 1 else 0
        return (2 * self.layers + 1) * self.hidden + mixing

    @property
    def parameters(self) -> int:
        """All weights, without biases."""
        return self._parameters(self.experts)

    @property
    def checkpoint_parameters(self) -> int:
        """All weights, those of multi-token prediction included: each of its layers is like the last one,
        with a projection of two hidden vectors to one."""
        layer = self.attention_parameters + self.indexer_parameters + self.dense_ffn_parameters
        if self.moe_layers:
            layer += self.experts * self.expert_parameters + self.shared_parameters + self.router_parameters
            layer -= self.dense_ffn_parameters
        layer += 2 * self.hidden * self.hidden + (2 * self.embedding_parameters) * self.further_embeddings
        return self.parameters + self.further_layers * layer

    @property
    def active_parameters(self) -> int:
        """Weights used for one token."""
        return self._parameters(self.experts_per_token)

    def _parameters(self, experts: int) -> int:
        sparse_layer = experts * self.expert_parameters + self.shared_parameters + self.router_parameters
        return (
            self.embedding_parameters * (1 if self.tied_embeddings else 2)
            + self.cached_layers * self.attention_parameters
            + (0 if self.indexer is None else self.indexer.layers * self.indexer_parameters)
            + (self.layers - self.cached_layers) * self.linear_parameters
            + self.extra_parameters
            + self.plain_layers * self.dense_ffn_parameters
            + self.moe_layers * sparse_layer
            + self.norm_parameters
        )


def load_model(name: str, config_path: str | Path | None = None) -> ModelShape:
    """The shape of a model.

    Args:
        name: the folder of a checkpoint, a bundled model in any usual spelling (`qwen/qwen3-14b`,
            `Qwen/Qwen3-14B-Instruct`) or in a format of its publishers (`Qwen/Qwen3-14B-AWQ`), or an
            arbitrary name if `config_path` is given.
        config_path: a HuggingFace `config.json`, or the folder that holds one.

    Raises:
        InputError: unknown name; missing or invalid key, with file and key.
    """
    if config_path is None and is_file(Path(name) / "config.json"):
        name, config_path = config_name(name), name
    if config_path is None:
        checkpoint = published_checkpoint(name)
        if checkpoint is not None:
            return _in_published_format(name, checkpoint)
        if stem_of("models", name) is None and (full := publishers_of(name)):
            raise _unknown_format(name, full)
        shape = _shape(name, ConfigFile.read(find_profile("models", name)))
        return shape if listed_as("models", name) else _variant(shape)
    path = Path(config_path)
    return _shape(name, ConfigFile.read(path / "config.json" if is_folder(path) else path))


def with_kv_dtype(shape: ModelShape, kv_cache_dtype: str) -> ModelShape:
    """The shape with a KV cache in this format; auto = as its checkpoint says."""
    sizes = {"bfloat16": 2, "fp8": 1, "fp8_e4m3": 1}
    if kv_cache_dtype not in sizes:
        return shape
    return replace(shape, kv_dtype_bytes=sizes[kv_cache_dtype])


def config_name(config_path: str | Path) -> str:
    """Name of a model from the path of its HuggingFace config: the name of its checkpoint on the hub.

    That is in the name of the file (`org--model_config.json`), or of the folder that holds it, in
    HuggingFace's cache two levels above (`models--org--model/snapshots/<revision>`).
    """
    path = Path(config_path)
    own = path.stem.removesuffix("config").rstrip("_-.") if path.suffix == ".json" else ""
    if own:
        return own.replace("--", "/")
    folder = path.absolute().parent if path.suffix == ".json" else Path(os.path.abspath(path))
    name = folder.parents[1].name if folder.parent.name == "snapshots" else folder.name
    return name.removeprefix("models--").replace("--", "/")


def _unknown_format(name: str, full: Sequence[str]) -> InputError:
    others = f"the name of a known publisher's: {', '.join(full)}"
    fix = f"use --model-config with a HuggingFace config.json of it, or {others}"
    return InputError("model in an unknown format", key="--model", value=name, fix=fix)


def _in_published_format(name: str, checkpoint: PublishedCheckpoint) -> ModelShape:
    shape = _shape(name, ConfigFile.of(Path(f"{name}/config.json"), checkpoint.config))
    note = (
        f"{name} is priced with the configuration of {checkpoint.stem} in the format of "
        f"{checkpoint.publisher}'s checkpoints; where its own differs, give it with --model-config"
    )
    return replace(shape, notes=(*shape.notes, note))


def _variant(shape: ModelShape) -> ModelShape:
    note = (
        f"{shape.name} is priced with the configuration of {stem_of('models', shape.name)}; where its own "
        "differs, such as in its longest sequence, give it with --model-config"
    )
    return replace(shape, notes=(*shape.notes, note))


def shape_from_config(name: str, values: Mapping[str, Any], file: Path) -> ModelShape:
    """The shape from the contents of a HuggingFace config.

    Args:
        file: where it was read from, for messages.

    Raises:
        InputError: missing or invalid key, with file and key.
    """
    return _shape(name, ConfigFile.of(file, values))


def _stored(config: ConfigFile, layers: LayerCounts) -> Quantisation:
    section = config.section(config.key("quantization_config", "compression_config"))
    if section is None:
        return unquantised(layers)
    from blis_py.models._quantisation import read_quantisation  # imported only where needed

    return read_quantisation(section, layers, config.text("expert_dtype", default=""))


def same_sizes(one: ModelShape, other: ModelShape) -> bool:
    """Whether a step takes the same time for both, regardless of names and longest sequences."""
    apart = {"name": "", "notes": (), "max_position_embeddings": 0}
    return replace(one, **apart) == replace(other, **apart)  # type: ignore[arg-type]


def known_models() -> list[str]:
    """Names of the bundled model profiles."""
    return known_names("models")


def _shape(name: str, config: ConfigFile) -> ModelShape:
    config, model_type, notes = understood(config, name)
    if not config.has("layers_block_type"):
        config.count("num_hidden_layers")
    limit = _max_positions(config, model_type)
    kinds = layer_kinds(config, model_type, limit)
    layers = len(kinds.attention)
    hidden = config.count("hidden_size")
    window, windowed = window_of(config), kinds.count(WINDOW)
    own_heads, full_heads = read_heads(config, windowed > 0)
    heads, kv_heads = own_heads.heads, own_heads.kv_heads
    dtype_bytes = _dtype_bytes(config)
    latent = read_latent(config, layers, model_type.sparse)
    linear = read_linear(config, len(kinds.linear), dtype_bytes)
    compressed = read_compressed(config, layers)
    stored = _stored(
        config,
        LayerCounts(
            kinds.modules,
            kinds.sparse,
            kinds.dense,
            kinds.cached,
            heads,
            kv_heads,
            dtype_bytes,
            linear=kinds.linear,
            linear_kind=linear.kind if linear else "gdn",
            latent_weights=_latent_weights(latent, compressed, hidden, heads),
            indexed=indexed_layers(config, layers) if latent and latent.indexer else (),
            beside=config.flag("enable_moe_block", default=False),
            gated=model_type.gated,
        ),
    )
    if latent and latent.indexer:
        latent = replace(latent, indexer=replace(latent.indexer, weight_bytes=stored.indexer))
    further = config.count("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, least=0)
    images = read_image_encoder(config, hidden, model_type.images_off)
    if images is not None:
        billions = f"{images.parameters / 1e9:.2f} billion weights" if images.parameters else "unknown size"
        notes.append(f"{name} has an encoder of images ({billions}): no time is spent in it")
    if windowed:
        notes.append(
            f"{windowed} of the {layers} layers of {name} attend to {window:,} tokens at most, and are "
            f"{PRICED_AS_FULL}: on longer contexts steps come out too slow and fewer requests fit"
        )
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=latent.rope_dim + latent.nope_dim if latent else own_heads.head_dim,
        vocab=config.count("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=model_type.tied_embeddings),
        max_position_embeddings=limit,
        dtype_bytes=dtype_bytes,
        kv_dtype_bytes=stored.kv_dtype_bytes,
        weights=stored.weights,
        sliding_window=window if windowed else 0,
        windowed_layers=windowed,
        chunked_windows=windowed > 0 and not config.count("sliding_window", default=0, least=0),
        latent=latent,
        linear=linear,
        compressed=compressed,
        blocks=read_blocks(config, layers),
        full_heads=full_heads,
        gated_attention=config.flag("attn_output_gate", "mla_use_output_gate", default=False),
        norm_over_heads=config.text("qk_norm_type", default="") == "per_layer",
        residual_streams=config.count("hc_mult", default=1),
        further_layers=further,
        further_embeddings=config.flag("mtp_use_dedicated_embeddings", default=further > 0),
        image_encoder=images,
        kinds=kinds.runs,
        notes=(*notes, *stored.notes),
        **_feed_forward(config, model_type, kinds),
    )


def _latent_weights(
    latent: LatentAttention | None, compressed: CompressedAttention | None, hidden: int, heads: int
) -> Sequence[int]:
    """Weights of a layer's attention that are not those of grouped queries; see `LayerCounts`."""
    if latent is not None:
        return latent.matrices(hidden, heads)
    if compressed is None:
        return ()
    outputs = compressed.output_parameters(hidden, heads)
    return sum(compressed.matrices(hidden, heads)) - outputs, 0, outputs


def _feed_forward(config: ConfigFile, model_type: ModelType, kinds: LayerKinds) -> dict[str, Any]:
    matrices = {"ffn_matrices": 3 if model_type.gated else 2, "bare_layers": kinds.bare}
    config.check_alike(*EXPERTS)
    config.check_alike(*_EXPERTS_PER_TOKEN)
    experts = config.count(*EXPERTS, default=0, least=0)
    if experts < 2:
        # Granite 4 without experts keeps the shared one (`GraniteMoeHybridMLP`).
        kept = ("shared_intermediate_size",) if config.has("mamba_n_heads") else ()
        return {"intermediate": config.count(*kept, "intermediate_size"), **matrices}
    per_token = config.count(*_EXPERTS_PER_TOKEN)
    if per_token > experts:
        raise config.error(config.key(*_EXPERTS_PER_TOKEN), f"more than the {experts} experts", per_token)
    width = config.count("moe_intermediate_size", "intermediate_size")
    shared = config.count(*_SHARED_EXPERTS, default=model_type.shared_experts, least=0) * width
    if config.flag("enable_moe_block", default=False):  # a dense feed-forward beside the experts
        shared = config.count("intermediate_size")
    return {
        **matrices,
        "intermediate": config.count(*_DENSE_WIDTH, default=width),
        "experts": experts,
        "experts_per_token": per_token,
        "moe_intermediate": width,
        "shared_intermediate": config.count(*_SHARED_WIDTH, default=shared, least=0),
        "shared_unsaid": model_type.shared_experts > 0,
        "routing": "balanced"
        if config.text(*_SCORES, default="softmax") == "sigmoid"
        else model_type.routing,
        "router_fp32": model_type.router_fp32,
        "interleave_step": config.count("interleave_moe_layer_step", default=0, least=0),
        "dense_layers": len(kinds.dense),
        "expert_hidden": config.count("moe_latent_size", "routed_expert_hidden_size", default=0, least=0),
    }


def _dtype_bytes(config: ConfigFile) -> int:
    dtype = config.text("torch_dtype", "dtype", default="bfloat16")
    if dtype not in _DTYPE_BYTES:
        known = ", ".join(_DTYPE_BYTES)
        raise config.error(config.key("torch_dtype", "dtype"), "unknown dtype", dtype, f"use one of {known}")
    return _DTYPE_BYTES[dtype]


def _max_positions(config: ConfigFile, model_type: ModelType) -> int:
    """vLLM's rule: `factor` stretches the limit, unless the config states the stretched one."""
    limit = config.count("max_position_embeddings")
    rope = config.section("rope_scaling") or config.section("rope_parameters")
    if rope is None or model_type.stretched:
        return limit
    kind = rope.text("rope_type", "type", default="default")
    if kind in _UNSCALED_ROPE:
        return limit
    if kind == "yarn":
        limit = rope.count("original_max_position_embeddings", default=limit)
    return int(limit * rope.number("factor", default=1.0))
