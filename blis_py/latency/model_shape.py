"""The architecture of a model, as far as time and memory depend on it, read from a HuggingFace config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.files.paths import is_folder
from blis_py.latency.hf_config import ConfigFile
from blis_py.latency.profiles import find_profile, known_names

MXFP4_BYTES = 0.53125
"""4 bits and one 8-bit scale per 32 weights."""
NVFP4_BYTES = 0.5625
"""4 bits and one 8-bit scale per 16 weights."""

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
_UNSCALED_ROPE = frozenset({"default", "su", "longrope", "llama3", "mrope"})
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "moe_topk")
_SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with grouped-query attention and gated (three-matrix) feed-forward layers.

    Sizes are of the whole model, before tensor parallelism divides them.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of a dense layer's feed-forward; unused when every layer is sparse."""
    vocab: int
    tied_embeddings: bool
    max_position_embeddings: int
    """Longest sequence, with RoPE scaling applied."""
    dtype_bytes: int = 2
    """Bytes per activation, embedding and KV element."""
    weight_bytes: float = 2.0
    """Bytes per weight of the linear layers: 2 unquantised, 1 FP8 or INT8, 0.5 for 4 bits."""
    experts: int = 0
    """Routed experts of a sparse layer; 0 = dense model."""
    experts_per_token: int = 0
    moe_intermediate: int = 0
    """Width of one routed expert."""
    shared_intermediate: int = 0
    """Width of the shared experts together."""
    dense_layers: int = 0
    """Layers of a sparse model that are dense all the same (first ones or interleaved)."""
    interleave_step: int = 0
    """`interleave_moe_layer_step` of the config; 0 = absent."""
    expert_weight_bytes: float = 2.0
    """Bytes per weight of the routed experts (MXFP4 checkpoints quantise nothing else)."""
    sliding_window: int = 0
    """Attention window of the windowed layers in tokens, 0 = none. Recorded only: time and KV
    capacity take every layer as full attention, which errs on the safe side."""

    @property
    def is_moe(self) -> bool:
        return self.experts >= 2

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.is_moe else 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers for one token."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def attention_parameters(self) -> int:
        """One layer's q, k, v and o projections."""
        return 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim

    @property
    def dense_ffn_parameters(self) -> int:
        """The feed-forward of one dense layer."""
        return 3 * self.hidden * self.intermediate

    @property
    def expert_parameters(self) -> int:
        """One routed expert of one layer."""
        return 3 * self.hidden * self.moe_intermediate

    @property
    def shared_parameters(self) -> int:
        """The shared experts of one sparse layer."""
        return 3 * self.hidden * self.shared_intermediate

    @property
    def router_parameters(self) -> int:
        """The gate of one sparse layer."""
        return self.hidden * self.experts if self.is_moe else 0

    @property
    def embedding_parameters(self) -> int:
        """The token embedding (as many again in the LM head, unless tied)."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, without biases."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Weights one token passes through."""
        return self._parameters(self.experts_per_token)

    def _parameters(self, experts: int) -> int:
        norms = (2 * self.layers + 1) * self.hidden
        dense_layers = self.layers - self.moe_layers
        sparse_layer = experts * self.expert_parameters + self.shared_parameters + self.router_parameters
        return (
            self.embedding_parameters * (1 if self.tied_embeddings else 2)
            + self.layers * self.attention_parameters
            + dense_layers * self.dense_ffn_parameters
            + self.moe_layers * sparse_layer
            + norms
        )


def load_model(name: str, config_path: str | Path | None = None) -> ModelShape:
    """The shape of a model.

    Args:
        name: a bundled model in any usual spelling (`qwen/qwen3-14b`, `Qwen/Qwen3-14B`), or just what
            to call it when `config_path` is given.
        config_path: a HuggingFace `config.json`, or the folder that holds one.

    Raises:
        InputError: unknown name; missing or nonsensical key, with file and key.
    """
    if config_path is None:
        return _shape(name, ConfigFile.read(find_profile("models", name)))
    path = Path(config_path)
    return _shape(name, ConfigFile.read(path / "config.json" if is_folder(path) else path))


def shape_from_config(name: str, values: Mapping[str, Any], file: Path) -> ModelShape:
    """The shape from the content of a HuggingFace config.

    Args:
        file: where it was read from, for messages.

    Raises:
        InputError: missing or nonsensical key, with file and key.
    """
    return _shape(name, ConfigFile.of(file, values))


def known_models() -> list[str]:
    """Bundled models, by the name of their profile."""
    return known_names("models")


def _shape(name: str, config: ConfigFile) -> ModelShape:
    config.refuse("kv_lora_rank", "multi-head latent attention is not modelled")
    config.refuse("ssm_cfg", "state-space layers are not modelled")
    layers = config.count("num_hidden_layers")
    hidden = config.count("hidden_size")
    heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"must divide num_attention_heads ({heads})", kv_heads)
    if not config.has("head_dim") and hidden % heads:
        raise config.error("num_attention_heads", f"must divide hidden_size ({hidden})", heads)
    dtype_bytes = _dtype_bytes(config)
    weight_bytes, expert_bytes = _quantised_bytes(config, dtype_bytes)
    window_on = config.flag("use_sliding_window", default=True)
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=config.count("head_dim", default=hidden // heads),
        vocab=config.count("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
        max_position_embeddings=_max_positions(config),
        dtype_bytes=dtype_bytes,
        weight_bytes=weight_bytes,
        expert_weight_bytes=expert_bytes,
        sliding_window=config.count("sliding_window", default=0, least=0) if window_on else 0,
        **_feed_forward(config, layers),
    )


def _feed_forward(config: ConfigFile, layers: int) -> dict[str, int]:
    experts = config.count(*_EXPERTS, default=0, least=0)
    if experts < 2:
        return {"intermediate": config.count("intermediate_size")}
    per_token = config.count(*_EXPERTS_PER_TOKEN)
    if per_token > experts:
        raise config.error(config.key(*_EXPERTS_PER_TOKEN), f"more than the {experts} experts", per_token)
    width = config.count("moe_intermediate_size", "intermediate_size")
    shared = config.count(*_SHARED_EXPERTS, default=0, least=0) * width
    step = config.count("interleave_moe_layer_step", default=0, least=0)
    return {
        "intermediate": config.count("intermediate_size_mlp", "intermediate_size", default=width),
        "experts": experts,
        "experts_per_token": per_token,
        "moe_intermediate": width,
        "shared_intermediate": config.count("shared_expert_intermediate_size", default=shared, least=0),
        "interleave_step": step,
        "dense_layers": _dense_layers(config, layers, step),
    }


def _dense_layers(config: ConfigFile, layers: int, interleave_step: int) -> int:
    """Dense layers of a sparse model: the first k, those listed, or all but every n-th."""
    first = config.count("first_k_dense_replace", default=0, least=0)
    if first > layers:
        raise config.error("first_k_dense_replace", f"more than the {layers} layers", first)
    listed = len(config.items("mlp_only_layers"))
    every = interleave_step or config.count("decoder_sparse_step", default=1)
    return max(first, listed, layers - layers // every)


def _dtype_bytes(config: ConfigFile) -> int:
    dtype = config.text("torch_dtype", "dtype", default="bfloat16")
    if dtype not in _DTYPE_BYTES:
        known = ", ".join(_DTYPE_BYTES)
        raise config.error(config.key("torch_dtype", "dtype"), "unknown dtype", dtype, f"use one of {known}")
    return _DTYPE_BYTES[dtype]


def _max_positions(config: ConfigFile) -> int:
    """vLLM's rule: `factor` stretches the limit, except where the config states the stretched one."""
    limit = config.count("max_position_embeddings")
    rope = config.section("rope_scaling") or config.section("rope_parameters")
    if rope is None:
        return limit
    kind = rope.text("rope_type", "type", default="default")
    if kind in _UNSCALED_ROPE:
        return limit
    if kind == "yarn":
        limit = rope.count("original_max_position_embeddings", default=limit)
    return int(limit * rope.number("factor", default=1.0))


def _quantised_bytes(config: ConfigFile, dtype_bytes: int) -> tuple[float, float]:
    """Bytes per weight of (linear layers, routed experts)."""
    quantisation = config.section("quantization_config")
    if quantisation is None:
        return float(dtype_bytes), float(dtype_bytes)
    method = quantisation.text("quant_method")
    if method == "mxfp4":
        return float(dtype_bytes), MXFP4_BYTES
    size = _method_bytes(quantisation, method)
    return size, size


def _method_bytes(quantisation: ConfigFile, method: str) -> float:
    if method in ("fp8", "fbgemm_fp8"):
        return 1.0
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round"):
        return _bits(quantisation, "bits", "w_bit")
    if method == "bitsandbytes":
        return 0.5 if quantisation.flag("load_in_4bit", default=False) else 1.0
    if method == "compressed-tensors":
        return _compressed_tensors_bytes(quantisation)
    if method == "modelopt":
        algorithm = quantisation.text("quant_algo")
        sizes = {"FP8": 1.0, "NVFP4": NVFP4_BYTES}
        if algorithm in sizes:
            return sizes[algorithm]
        raise quantisation.error("quant_algo", "unknown algorithm", algorithm, "use FP8 or NVFP4")
    known = "fp8, gptq, awq, bitsandbytes, compressed-tensors, modelopt or mxfp4"
    raise quantisation.error("quant_method", "unknown quantisation", method, f"use {known}")


def _compressed_tensors_bytes(quantisation: ConfigFile) -> float:
    groups: Mapping[str, Any] = quantisation.values.get("config_groups") or {}
    if not groups:
        raise quantisation.error("config_groups", "missing", fix="name the weights' num_bits")
    group = quantisation.required_section("config_groups").required_section(next(iter(groups)))
    return _bits(group.required_section("weights"), "num_bits")


def _bits(section: ConfigFile, *keys: str) -> float:
    bits = section.count(*keys)
    if bits not in (2, 3, 4, 8):
        raise section.error(section.key(*keys), "unusual number of bits", bits, "use 2, 3, 4 or 8")
    return bits / 8
