"""Memory of windows and states of linear attention: that of every running sequence, in every engine."""

from __future__ import annotations

from typing import Any

import pytest

import blis_py as blis
from blis_py.config.loader import load_config
from blis_py.errors import InputError
from blis_py.hardware.capacity import KvCapacity, kv_capacity
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.hardware.memory_overheads import OVERHEADS
from blis_py.models.model_shape import load_model
from blis_py.setup.deployment import deployed

QWEN = "qwen3.5-35b-a3b"
STATE_BYTES = 30 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2)
"""30 layers: 32 heads of 128 x 128 in 32 bits, and 3 tokens of the convolved channels in 16 bits."""


def capacity(engine: str, seqs: int, tp: int = 1, dp: int = 1, model: str = QWEN, **more: Any) -> KvCapacity:
    return kv_capacity(
        load_model(model),
        load_gpu(more.pop("gpu", "h200")),
        tp,
        max_num_batched_tokens=8192,
        max_num_seqs=seqs,
        overheads=OVERHEADS[engine],
        layout=Layout(tp, dp),
        **more,
    )


def room_bytes(engine: str, seqs: int, tp: int, dp: int, **more: Any) -> int:
    """Memory beside weights and activations, without states or windows."""
    found = capacity(engine, seqs, tp, dp, **more)
    per_gpu = OVERHEADS[engine].single_gpu_gib if tp == 1 else OVERHEADS[engine].rank_gib
    overhead = 0 if OVERHEADS[engine].share_of_started else int(per_gpu * 2**30)
    return found.usable_bytes - found.weight_bytes - found.activation_bytes - overhead


@pytest.mark.parametrize(
    ("tp", "dp", "state_bytes"),
    [(1, 1, STATE_BYTES), (2, 1, STATE_BYTES // 2), (4, 1, STATE_BYTES // 4), (4, 4, STATE_BYTES)],
)
@pytest.mark.parametrize("seqs", [1, 256, 512])
def test_tensorrt_llm_reserves_a_state_for_each_request_of_a_rank(
    tp: int, dp: int, state_bytes: int, seqs: int
) -> None:
    found = capacity("trtllm", seqs, tp, dp)
    assert found.sequences == seqs
    assert found.kv_bytes == pytest.approx(room_bytes("trtllm", seqs, tp, dp) - seqs * state_bytes, abs=4)


def test_tensorrt_llm_does_not_start_without_memory_for_the_states_of_all() -> None:
    with pytest.raises(InputError) as refused:
        capacity("trtllm", 2048)
    assert "(122.8 for the states of 2,048 sequences)" in str(refused.value)
    assert "--max-num-seqs 1024" in (refused.value.fix or "")
    assert capacity("trtllm", 1024).tokens > 2048


@pytest.mark.parametrize("engine", ["vllm", "blis"])
@pytest.mark.parametrize(
    ("tp", "dp", "state_bytes"), [(1, 1, STATE_BYTES), (2, 1, STATE_BYTES // 2), (2, 2, STATE_BYTES)]
)
def test_a_pool_has_room_for_the_states_of_all_that_may_run(
    engine: str, tp: int, dp: int, state_bytes: int
) -> None:
    room = room_bytes(engine, 4096, tp, dp)
    found = capacity(engine, 4096, tp, dp)
    assert found.sequences == room // 2 // state_bytes
    assert found.kv_bytes == pytest.approx(room / 2, abs=4)
    few = capacity(engine, 16, tp, dp)
    assert few.sequences == 16
    assert few.kv_bytes == pytest.approx(room_bytes(engine, 16, tp, dp) - 16 * state_bytes, abs=4)


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
@pytest.mark.parametrize(
    ("model", "window_tokens", "windowed", "full", "layer_bytes"),
    [
        ("gpt-oss-120b", 128, 18, 18, 2 * 8 * 64 * 2),
        ("llama-4-scout", 8192, 36, 12, 2 * 4 * 128 * 2),
    ],
)
@pytest.mark.parametrize("seqs", [8, 256, 16384])
def test_windows_take_what_all_that_run_can_fill_and_no_more(
    engine: str, model: str, window_tokens: int, windowed: int, full: int, layer_bytes: int, seqs: int
) -> None:
    """A layer of a rank, two of which share the heads of Llama 4."""
    tp = 1 if model == "gpt-oss-120b" else 2
    settings: dict[str, Any] = {"model": model, "gpu": "b300"}
    found = capacity(engine, seqs, tp, **settings)
    room = room_bytes(engine, seqs, tp, 1, **settings)
    windows = min(seqs * window_tokens * windowed * layer_bytes, room * windowed / (windowed + full))
    assert found.sequences is None
    assert found.kv_bytes == pytest.approx(room - windows, abs=4)
    most_tokens = min(found.tokens, seqs * window_tokens)
    assert most_tokens * windowed * layer_bytes + found.tokens * full * layer_bytes <= room + 4


def test_no_state_at_all_is_a_model_that_does_not_fit() -> None:
    with pytest.raises(InputError, match="does not fit"):
        capacity("vllm", 4096, gpu_memory_utilization=0.5228)


RUN = {"model": QWEN, "gpu": "h200", "concurrency": 700, "num_requests": 1400}
LENGTHS = {"prompt_tokens": 100, "output_tokens": 20}


@pytest.mark.parametrize(
    ("engine", "per_request", "settings"),
    [
        ("vllm-0.19", 3 + 1, {}),
        ("vllm-0.19", 3 + 1, {"tp": 2, "attention_dp": 2, "max_num_seqs": 1024}),
        ("vllm", 3 + 1, {}),
    ],
)
def test_a_state_of_vllm_is_a_block_of_its_pool(
    engine: str, per_request: int, settings: dict[str, Any]
) -> None:
    """Three groups of layers with states, and a block of attention for 120 tokens."""
    result = blis.run(engine=engine, **RUN, **LENGTHS, **settings)
    steps = result.steps
    assert result.config.scheduler.block_size >= 1056
    alone = steps[steps["prefill_seqs"] == 0]
    assert len(alone)
    assert (alone["kv_blocks"] == per_request * alone["running"]).all()


@pytest.mark.parametrize(
    ("engine", "settings", "copies"),
    [
        ("trtllm", {"max_num_seqs": 256}, 1),
        ("sglang", {"max_num_seqs": 512}, 5),
        ("sglang", {"max_num_seqs": 512, "prefix_cache": "none"}, 1),
    ],
)
def test_no_more_requests_run_than_have_states(engine: str, settings: dict[str, Any], copies: int) -> None:
    result = blis.run(engine=engine, **RUN, **LENGTHS, **settings)
    scheduler = result.config.scheduler
    tp, dp = settings.get("tp", 1), settings.get("attention_dp", 1)
    memory = capacity(
        engine,
        scheduler.max_num_seqs,
        tp,
        dp,
        gpu_memory_utilization=scheduler.gpu_memory_utilization,
        states=scheduler.max_num_seqs if engine == "sglang" and "prefix_cache" in settings else None,
    )
    assert memory.sequences is not None
    most = min(memory.sequences // copies, scheduler.max_num_seqs)
    assert max(result.steps["running"]) <= most * dp
    limited = any("no memory for the states of linear attention" in note for note in result.notes)
    assert limited == (most < scheduler.max_num_seqs)


def test_sglang_makes_room_for_the_states_of_a_limit_without_a_prefix_cache() -> None:
    def blocks(**more: Any) -> int:
        settings = {"engine": "sglang", "model": QWEN, "gpu": "h200", **more}
        return deployed(load_config(overrides=settings)).num_kv_blocks

    limit = {"scheduler.max_num_seqs": 16}
    few = {**limit, "scheduler.prefix_cache": "none"}
    assert blocks(**few) > 1.5 * blocks(**limit)
    more = {**few, "scheduler.max_num_seqs": 32}
    block_bytes = load_model(QWEN).kv_bytes_per_token * 16
    assert (blocks(**few) - blocks(**more)) * block_bytes == pytest.approx(16 * STATE_BYTES, rel=0.01)
