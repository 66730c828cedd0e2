"""Flags of SGLang's and TensorRT-LLM's servers that have no setting here, as in `vllm_flags`.

Those that have one are aliases of it (`--mem-fraction-static`), dashes and underscores alike.
"""

from __future__ import annotations

from blis_py.cli.flags.flag import Flags

UNCHANGING: dict[str, dict[str, tuple[str, ...]]] = {
    "SGLang": {
        "--deepep-mode": ("auto",),
        "--max-total-tokens": (),
        "--moe-a2a-backend": ("none",),
        "--num-continuous-decode-steps": ("1",),
        "--schedule-conservativeness": ("1", "1.0"),
        "--speculative-algorithm": (),
    },
    "TensorRT-LLM": {"--num-postprocess-workers": ("0",)},
    "SGLang and TensorRT-LLM": {"--pp": ("1",), "--pp-size": ("1",)},
}
"""Values that are what is simulated in any case, by engine; every other one asks for something else."""
_STAGES = "drop it: an instance has no pipeline stages here; --tp divides a model, --instances adds servers"
INSTEAD = {
    **dict.fromkeys(("--pp", "--pp-size", "--pipeline-parallel-size"), _STAGES),
    "--max-total-tokens": "give the number of blocks with --num-kv-blocks",
    "--moe-a2a-backend": "give --moe-backend deepep",
}
SWITCHES = {
    "--disable-radix-cache": ("scheduler.prefix_cache", "none"),
    "--enable-mixed-chunk": ("scheduler.batch_former", "running-first"),
}
"""SGLang's switches and the settings they stand for; decodes and prompts together are steps like vLLM's."""
SGLANG_REPLICATED, TRTLLM_REPLICATED = "--enable-dp-attention", "--enable-attention-dp"
REPLICATED = (SGLANG_REPLICATED, TRTLLM_REPLICATED)
"""Attention DP, of as many replicas as `--dp-size` or `--attention-dp` says; of TensorRT-LLM alone, one on
every GPU."""
PROMPTS = "--max-prefill-tokens"
_CHUNKS = ("--chunked-prefill-size", "--max-num-batched-tokens")
_LARGEST_CHUNK = 16384
"""SGLang's largest default of `--chunked-prefill-size`."""
WITHOUT_EFFECT = ("--nnodes", "--node-rank", "--dist-init-addr", "--watchdog-timeout", "--log-level")
IDLE = ("--enable-metrics", "--skip-server-warmup", "--disable-shared-experts-fusion")


def prompt_budget(flags: Flags) -> str | None:
    """The note on `--max-prefill-tokens` below the chunk; None where it changes nothing."""
    tokens = flags.get(PROMPTS)
    chunk = next((flags[name] for name in _CHUNKS if name in flags), _LARGEST_CHUNK)
    if tokens is None or tokens >= chunk:
        return None
    return f"{PROMPTS} is not modelled: a step of SGLang takes no prompt beyond {tokens:,} tokens"
