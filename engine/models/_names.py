"""Module names in families of HuggingFace checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Names:
    """Module names of a family of checkpoints."""

    embedding: str = "model.embed_tokens"
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Names of three matrices, or of one that holds their rows in this order."""
    out: str = "o_proj"
    post_norm: str = "post_attention_layernorm"
    """Before the feed-forward."""
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    sparse: str = "mlp"
    gate: str = "gate"
    expert: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    stacked: bool = False
    """Whether all experts of a layer are in one tensor; see `stacked_experts`."""


LLAMA = Names()
MIXTRAL = replace(LLAMA, sparse="block_sparse_moe", expert=("w1", "w3", "w2"))
GEMMA = replace(LLAMA, post_norm="pre_feedforward_layernorm")
GPT_OSS = replace(LLAMA, gate="router", stacked=True)
LING = Names(
    embedding="model.word_embeddings",
    attention="attention",
    qkv=("query_key_value",),
    out="dense",
    q_norm="query_layernorm",
    k_norm="key_layernorm",
)
