"""Flags of SGLang's and TensorRT-LLM's servers that have no setting here, as in `vllm_flags`.

Those that have one are aliases of it (`--mem-fraction-static`), dashes and underscores alike.
"""

UNCHANGING: dict[str, dict[str, tuple[str, ...]]] = {
    "SGLang": {
        "--deepep-mode": ("auto",),
        "--max-prefill-tokens": ("16384",),
        "--max-total-tokens": (),
        "--moe-a2a-backend": ("none",),
        "--num-continuous-decode-steps": ("1",),
        "--schedule-conservativeness": ("1", "1.0"),
        "--speculative-algorithm": (),
    },
    "TensorRT-LLM": {"--num-postprocess-workers": ("0",)},
    "SGLang and TensorRT-LLM": {"--pp-size": ("1",)},
}
"""Values that are what is simulated in any case, by engine; every other one asks for something else."""
INSTEAD = {
    "--max-prefill-tokens": "steps of prompts end at --chunked-prefill-size alone; drop it",
    "--max-total-tokens": "give the number of blocks with --num-kv-blocks",
    "--moe-a2a-backend": "give --moe-backend deepep",
}
SWITCHES = {
    "--disable-radix-cache": ("scheduler.prefix_cache", "none"),
    "--enable-mixed-chunk": ("scheduler.batch_former", "running-first"),
}
"""SGLang's switches and the settings they stand for; decodes and prompts together are steps like vLLM's."""
REPLICATED = ("--enable-dp-attention", "--enable-attention-dp")
"""Attention DP, of as many replicas as `--dp-size` or `--attention-dp` says."""
WITHOUT_EFFECT = ("--nnodes", "--node-rank", "--dist-init-addr", "--watchdog-timeout", "--log-level")
IDLE = ("--enable-metrics", "--skip-server-warmup", "--disable-shared-experts-fusion")
