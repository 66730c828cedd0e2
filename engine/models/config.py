"""Decoder settings from a HuggingFace `config.json`, validated: one dataclass for every architecture.

The sizes are read by `blis_py.models.model_shape`, so simulator and engine cannot disagree on them. An
unsupported feature is refused; nothing is silently ignored. A further architecture
is one function here and one line in `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.profiles import find_profile
from blis_py.models.hf_config import ConfigFile
from blis_py.models.model_shape import ModelShape, known_models, load_model
from blis_py.models.model_types import MASK_BLOCK
from engine.layers.fp8 import MULTIPLE
from engine.layers.mlp import ExpertRouter
from engine.layers.rope import Rope
from engine.models._names import GEMMA, GPT_OSS, LING, LLAMA, MIXTRAL, Names
from engine.models._quantised_config import check_sizes, read_fp8
from engine.models._rope_config import LOCAL_THETA, read_rope, read_rope_of, read_rotary_dim

LLADA2_BLOCK_TOKENS = 32
"""Block size of LLaDA2, which its configs omit."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer with grouped-query attention, RoPE, RMSNorm and SwiGLU."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Width of a dense layer's feed-forward; unused when every layer is sparse."""
    max_position_embeddings: int
    """Longest sequence, RoPE scaling applied."""
    rms_norm_eps: float
    rope: Rope
    rotary_dim: int
    """Leading dimensions of a head that are rotated; the others pass through."""
    tied_embeddings: bool
    names: Names = LLAMA
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    router: ExpertRouter | None = None
    """None = every layer is dense."""
    experts: int = 0
    moe_intermediate_size: int = 0
    """Width of one routed expert."""
    shared_intermediate_size: int = 0
    """Total width of the shared experts; 0 = none."""
    sparse_layers: frozenset[int] = frozenset()
    """Layers with routed experts."""
    swiglu_limit: float = 0.0
    """Above zero: experts with biases, whose SwiGLU is clamped to this (gpt-oss)."""
    windows: tuple[int, ...] = ()
    """Sliding window of each layer in tokens, 0 = none; empty = no layer has one. Their KV is kept whole."""
    sinks: bool = False
    """A learned score per head that takes its share of every softmax."""
    window_rope: Rope | None = None
    """Rotary embedding of layers with a window; None = as the others."""
    attention_scale: float = 0.0
    """Multiplies the scores; 0 = 1 / sqrt(head_dim)."""
    gelu: bool = False
    """GELU, by its tanh approximation, in place of SiLU in dense layers."""
    embedding_scale: float = 1.0
    norms_from_one: bool = False
    """The weights of norms in a checkpoint are distances from one."""
    output_norms: bool = False
    """Norms of the outputs of attention and feed-forward, before these go to the residual stream."""
    exceeds_float16: bool = False
    """Activations exceed the range of float16."""
    mask_block: int = 1
    """Tokens that see each other whatever their order: 1 = causal, more = answers come in such blocks."""
    fp8: bool = False
    """Whether the matrices of attention, dense layers and shared experts are in float8."""
    extra_layers: int = 0
    """Multi-token prediction layers a checkpoint holds beyond `num_layers`; not loaded."""

    @property
    def kv_elements_per_token(self) -> int:
        """Keys and values of all layers for one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def load_model_config(model: Path | str) -> ModelConfig:
    """Read the architecture of a model.

    Args:
        model: a checkpoint folder, its config.json, or the name of a bundled model (`qwen3-0.6b`).

    Raises:
        InputError: no such model; unknown architecture; a key missing or out of range; a feature the
            decoder does not have.
    """
    file = find_config(model)
    config = ConfigFile.read(file)
    architecture = _architecture(config)
    _refuse_unsupported(config)
    fp8 = read_fp8(config)
    shape = load_model(str(model), file)
    if fp8:
        sizes = {"hidden_size": shape.hidden, "intermediate_size": shape.intermediate}
        check_sizes(config, sizes | {"head_dim": shape.heads * shape.head_dim}, MULTIPLE)
    return ModelConfig(
        architecture=architecture,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.max_position_embeddings,
        rms_norm_eps=config.number("rms_norm_eps"),
        rope=read_rope(config),
        rotary_dim=read_rotary_dim(config, shape.head_dim),
        tied_embeddings=shape.tied_embeddings,
        mask_block=_mask_block(config, architecture),
        windows=_layer_windows(config, shape),
        fp8=fp8,
        extra_layers=config.count("num_nextn_predict_layers", default=0, least=0),
        **ARCHITECTURES[architecture](config, shape),
    )


def find_config(model: Path | str) -> Path:
    """The config.json of a folder, a file, or a bundled model.

    Raises:
        InputError: none of these.
    """
    path = Path(model)
    if path.is_dir():
        return path / "config.json"
    if path.is_file():
        return path
    try:
        return find_profile("models", str(model))
    except InputError:
        fix = f"give a folder with config.json, or one of {', '.join(known_models())}"
        problem = "neither a folder nor a bundled model"
        raise InputError(problem, key="--model", value=str(model), fix=fix) from None


def _architecture(config: ConfigFile) -> str:
    names = config.texts("architectures")
    if not names:
        raise config.error("architectures", "missing", fix="use a complete HuggingFace config.json")
    if names[0] not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise config.error("architectures", "unknown architecture", names[0], f"use one of {known}")
    return str(names[0])


def _refuse_unsupported(config: ConfigFile) -> None:
    key = config.key("hidden_act", "hidden_activation")
    activation = config.text(key, default="silu")
    if activation != ("gelu_pytorch_tanh" if key == "hidden_activation" else "silu"):
        raise config.error(key, "activation not supported", activation, "use a model with silu")
    for key in ("mlp_bias", "norm_head"):
        if config.flag(key, default=False):
            raise config.error(key, "not supported", True, "use another model")


def _layer_windows(config: ConfigFile, shape: ModelShape) -> tuple[int, ...]:
    """The window of each layer: as listed, or of all but every n-th (Gemma 3), or of the last ones."""
    if not shape.windowed_layers:
        return ()
    window, full = shape.sliding_window, shape.layers - shape.windowed_layers
    kinds = config.texts("layer_types")
    if "chunked_attention" in kinds:
        raise config.error("layer_types", "not supported", "chunked_attention", "use another model")
    if kinds:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if full and not config.has("max_window_layers"):
        every = shape.layers // full
        return tuple(window if (index + 1) % every else 0 for index in range(shape.layers))
    return tuple(0 if index < full else window for index in range(shape.layers))


def _mask_block(config: ConfigFile, architecture: str) -> int:
    """The value of a section of our own, or of the architecture."""
    section = config.section(MASK_BLOCK)
    if section is not None:
        return section.count("block_size")
    return LLADA2_BLOCK_TOKENS if architecture == "LLaDA2MoeModelLM" else 1


def _llama(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    bias = config.flag("attention_bias", default=False)
    return {"qkv_bias": bias, "out_bias": bias}


def _mistral(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    return {}


def _seed_oss(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    flags = ("attention_bias", "attention_out_bias")
    qkv, out = (config.flag(key, default=default) for key, default in zip(flags, (True, False), strict=True))
    return {"qkv_bias": qkv, "out_bias": out}


def _qwen2(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    return {"qkv_bias": True}


def _qwen3(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    return {"qk_norm": True, **_llama(config, shape)}


def _mixtral(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    router = ExpertRouter(top_k=shape.experts_per_token, renormalize=True)
    return {"names": MIXTRAL, "router": router, **_experts(config, shape, range(shape.layers))}


def _qwen3_moe(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    dense, step = config.items("mlp_only_layers"), config.count("decoder_sparse_step", default=1)
    sparse = (layer for layer in range(shape.layers) if layer not in dense and (layer + 1) % step == 0)
    renormalize = config.flag("norm_topk_prob", default=False)
    router = ExpertRouter(top_k=shape.experts_per_token, renormalize=renormalize)
    return {"router": router, **_qwen3(config, shape), **_experts(config, shape, sparse)}


def _ling(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    """Ling 2.0 (Bailing MoE V2); LLaDA2 is the same network with another mask."""
    if config.text("score_function", default="sigmoid") != "sigmoid":
        raise config.error("score_function", "not supported", config.values["score_function"], "use sigmoid")
    if not config.flag("moe_router_enable_expert_bias", default=True):
        raise config.error("moe_router_enable_expert_bias", "not supported", False, "use another model")
    groups, chosen = config.count("n_group"), config.count("topk_group")
    size = shape.experts // groups
    if shape.experts % groups or size < 2:
        problem = f"must divide num_experts ({shape.experts}) into groups of at least 2"
        raise config.error("n_group", problem, groups)
    if chosen > groups or chosen * size < shape.experts_per_token:
        problem = f"must be at most n_group and offer {shape.experts_per_token} experts"
        raise config.error("topk_group", problem, chosen)
    router = ExpertRouter(
        top_k=shape.experts_per_token,
        renormalize=config.flag("norm_topk_prob", default=True),
        sigmoid=True,
        num_groups=groups,
        top_k_groups=chosen,
        scale=config.number("routed_scaling_factor"),
    )
    first = config.count("first_k_dense_replace", default=0, least=0)
    return {
        "names": LING,
        "qkv_bias": config.flag("use_qkv_bias", default=False),
        "out_bias": config.flag("use_bias", default=False),
        "qk_norm": config.flag("use_qk_norm", default=True),
        "router": router,
        **_experts(config, shape, range(first, shape.layers)),
    }


def _gemma3(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    """Gemma 3 as a language model alone."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if config.values.get(key):
            raise config.error(key, "not supported", config.values[key], "use another model")
    window_rope = read_rope_of(config, "sliding_attention", "rope_local_base_freq", LOCAL_THETA)
    return {
        "names": GEMMA,
        "qk_norm": True,
        "gelu": True,
        "norms_from_one": True,
        "output_norms": True,
        "exceeds_float16": True,
        "embedding_scale": shape.hidden**0.5,
        "attention_scale": config.number("query_pre_attn_scalar", default=256.0) ** -0.5,
        "window_rope": window_rope,
        **_llama(config, shape),
    }


def _gpt_oss(config: ConfigFile, shape: ModelShape) -> dict[str, Any]:
    """Clamped experts with biases, and sinks; the limit of 7 is in the library's code, not in the config."""
    return {
        "names": GPT_OSS,
        "router": ExpertRouter(top_k=shape.experts_per_token, renormalize=True, bias=True),
        "sinks": True,
        "swiglu_limit": config.number("swiglu_limit", default=7.0),
        **_llama(config, shape),
        **_experts(config, shape, range(shape.layers)),
    }


def _experts(config: ConfigFile, shape: ModelShape, sparse_layers: Iterable[int]) -> dict[str, Any]:
    if not shape.is_moe:
        key = config.key("num_experts", "num_local_experts")
        raise config.error(key, "must be at least 2 in a mixture of experts", config.values.get(key))
    return {
        "experts": shape.experts,
        "moe_intermediate_size": shape.moe_intermediate,
        "shared_intermediate_size": shape.shared_intermediate,
        "sparse_layers": frozenset(sparse_layers),
    }


ARCHITECTURES: dict[str, Callable[[ConfigFile, ModelShape], dict[str, Any]]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MinistralForCausalLM": _mistral,
    "SeedOssForCausalLM": _seed_oss,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Gemma3ForCausalLM": _gemma3,
    "GptOssForCausalLM": _gpt_oss,
    "BailingMoeV2ForCausalLM": _ling,
    "LLaDA2MoeModelLM": _ling,
}
"""Name in `architectures` -> the fields of `ModelConfig` that differ from the plainest decoder."""
