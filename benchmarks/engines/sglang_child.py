"""SGLang's own scheduling loop, from its unpacked wheel, on scenarios; run by `child.py`.

    python -I sglang_child.py ROOT MAX_BYTES

The scheduler, batches, admission, radix cache, allocators of KV and the processing of results are SGLang's,
with torch on the CPU; the model, its runner and the network are stood in, see `sglang_drive.py`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.engines import child_loop, stand_ins
from benchmarks.engines.sglang_parts import PARTS, plain_mixins

_MIXED = tuple(
    f"sglang.srt.{name}"
    for name in ("managers.scheduler", "managers.schedule_batch", "mem_cache.radix_cache")
)
"""Modules whose classes have mixins."""
REAL = tuple(
    f"sglang.srt.{name}"
    for name in (
        *(f"managers.{name}" for name in ("schedule_batch", "schedule_policy", "scheduler")),
        "managers.scheduler_components.batch_result_processor",
        "managers.scheduler_components.new_token_ratio_tracker",
        *(
            f"mem_cache.{name}"
            for name in (
                *("radix_cache", "unified_radix_cache", "unified_cache", "common", "allocation"),
                *("allocation_sizing", "allocator.base", "allocator.token", "allocator.paged"),
                *("prefill_budget", "base_prefix_cache", "cache_init_params", "evict_policy", "utils"),
                *("events", "chunk_cache", "hicache_key_scheme"),
            )
        ),
        *("session.streaming_session", "beam_search", "environ", "sampling.sampling_params"),
    )
)
"""Modules of SGLang that run as they are."""
_ALLOCATORS = "sglang.srt.mem_cache.allocator"
"""A module, or a folder of those above."""
_KEPT = (
    "sglang.srt.managers.scheduler_output_processor_mixin",
    "sglang.srt.mem_cache.session_radix_cache",
)
"""Modules of mixins that are used as they are: where the scheduler itself processes results, and the tree
keeps sessions."""
ABSENT = frozenset(
    (
        *("orjson", "msgspec", "setproctitle", "einops", "requests", "pybase64", "torchvision", "aiohttp"),
        *("psutil", "zmq", "transformers", "triton", "uvloop", "fastapi", "xgrammar", "sgl_kernel"),
        "prometheus_client",
    )
)
"""Third-party modules they import."""


def main() -> None:
    """Serve scenarios until stdin ends."""
    root, max_bytes = Path(sys.argv[1]), int(sys.argv[2])
    parts = {**plain_mixins(root, _MIXED, _KEPT), **PARTS}
    single = (root / f"{_ALLOCATORS.replace('.', '/')}.py").exists()
    real = (*REAL, *_KEPT, *([_ALLOCATORS] if single else []))
    import torch

    torch.set_num_threads(1)
    stand_ins.install(str(root), "sglang", real, ABSENT, parts)
    clock = itertools.count()
    time.monotonic = lambda: float(next(clock))  # uses have an order, and no two the same time
    drive = importlib.import_module("benchmarks.engines.sglang_drive")
    child_loop.limit_memory(4 * max_bytes)
    child_loop.serve(drive.run, {"package": "sglang"})


if __name__ == "__main__":
    main()
