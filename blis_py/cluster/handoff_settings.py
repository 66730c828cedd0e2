"""Settings of the hand-over between prefill and decode; each is registered here, once.

Annotations are evaluated here and no later, because the configuration reads them. The groups are parts of
`topology.Disaggregation` and of the configuration section; they have no methods.
"""

from blis_py.core.bounds import MAX_TOKENS
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting

GPUS_PER_NODE = 8
"""GPUs of a node by default."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PairChoice:
    """Choice of the requests that prefill and decode apart, and of their decode instance."""

    threshold_tokens: int = setting(
        16,
        least=0,
        most=MAX_TOKENS,
        flag="--pd-prefix-threshold",
        help="With prefix-threshold: prompt tokens that are not cached.",
    )
    """With `prefix-threshold`: prompts with more tokens, net of those cached on the decode instance."""
    load_threshold: int = setting(
        1, least=0, most=MAX_TOKENS, flag="--pd-load-threshold", help="With load: requests in flight."
    )
    """With `load`: requests in flight at the decode instance, from which on it gets help."""
    pair_order: str = setting(
        "decode-first",
        choices=("decode-first", "prefill-first"),
        flag="--pd-pair-order",
        help="decode-first (llm-d, BLIS), or prefill-first (Dynamo).",
    )
    """Choice of the decode instance: `decode-first`, on arrival; `prefill-first`, after the prefill."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Transfers:
    """Time of the transfers, and their room on the decode instance."""

    overlap: str | None = setting(
        None,
        choices=("none", "chunk", "layer"),
        flag="--pd-overlap",
        help="What is sent during the prefill: none, each chunk, or each layer.",
    )
    """`none`: the KV is sent after the prefill; `chunk`: each chunk of a prompt when it is computed; `layer`:
    each layer of it; null = as the hand-over does it."""
    reserved_decode_tokens: int = setting(
        512, least=0, most=MAX_TOKENS, flag="--num-reserved-decode-tokens", help="With sglang, of a request."
    )
    """With `sglang`: tokens that a decode instance keeps free for each request that it has."""
    max_tokens_in_buffer: int | None = setting(
        None,
        least=1,
        most=MAX_TOKENS,
        flag="--max-tokens-in-buffer",
        help="With trtllm: prompt tokens received at the same time.",
    )
    """With the hand-overs of TensorRT-LLM: prompt tokens, in whole blocks, whose KV a decode instance
    receives at the same time; a longer prompt comes alone; null = no limit."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AfterLease:
    """Failed fetches."""

    load_failure_policy: str = setting(
        "fail",
        choices=("fail", "recompute"),
        flag="--kv-load-failure-policy",
        help="After a lease: fail or recompute.",
    )
    """With `vllm`, what follows an expired lease: the request fails, or is computed again."""
