"""Kernels and graphs launched for a step with prompts on a GPU that is not there, eagerly and captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.build import make_executor
from engine.config import EngineConfig
from engine.executor import Forward
from engine.graphs import Replay
from engine.kernels.dry_run import recorded
from engine.kernels.gpu import HOPPER
from engine.kv_pool import allocate
from engine.models.config import load_model_config
from engine.models.weights import shapes_only
from engine.variants import META

NO_KERNEL = ("view", "reshape", "alias", "slice", "split", "select", "squeeze", "expand", "empty", "detach",
             "transpose", "t.default", "as_strided", "permute", "_to_copy", "lift")  # fmt: skip


class Launches(TorchDispatchMode):
    """Counts torch's kernels; those of Triton and graphs count themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        self.count += not any(part in name for part in NO_KERNEL)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Launches]:
    """Count what is launched inside the block."""
    from triton import knobs

    launches, hook = Launches(), knobs.runtime.jit_cache_hook

    def note(**facts: Any) -> bool:
        launches.count += 1
        return bool(hook(**facts))

    knobs.runtime.jit_cache_hook = note
    try:
        with launches:
            yield launches
    finally:
        knobs.runtime.jit_cache_hook = hook


def steps(layers: int) -> dict[str, int]:
    """Launches of a forward by kind of step, eagerly and captured."""
    model = replace(load_model_config("qwen3-8b"), num_layers=layers)
    decoder = shapes_only(model, torch.bfloat16).eval()
    decoder.set_max_positions(1)
    sizes: dict[str, Any] = {"cudagraph_capture_sizes": (4,), "cudagraph_mixed_sizes": (128,)}
    config = EngineConfig(model="", max_model_len=512, max_num_seqs=4, max_num_batched_tokens=256, **sizes)
    config = config.on("cuda")
    current: list[Launches] = []

    def capture(run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
        def replay() -> None:
            current[-1].count += 1

        return replay, run()

    forward = Forward(decoder, allocate(model, 64, config.block_size, torch.bfloat16, META))
    executor = make_executor(config, forward, 512, META, capture)
    builder, found = executor.builder, {}
    for padded in (None, executor.mixed_graphs.padded(0, 1, 100)):  # type: ignore[union-attr]
        builder.begin(np.zeros(0, dtype=np.int64))
        layout = builder.mixed((0,), (0,), (np.zeros(100, dtype=np.int64),), (True,), padded)
        with counted() as launches:
            current.append(launches)
            if padded is not None:
                executor.mixed_graphs.replay(padded.tokens)  # type: ignore[union-attr]
            else:
                meta = builder.metadata(layout.device, num_decodes=0, max_query_len=100, max_seq_len=100)
                forward.hidden(layout.device, meta)
        found["prompt" if padded is None else "prompt, captured"] = launches.count
    return found


def by_kind() -> dict[str, dict[str, int]]:
    """Launches of each kind of step for every layer, and of a model of one layer."""
    with recorded(HOPPER), torch.inference_mode():
        one, two = steps(1), steps(2)
    return {kind: {"layer": two[kind] - one[kind], "step": one[kind]} for kind in one}
