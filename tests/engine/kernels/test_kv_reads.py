"""Bytes of keys and values that attention of a decode step reads, beside the floor of `benchmarks/gpu`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import Batch, make_batch
from torch import Tensor

from engine.kernels import backend
from engine.kernels.fp8 import FP8
from engine.models.config import ModelConfig, find_config, load_model_config

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "gpu"))
from floors import forward_bytes

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counts the loads of Triton's interpreter")

LENGTHS = [1, 300, 64, 130, 17]


class CacheReads:
    """Bytes of some tensors that Triton kernels load, as often as they do."""

    def __init__(self, caches: tuple[Tensor, ...]) -> None:
        self._ranges = {(cache.data_ptr(), cache.data_ptr() + cache.nbytes) for cache in caches}
        self.bytes_read = 0

    def note(self, addresses: np.ndarray, taken: np.ndarray, itemsize: int) -> None:
        for begin, end in self._ranges:
            inside = (addresses >= begin) & (addresses < end)
            self.bytes_read += itemsize * int((inside & taken).sum())

    @contextmanager
    def counting(self) -> Iterator[None]:
        from triton.runtime.interpreter import InterpreterBuilder, _get_np_dtype

        load = InterpreterBuilder.create_masked_load

        def counted(builder: Any, pointers: Any, mask: Any, *others: Any) -> Any:
            itemsize = np.dtype(_get_np_dtype(pointers.get_element_ty())).itemsize
            self.note(pointers.data, mask.data, itemsize)
            return load(builder, pointers, mask, *others)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InterpreterBuilder, "create_masked_load", counted)
            yield


def bytes_of_kv(batch: Batch) -> int:
    """Those that one layer's attention reads."""
    reads = CacheReads((batch.k_cache, batch.v_cache))
    with reads.counting(), backend.force("triton"):
        batch.attend()
    return reads.bytes_read


def floor_of_kv(config: ModelConfig, dtype: torch.dtype, kv_tokens: int) -> float:
    """Those of one layer that a decode step of `LENGTHS` cannot avoid to read."""
    with_kv, without = (forward_bytes(config, dtype, len(LENGTHS), kv) for kv in (kv_tokens, 0))
    return (with_kv - without) / config.num_layers


def model(folder: Path, **changes: Any) -> ModelConfig:
    config = json.loads(find_config("qwen3-0.6b").read_text()) | {"num_hidden_layers": 2} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return load_model_config(folder)


@pytest.mark.parametrize("group", [1, 5, 8])
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, FP8])
def test_a_decode_step_reads_each_key_and_value_once(
    tmp_path: Path, group: int, page_size: int, dtype: torch.dtype
) -> None:
    """However many query heads share a KV head, and whatever part of its last page a sequence fills."""
    shape = {"heads": 2 * group, "kv_heads": 2, "head_dim": 32}
    config = model(tmp_path, num_attention_heads=2 * group, num_key_value_heads=2, head_dim=32)
    batch = make_batch([(1, length) for length in LENGTHS], page_size=page_size, **shape)
    if dtype == FP8:
        batch = replace(batch, k_cache=batch.k_cache.to(FP8), v_cache=batch.v_cache.to(FP8))
    assert bytes_of_kv(batch) == floor_of_kv(config, dtype, sum(LENGTHS))


@pytest.mark.parametrize("window", [1, 48, 128])
def test_a_sliding_window_is_all_that_is_read(window: int) -> None:
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 32}
    batch = make_batch([(1, length) for length in LENGTHS], window=window, **shape)
    seen = sum(min(length, window) for length in LENGTHS)
    assert bytes_of_kv(batch) == seen * 2 * 2 * 32 * 4  # keys and values, heads, dimensions, bytes
