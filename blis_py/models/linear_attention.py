"""Layers with a state of constant size for each sequence, instead of a KV cache.

gdn     gated delta rule: Qwen3-Next, Qwen3.5, Qwen3.6
kda     Kimi delta attention: a decay for each channel of a head, from a projection of low rank
mamba2  state space: a state of `key_dim` for each channel of a head; groups share keys and queries
"""

from __future__ import annotations

from blis_py.core.light_dataclass import dataclass
from blis_py.models.hf_config import ConfigFile

LINEAR_TITLES = {
    "gdn": "gated delta rule",
    "kda": "Kimi delta attention",
    "mamba2": "state-space layers (Mamba-2)",
}
"""Kind -> its name, for messages."""
_STATE_DTYPE = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A matrix of state per head and sequence, and the end of the sequence for a short convolution."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    state_bytes: int
    """Bytes of an element of the state."""
    kind: str = "gdn"
    gate_rank: int = 0
    """Rank of the projection of a decay for each channel; 0 = decays of whole heads."""
    bounded: bool = False
    """Whether decays have a lower bound."""

    @property
    def convolved(self) -> int:
        """Channels that pass the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def projected(self) -> int:
        """Width of the input projection: the convolved channels, an output gate, one or two gates per
        head, and the decays' first factor."""
        gates = 2 if self.kind == "gdn" else 1
        return self.convolved + self.value_heads * (self.value_dim + gates) + self.gate_rank

    def parameters(self, hidden: int) -> int:
        """Weights of one layer."""
        return hidden * self.projected + self.value_heads * self.value_dim * hidden + self.small_parameters

    @property
    def small_parameters(self) -> int:
        """Convolution, decay, bias and norm, which are never quantised, and the decays' second factor."""
        decays = self.gate_rank * self.value_heads * self.value_dim
        return self.convolved * self.conv_kernel + 2 * self.value_heads + self.value_dim + decays

    @property
    def sequence_bytes(self) -> int:
        """State of one sequence in all layers."""
        return self.layers * self.layer_bytes(1)

    def layer_bytes(self, tp: int) -> int:
        """State of one sequence in one layer on one rank. Keys that groups of heads share are on every rank
        that has some of those heads.

        Args:
            tp: ranks that share the heads of a request.
        """
        state = self.value_heads * self.key_dim * self.value_dim * self.state_bytes
        convolved = self.convolved
        if self.kind == "mamba2" and self.key_heads % tp:
            convolved += 2 * (tp - self.key_heads) * self.key_dim
        return (state + convolved * (self.conv_kernel - 1) * 2) // tp


def read_linear(config: ConfigFile, layers: int, dtype_bytes: int) -> LinearAttention | None:
    """None if every layer has a KV cache.

    A state is in the format that the config states, else in that of the activations (vLLM: a pool of
    Qwen3-Next has pages of 544 tokens, which hold a state of 2 bytes an element); of Kimi delta attention
    always in FP32.

    Args:
        layers: those with a state.
        dtype_bytes: of an activation.
    """
    if not layers:
        return None
    stated = config.text(*_STATE_DTYPE, default="")
    state_bytes = {"float32": 4, "": dtype_bytes}.get(stated, 2)
    if config.has("mamba_num_heads") or config.has("mamba_n_heads"):
        return _state_space(config, layers, state_bytes)
    if config.has("linear_attn_config"):
        return _kimi(config.required_section("linear_attn_config"), layers)
    return LinearAttention(
        layers=layers,
        key_heads=config.count("linear_num_key_heads"),
        value_heads=config.count("linear_num_value_heads"),
        key_dim=config.count("linear_key_head_dim"),
        value_dim=config.count("linear_value_head_dim"),
        conv_kernel=config.count("linear_conv_kernel_dim"),
        state_bytes=state_bytes,
    )


def _state_space(config: ConfigFile, layers: int, state_bytes: int) -> LinearAttention:
    return LinearAttention(
        layers=layers,
        key_heads=config.count("n_groups", "mamba_n_groups"),
        value_heads=config.count("mamba_num_heads", "mamba_n_heads"),
        key_dim=config.count("ssm_state_size", "mamba_d_state"),
        value_dim=config.count("mamba_head_dim", "mamba_d_head"),
        conv_kernel=config.count("conv_kernel", "mamba_d_conv"),
        state_bytes=state_bytes,
        kind="mamba2",
    )


def _kimi(section: ConfigFile, layers: int) -> LinearAttention:
    heads, dim = section.count("num_heads"), section.count("head_dim")
    return LinearAttention(
        layers=layers,
        key_heads=heads,
        value_heads=heads,
        key_dim=dim,
        value_dim=dim,
        conv_kernel=section.count("short_conv_kernel_size"),
        state_bytes=4,
        kind="kda",
        gate_rank=dim,
        bounded=section.has("gate_lower_bound"),
    )
