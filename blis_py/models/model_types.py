"""Supported keys of `config.json` by model type: which are read, which have no effect, which are not
modelled.

A config is understood as a whole, or the deviation is reported. A key is read (`READ`, and those of the
model's own type), or is known to affect neither sizes nor time (`WITHOUT_EFFECT`), or describes something
that is not modelled (`NOT_MODELLED`): then the model is rejected. Remaining keys are listed in a note, and
so is a type that is not in `MODEL_TYPES`. A new type is one line there, once its keys and its size are
checked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from blis_py.models.hf_config import ConfigFile, names_of


class ModelType(NamedTuple):
    """Differences between the configs of a type and those of a plain decoder.

    Unless keys say otherwise each is a decoder with grouped-query attention and gated feed-forward layers.
    """

    reads: Collection[str] = ()
    """Type-specific keys that are read."""
    without_effect: Collection[str] = ()
    """Type-specific keys without effect."""
    shared_experts: int = 0
    """Shared experts, as wide as a routed one, that are not in the config."""
    window_every: int = 1
    """If the config does not list the layers: all but every n-th are windowed; 1 = all of them."""
    tied_embeddings: bool = False
    """Default if the config does not state it."""
    routing: str = "skewed"
    """Distribution of tokens over experts, unless the router is trained to balance it."""
    router_fp32: bool = False
    """Whether engines multiply by the router in FP32."""
    sparse: bool = False
    """Whether an indexer selects the tokens that attention reads."""
    stretched: bool = False
    """Whether `max_position_embeddings` includes the stretching by RoPE scaling, for any rule."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Values of the library's class for keys that published configs leave out."""
    gated: bool = True
    """Whether feed-forward layers have a gate: three matrices, not two."""
    images_off: bool = False
    """Whether engines serve its text alone by default (`ModelConfig` of SGLang)."""


_WINDOWS = ("layer_types", "sliding_window")
_QWEN_WINDOWS = (*_WINDOWS, "use_sliding_window", "max_window_layers")
_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
)
"""The library writes both its own names and those of the type."""
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DEEPSEEK = ModelType(
    reads=(
        *_EXPERTS,
        *_LATENT,
        "moe_intermediate_size",
        "n_shared_experts",
        "first_k_dense_replace",
    ),
    without_effect=("moe_layer_freq", "qk_head_dim"),
)
_INDEXED = ModelType(
    reads=(
        *_DEEPSEEK.reads,
        *("index_n_heads", "index_head_dim", "index_topk"),
        *("indexer_types", "index_topk_freq", "index_skip_topk_offset", "layer_types"),
    ),
    without_effect=(
        *_DEEPSEEK.without_effect,
        *("indexer_rope_interleave", "index_share_for_mtp_iteration", "mlp_layer_types"),
    ),
    sparse=True,
)
_GATED_DELTA = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "full_attention_interval",
    "mamba_ssm_dtype",
    "attn_output_gate",
    "layer_types",
)
_QWEN_HYBRID = ModelType(
    reads=(
        *_EXPERTS,
        *_GATED_DELTA,
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "decoder_sparse_step",
        "mlp_only_layers",
    )
)
_QWEN_EXPERTS = ModelType(
    reads=(
        *(*_EXPERTS, *_QWEN_WINDOWS, "moe_intermediate_size", "shared_expert_intermediate_size"),
        *("decoder_sparse_step", "mlp_only_layers"),
    )
)
_QWEN_IMAGES = ("vision_start_token_id", "vision_end_token_id")
_COMPRESSED = ModelType(
    reads=(
        *_EXPERTS,
        *("moe_intermediate_size", "n_shared_experts", "expert_dtype", "hc_mult"),
        *("compress_ratios", "q_lora_rank", "o_lora_rank", "o_groups", "qk_rope_head_dim", "sliding_window"),
        *("index_n_heads", "index_head_dim", "index_topk"),
    ),
    without_effect=(
        *("hc_eps", "hc_sinkhorn_iters", "num_hash_layers", "compress_rope_theta", "swiglu_limit"),
    ),
)
_STATE_SPACE = ModelType(
    reads=(
        *_EXPERTS,
        *("hybrid_override_pattern", "layers_block_type"),
        *("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
        *("mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
        *("moe_intermediate_size", "moe_latent_size", "n_shared_experts"),
        "moe_shared_expert_intermediate_size",
    ),
    without_effect=(
        *("chunk_size", "expand", "mamba_hidden_act", "mamba_proj_bias", "mlp_hidden_act", "use_conv_bias"),
        *("num_logits_to_keep", "rescale_prenorm_residual", "residual_in_fp32", "use_mamba_kernels"),
        *("time_step_floor", "time_step_max", "time_step_min", "time_step_limit", "time_step_rank"),
        *("layer_norm_epsilon", "moe_shared_expert_overlap"),
        *("mtp_hybrid_override_pattern", "mtp_layers_block_type"),
    ),
    routing="balanced",
    gated=False,
)
_KIMI_LINEAR = ModelType(
    reads=(
        *_DEEPSEEK.reads,
        *("num_shared_experts", "linear_attn_config", "routed_expert_hidden_size", "mla_use_output_gate"),
        "moe_router_activation_func",
    ),
    without_effect=(
        *("mla_use_nope", "use_grouped_topk", "num_expert_group", "moe_layer_freq", "latent_moe_use_norm"),
        *("activation_situ_beta", "activation_situ_linear_beta", "attn_res_block_size"),
    ),
)
_GEMMA_4 = ModelType(
    reads=(
        *(*_EXPERTS, *_WINDOWS, "sliding_window_pattern"),
        *("enable_moe_block", "moe_intermediate_size", "global_head_dim", "num_global_key_value_heads"),
    ),
    without_effect=("attention_k_eq_v",),
    window_every=6,
    tied_embeddings=True,
)
_MIMO_V2 = ModelType(
    reads=(
        *(*_EXPERTS, *_WINDOWS, "moe_intermediate_size", "moe_layer_freq", "hybrid_layer_pattern"),
        *("v_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim"),
        *("swa_v_head_dim", "n_shared_experts"),
    ),
    without_effect=(
        *("sliding_window_size", "swa_rope_theta", "attention_value_scale", "layernorm_epsilon"),
        *("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "attention_chunk_size"),
    ),
)
_STEP = ModelType(
    reads=(
        *(*_EXPERTS, *_WINDOWS, "moe_num_experts", "moe_top_k", "moe_intermediate_size", "moe_layers_enum"),
        *("share_expert_dim", "share_expert_dims", "num_attention_groups", "attention_other_setting"),
    ),
    without_effect=(
        *("att_impl_type", "max_seq_len", "moe_every_n_layer", "moe_router_activation", "need_fp32_gate"),
        *("moe_router_scaling_factor", "norm_expert_weight", "partial_rotary_factors", "swiglu_limits"),
        *("swiglu_limits_shared", "use_head_wise_attn_gate", "use_moe", "use_moe_router_bias"),
        *("use_rope_layers", "yarn_only_types", "zero_centered"),
    ),
    routing="balanced",
    stretched=True,
)
_GRANITE_HYBRID = ModelType(
    reads=(
        *(*_EXPERTS, "shared_intermediate_size", "layer_types", "mamba_n_heads", "mamba_d_head"),
        *("mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_ssm_dtype"),
    ),
    without_effect=(
        *("mamba_expand", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias"),
        *("position_embedding_type", "normalization_function", "time_step_limit", "time_step_max"),
        *("time_step_min", "init_method"),
    ),
)
_ERNIE = ModelType(
    reads=(
        *("moe_num_experts", "moe_k", "moe_intermediate_size", "moe_num_shared_experts"),
        *("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
    ),
    without_effect=("moe_capacity", "moe_gate", "moe_use_aux_free", "moe_norm_min"),
)
_LING = ModelType(
    reads=(
        *_EXPERTS,
        "moe_intermediate_size",
        "num_shared_experts",
        "moe_shared_expert_intermediate_size",
        "first_k_dense_replace",
    )
)

MODEL_TYPES: Mapping[str, ModelType] = {
    "llama": ModelType(reads=_WINDOWS),
    "mistral": ModelType(reads=_WINDOWS),
    "ministral": ModelType(reads=_WINDOWS),
    "seed_oss": ModelType(),
    "mixtral": ModelType(reads=(*_EXPERTS, *_WINDOWS)),
    "qwen2": ModelType(reads=_QWEN_WINDOWS),
    "qwen3": ModelType(reads=_QWEN_WINDOWS),
    "qwen3_moe": _QWEN_EXPERTS,
    "qwen3_vl_text": ModelType(reads=_QWEN_WINDOWS, without_effect=_QWEN_IMAGES),
    "qwen3_vl_moe_text": _QWEN_EXPERTS._replace(without_effect=_QWEN_IMAGES),
    "gemma2": ModelType(reads=_WINDOWS, window_every=2, tied_embeddings=True),
    "gemma3_text": ModelType(
        reads=(*_WINDOWS, "sliding_window_pattern"),
        window_every=6,
        tied_embeddings=True,
        stretched=True,
        defaults={
            **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
            **{"vocab_size": 262_208, "max_position_embeddings": 131_072, "sliding_window": 4096},
        },
        images_off=True,
    ),
    "cohere": ModelType(without_effect=("logit_scale",), tied_embeddings=True),
    "glm4_moe": ModelType(
        reads=(
            *_EXPERTS,
            "moe_intermediate_size",
            "n_shared_experts",
            "first_k_dense_replace",
        )
    ),
    "gpt_oss": ModelType(
        reads=(*_EXPERTS, *_WINDOWS),
        without_effect=("initial_context_length", "swiglu_limit"),
        window_every=2,
        routing="steep",
    ),
    "llama4_text": ModelType(
        reads=(
            *_EXPERTS,
            "interleave_moe_layer_step",
            "moe_layers",
            "intermediate_size_mlp",
            "attention_chunk_size",
            "no_rope_layers",
            "layer_types",
        ),
        without_effect=("attn_temperature_tuning", "attn_scale", "floor_scale", "for_llm_compressor"),
        shared_experts=1,
        window_every=4,
        images_off=True,
    ),
    "minimax_m2": ModelType(
        reads=(*_EXPERTS, "shared_intermediate_size", "sliding_window", "attn_type_list", "qk_norm_type"),
        without_effect=("use_routing_bias",),
        router_fp32=True,
    ),
    "minimax_m3": ModelType(
        reads=(
            *_EXPERTS,
            *("moe_intermediate_size", "n_shared_experts", "shared_intermediate_size"),
            *("dense_intermediate_size", "first_k_dense_replace", "sparse_attention_config"),
        ),
        without_effect=(
            *("use_routing_bias", "moe_layer_freq", "use_gemma_norm", "swiglu_alpha", "swiglu_limit"),
            "qk_norm_type",
        ),
        router_fp32=True,
    ),
    "gemma4_text": _GEMMA_4,
    "nemotron_h": _STATE_SPACE,
    "kimi_linear": _KIMI_LINEAR,
    "deepseek_v4": _COMPRESSED,
    "deepseek_ref": _COMPRESSED,
    "mimo": ModelType(reads=_QWEN_WINDOWS, without_effect=("use_mrope",)),
    "glm4_moe_lite": _DEEPSEEK,
    "phi3": ModelType(reads=_WINDOWS),
    "ernie4_5_moe": _ERNIE,
    "granitemoehybrid": _GRANITE_HYBRID,
    "mimo_v2_flash": _MIMO_V2,
    "mimo_v2": _MIMO_V2,
    "step3p5": _STEP,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v32": _INDEXED,
    "glm_moe_dsa": _INDEXED,
    "qwen3_next": _QWEN_HYBRID._replace(defaults={"attn_output_gate": True}),
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_5_moe_text": _QWEN_HYBRID,
    "bailing_moe": _LING,
    "bailing_moe_v2": _LING,
    "llada2_moe": _LING,
}
"""`model_type` of the (language part of the) config -> its description."""

ANY_TYPE = ModelType(reads=frozenset(key for known in MODEL_TYPES.values() for key in known.reads))
"""Fallback for an unknown type: keys have the meaning they have elsewhere."""


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


MASK_BLOCK = "block_diffusion"
"""A section of our own: with its `block_size`, any decoder answers in blocks."""
READ = frozenset({MASK_BLOCK}) | _keys(
    """
    model_type architectures text_config vision_config audio_config quantization_config compression_config
    spatial_merge_size
    num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size
    scoring_func score_function num_nextn_predict_layers mtp_num_hidden_layers mtp_use_dedicated_embeddings
    vocab_size tie_word_embeddings max_position_embeddings rope_scaling rope_parameters torch_dtype dtype
    """
)
"""Keys that are read for every type."""

_OF_THE_NETWORK = _keys(
    """
    hidden_act hidden_activation activation_function initializer_range rms_norm_eps layer_norm_eps norm_eps
    attention_bias attention_dropout mlp_bias qkv_bias use_qkv_bias use_bias use_qk_norm qk_norm
    attention_out_bias lm_head_bias embd_pdrop resid_pdrop hidden_dropout embedding_dropout output_dropout
    rope_theta rope_local_base_freq rope_interleave partial_rotary_factor rotary_dim rotary_emb_base
    original_max_position_embeddings query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping
    use_bidirectional_attention attention_multiplier embedding_multiplier residual_multiplier logits_scaling
    vocab_size_per_layer_input output_gate_type use_rmsnorm norm_head norm_softmax tie_encoder_decoder
    """
)
_OF_THE_ROUTER = _keys(
    """
    norm_topk_prob n_group topk_group topk_method routed_scaling_factor
    router_aux_loss_coef router_jitter_noise router_dtype moe_router_dtype moe_router_enable_expert_bias
    moe_router_enable_routed_scaling moe_router_topk_scaling_factor moe_router_enable_shared_expert
    output_router_logits aux_loss_alpha seq_aux moe_renormalize router_bias ep_size
    """
)
_OF_FURTHER_TOKENS = _keys(
    """
    mtp_transformer_layers num_mtp_modules use_mtp mtp_loss_scaling_factor
    """
)
"""Multi-token prediction: in the checkpoint, but unused without speculative decoding."""
_OF_THE_LIBRARY = _keys(
    """
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id
    image_token_id video_token_id audio_token_id decoder_start_token_id forced_bos_token_id
    forced_eos_token_id bad_words_ids suppress_tokens begin_suppress_tokens tokenizer_class
    transformers_version auto_map use_cache pretraining_tp _name_or_path _attn_implementation
    _attn_implementation_autoset attn_implementation torchscript return_dict return_dict_in_generate
    output_attentions output_hidden_states output_scores use_bfloat16 tf_legacy_loss chunk_size_feed_forward
    prefix problem_type pruned_heads id2label label2id num_labels finetuning_task task_specific_params
    remove_invalid_values is_decoder add_cross_attention do_sample early_stopping num_beams num_beam_groups
    num_return_sequences diversity_penalty length_penalty repetition_penalty temperature top_k top_p
    typical_p min_length max_length no_repeat_ngram_size encoder_no_repeat_ngram_size
    exponential_decay_length_penalty cross_attention_hidden_size language_model_type unsloth_version
    unsloth_fixed _source _not_in_source _commit_hash max_sequence_length model_max_length
    cache_implementation
    """
)
"""Tokens, generation, housekeeping."""
WITHOUT_EFFECT = _OF_THE_NETWORK | _OF_THE_ROUTER | _OF_FURTHER_TOKENS | _OF_THE_LIBRARY
"""Keys that affect neither sizes nor time, for any type."""

_LINEAR = "layers of linear attention are not modelled"
_SSM = "state-space layers are not modelled"
_LAYERS_DIFFER = "layers of different shapes are not modelled"

NOT_MODELLED: Mapping[str, str] = {
    "lightning_attention": _LINEAR,
    "ssm_cfg": _SSM,
    "state_size": _SSM,
    "mamba_d_ssm": _SSM,
    "attn_layer_period": _SSM,
    "lru_width": "recurrent layers are not modelled",
    "conv_L_cache": "convolution layers are not modelled",
    "num_kv_shared_layers": "layers that share a KV cache are not modelled",
    "cla_share_factor": "layers that share a KV cache are not modelled",
    "hidden_size_per_layer_input": "embeddings per layer are not modelled",
    "altup_num_inputs": "alternating updates are not modelled",
    "use_double_wide_mlp": _LAYERS_DIFFER,
    "block_configs": _LAYERS_DIFFER,
    "zero_expert_num": "experts that compute nothing are not modelled",
    "cross_attention_layers": "cross-attention is not modelled",
    "is_encoder_decoder": "encoder-decoder models are not modelled",
    "encoder_layers": "encoder-decoder models are not modelled",
}
"""Keys that, unless empty, describe something that cannot be priced, with the reason. The first one
counts."""

REFUSED_TYPES: Mapping[str, str] = {
    "minimax": _LINEAR,
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba2"), _SSM),
    **dict.fromkeys(
        ("falcon", "gpt2", "gpt_neox", "nemotron", "opt", "phi", "starcoder2"),
        "feed-forward layers without a gate are not modelled",
    ),
    "gemma3n_text": "embeddings per layer are not modelled",
}
"""Model types that cannot be priced, if none of their keys is already in `NOT_MODELLED`."""


def understood(config: ConfigFile, name: str) -> tuple[ConfigFile, ModelType, list[str]]:
    """The config reduced to the keys that are read, the description of its type, and notes on the rest.

    Args:
        name: name of the model, for the notes.

    Raises:
        InputError: the model has a part that is not modelled; names its key.
    """
    for key, problem in NOT_MODELLED.items():
        if config.values.get(key):
            raise config.error(key, problem, _scalar(config.values[key]), _FIX)
    stated = config.text("model_type", default="")
    if stated in REFUSED_TYPES:
        raise config.error("model_type", REFUSED_TYPES[stated], stated, _FIX)
    model_type, notes = MODEL_TYPES.get(stated, ANY_TYPE), []
    if model_type is ANY_TYPE:
        whose = f"the model_type {stated!r} of {name} is not known" if stated else f"{name} has no model_type"
        notes.append(f"{whose}: priced as a decoder of grouped-query attention and gated feed-forward layers")
    unknown = sorted(key for key, value in config.values.items() if value and not _known(key, model_type))
    has_experts = any(config.values.get(key) for key in _EXPERTS[:3])
    for key in unknown:
        if key in ANY_TYPE.reads:
            raise config.error(
                key, f"is not known of the model_type {stated!r}", _scalar(config.values[key]), _FIX
            )
        if not has_experts and re.search("expert|moe", key):
            problem = "may describe experts, of which none are understood"
            raise config.error(key, problem, _scalar(config.values[key]), _FIX)
    if unknown:
        stated = f"keys of {config.file.name} that are not known, taken to change nothing"
        notes.append(f"{stated}: {names_of(unknown)}")
    if config.has("audio_config"):
        notes.append(f"{name} has an encoder of sound: its weights and its time are left out")
    stated_values = {key: value for key, value in config.values.items() if value is not None}
    read = {key: value for key, value in stated_values.items() if key in READ or key in model_type.reads}
    return replace(config, values={**model_type.defaults, **read}), model_type, notes


_FIX = "use another model"


def _known(key: str, model_type: ModelType) -> bool:
    of_type = key in model_type.reads or key in model_type.without_effect
    return of_type or key in READ or key in WITHOUT_EFFECT or key in NOT_MODELLED


def _scalar(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else None
