"""Autotuning with a fallback where nothing can be timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run in Triton's interpreter, on CPU tensors. Fixed when Triton is imported.

The interpreter computes wrongly in bf16: kernels cast every load to float32 under a constexpr there.
"""

TUNERS: list[Any] = []
"""All kernels that choose among configurations by timing them."""

Fits = Callable[[Any, Mapping[str, Any]], bool]
"""Predicate: whether a configuration can run, given all arguments of the launch by name."""


class FirstConfig:
    """A kernel launched with the first of its configurations."""

    def __init__(self, kernel: Any, config: Any) -> None:
        self.fn, self.config = kernel, config

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            return self.fn[grid](*args, **kwargs, **self.config.all_kwargs())

        return launch


def autotuned(configs: Sequence[Any], key: Sequence[str], fits: Fits | None = None) -> Callable[[Any], Any]:
    """`triton.autotune`, except that a lone configuration and the interpreter take the first untimed.

    Keep the list short: every configuration is compiled and timed at the first launch of each key, which
    must have happened before a CUDA graph is captured.

    Args:
        fits: configurations for which it is false are left out; the first is kept if none remains.
    """

    def prune(configs: Sequence[Any], named: Mapping[str, Any], **constants: Any) -> list[Any]:
        fitting = [config for config in configs if fits is None or fits(config, {**named, **constants})]
        return fitting or list(configs[:1])

    def decorate(kernel: Any) -> Any:
        if INTERPRETED or len(configs) == 1:
            return FirstConfig(kernel, configs[0])
        pruning = {"early_config_prune": prune}
        tuner = triton.autotune(configs=list(configs), key=list(key), prune_configs_by=pruning)(kernel)
        TUNERS.append(tuner)
        return tuner

    return decorate
