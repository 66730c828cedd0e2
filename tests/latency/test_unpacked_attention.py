"""Mixed batches on GPUs whose attention kernel gives a decode's only query a tile of rows."""

from __future__ import annotations

import pytest
from latency_cases import decode, prefill

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import trained
from blis_py.latency.trained import TILE_KEYS, TILE_ROWS, Trained
from blis_py.models.model_shape import load_model

SHAPE, GPU = load_model("llama-3.1-8b"), load_gpu("a100-80")
CONTEXTS = [(1, 100), (8, 8 * 500), (64, 64 * 3_000)]


def mixed(seqs: int, kv_tokens: int) -> StepFeatures:
    """Such decodes beside a prompt of 256 tokens."""
    found = prefill(256)
    found.decode_seqs, found.decode_kv_tokens = seqs, kv_tokens
    found.emitted_rows += seqs
    return found


@pytest.mark.parametrize(("seqs", "kv_tokens"), CONTEXTS)
def test_a_decode_beside_a_prompt_pays_for_whole_tiles(
    seqs: int, kv_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a tile for every key, and keys up to a whole tile: all else is as with packed attention."""
    assert GPU.name not in trained.PACKED_ATTENTION_GPUS
    unpacked = Trained(SHAPE, GPU, 1)
    monkeypatch.setattr(trained, "PACKED_ATTENTION_GPUS", frozenset({GPU.name}))
    packed = Trained(SHAPE, GPU, 1)
    pair_ns = packed._basis.pair_ns
    tile_pair_ns = max(unpacked._c.mixed_decode_tiles * TILE_ROWS, unpacked._c.attention_pairs) * pair_ns
    moved_ns = packed._kv_ns * (kv_tokens + 2 * seqs)
    with_tiles = max(tile_pair_ns * (kv_tokens + TILE_KEYS * seqs), moved_ns)
    without = max(packed._c.attention_pairs * pair_ns * (kv_tokens + seqs), moved_ns)
    found = unpacked.step(mixed(seqs, kv_tokens)).gpu_ns - packed.step(mixed(seqs, kv_tokens)).gpu_ns
    assert found == pytest.approx(with_tiles - without, abs=2)
    assert found > 0
    alone = decode(seqs, kv_tokens)
    assert unpacked.step(alone) == packed.step(alone)
