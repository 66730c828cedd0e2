"""The tensors of a batch: what stands where, and what padding may not do."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stub_engine import StubModel, StubSizes, stub_engine

from blis_py.errors import InputError
from engine.batch import BatchBuilder
from engine.config import EngineConfig
from engine.graphs import default_buckets
from engine.kv_pool import CPU_DEFAULT_BYTES, block_bytes, capacity
from engine.memory import check_memory, host_bytes, memory_needs
from engine.sampling_params import SamplingParams
from engine.staging_buffer import StagingBuffer

CPU = torch.device("cpu")


def builder(largest_bucket: int = 0, on_device: bool | None = None) -> BatchBuilder:
    made = BatchBuilder(
        max_seqs=6,
        max_tokens=64,
        max_model_len=128,
        block_size=16,
        device=CPU,
        largest_bucket=largest_bucket,
        on_device=on_device,
    )
    for slot in range(6):
        made.tables.write(slot, 0, [10 * slot + page for page in range(8)])
    return made


def prefill(made: BatchBuilder, slot: int, tokens: int) -> None:
    """Slot `slot` has `tokens` tokens in the cache and has sampled token 7 + slot."""
    made.begin(np.zeros(0, dtype=np.int64))
    made.mixed([slot], [0], [np.arange(tokens)], [True])
    made.sampled(np.array([slot]), np.array([7 + slot]))


def test_decodes_stand_before_prefills_and_every_token_has_its_place() -> None:
    made = builder()
    prefill(made, 4, 20)
    prefill(made, 2, 5)
    assert made.begin(np.array([4, 2])) == []
    layout = made.mixed([0, 1], [14, 0], [np.array([50, 51, 52, 53]), np.array([60, 61])], [True, False])
    ids, positions, slots = layout.host.tokens
    assert ids.tolist() == [11, 9, 50, 51, 52, 53, 60, 61]
    assert positions.tolist() == [20, 5, 14, 15, 16, 17, 0, 1]
    assert slots.tolist() == [41 * 16 + 4, 20 * 16 + 5, 14, 15, 16, 17, 160, 161]
    assert layout.host.rows.tolist() == [4, 2, 0, 1]
    assert layout.host.query_start.tolist() == [0, 1, 2, 6, 8]
    assert layout.host.seq_lens.tolist() == [21, 6, 18, 2]
    assert layout.host.emit.tolist() == [0, 1, 5], "the unfinished prefill emits nothing"
    assert made.send(layout).slots.tolist() == slots.tolist()


def test_a_decode_goes_on_where_it_was_also_after_a_mixed_batch() -> None:
    made = builder()
    prefill(made, 3, 14)
    places = []
    for step in range(4):
        rows = np.array([3])
        for index in made.begin(rows):
            made.new_page(index, 3, 1, 77)
        mixed = step == 1
        layout = made.mixed([0], [0], [np.array([5])], [True]) if mixed else made.decodes()
        places.append(tuple(layout.host.tokens[1:, 0].tolist()))
        made.sampled(rows, np.array([step]))
    assert places == [(14, 30 * 16 + 14), (15, 30 * 16 + 15), (16, 77 * 16), (17, 77 * 16 + 1)]
    assert made.tables.host[3, 1] == 77


def test_attention_is_planned_with_the_lengths_of_the_step_itself() -> None:
    made, planned = builder(on_device=True), list[tuple[list[int], int]]()

    def plan(seq_lens: torch.Tensor, decodes: int) -> dict[int, torch.Tensor]:
        planned.append((seq_lens.tolist(), decodes))
        return {0: torch.zeros(1)}

    made.plan = plan
    prefill(made, 4, 20)
    prefill(made, 2, 5)
    made.begin(np.array([4, 2]))
    made.send(
        made.mixed([0], [0], [np.array([50, 51])], [False])
    )  # the device learns of the prompts' lengths
    for _ in range(2):
        made.begin(np.array([4, 2]))
        inputs = made.send(made.decodes(4))
        meta = made.metadata(inputs, num_decodes=4, max_query_len=1, max_seq_len=32)
        assert meta.decode_plans
        assert planned[-1] == (meta.seq_lens.tolist(), 4)
    inputs = made.send(made.mixed([1], [0], [np.array([60, 61])], [True]))
    assert made.metadata(inputs, num_decodes=2, max_query_len=2, max_seq_len=32).decode_plans
    made.begin(np.zeros(0, dtype=np.int64))
    inputs = made.send(made.mixed([1], [0], [np.array([60, 61])], [True]))
    assert not made.metadata(inputs, num_decodes=0, max_query_len=2, max_seq_len=32).decode_plans
    assert [decodes for _, decodes in planned] == [4, 4, 2]


def test_padded_rows_read_and_store_nothing_and_stay_so() -> None:
    made = builder(largest_bucket=8)
    prefill(made, 1, 4)
    prefill(made, 5, 9)
    rows = np.array([5, 1])
    for step in range(3):
        made.begin(rows)
        host = made.decodes(padded=8).host
        assert host.tokens[1].tolist() == [9 + step, 4 + step, 0, 0, 0, 0, 0, 0]
        assert host.tokens[2, 2:].tolist() == [-1] * 6
        assert host.tokens[0, 2:].tolist() == [0] * 6
        assert host.seq_lens.tolist() == [10 + step, 5 + step, 0, 0, 0, 0, 0, 0]
        assert host.rows.tolist() == [5, 1, *[6] * 6]
        assert host.query_start.tolist() == list(range(9))
        made.sampled(rows, np.array([1, 2]))


def test_fewer_decodes_in_the_same_bucket_leave_no_trace_of_those_before() -> None:
    made = builder(largest_bucket=4)
    for slot in range(3):
        prefill(made, slot, 4 + slot)
    made.begin(np.array([0, 1, 2]))
    made.decodes(padded=4)
    made.begin(np.array([1]))
    host = made.decodes(padded=4).host
    assert host.seq_lens.tolist() == [7, 0, 0, 0]
    assert host.tokens[2].tolist() == [10 * 16 + 6, -1, -1, -1]
    assert host.rows.tolist() == [1, 6, 6, 6]


def test_the_inputs_of_a_bucket_always_lie_at_the_same_place() -> None:
    made = builder(largest_bucket=4)
    before = made.padding(4)
    prefill(made, 0, 9)
    made.begin(np.array([0]))
    after = made.send(made.decodes(padded=4))
    for name in ("input_ids", "positions", "slots", "rows", "query_start", "seq_lens"):
        assert getattr(before, name).data_ptr() == getattr(after, name).data_ptr()


@given(tokens=st.integers(1, 64), seqs=st.integers(1, 6), emitted=st.integers(0, 6))
def test_every_array_is_aligned_to_16_bytes_and_apart_from_the_others(
    tokens: int, seqs: int, emitted: int
) -> None:
    staging = StagingBuffer(64, 6, CPU)
    layout = staging.layout(tokens, seqs, emitted)
    parts = [getattr(layout.device, field.name) for field in fields(layout.device)]
    assert [len(part) for part in parts] == [tokens] * 3 + [seqs, emitted, emitted, seqs + 1, seqs]
    spans = [(part.data_ptr(), part.data_ptr() + part.nbytes) for part in parts if len(part)]
    base = staging.layout(64, 6, 6).device.input_ids.data_ptr()
    assert all((begin - base) % 16 == 0 for begin, _ in spans)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    for number, part in enumerate((*layout.host.tokens, layout.host.rows, layout.host.emit)):
        part[:] = number
    seen = [part.tolist() for part in parts[:5]]
    assert seen == [[number] * len(part) for number, part in enumerate(parts[:5])], "one and the same memory"


@given(seed=st.integers(0, 2**32))
def test_inputs_made_on_the_device_are_those_made_on_the_host(seed: int) -> None:
    rng = Random(seed)
    both = builder(largest_bucket=8), builder(largest_bucket=8, on_device=True)
    lengths = dict[int, int]()
    rows = np.zeros(0, dtype=np.int64)
    for step in range(12):
        if rng.random() < 0.5:  # other sequences decode, or the same in another order
            rows = np.array(rng.sample(sorted(lengths), rng.randint(0, len(lengths))), dtype=np.int64)
        free = [slot for slot in range(6) if slot not in rows]
        slot = rng.choice(free) if free and (not len(rows) or rng.random() < 0.4) else None
        chunk, emits = np.arange(rng.randint(1, 9)) + step, rng.random() < 0.7
        padded = rng.choice([0, 8])
        for made in both:
            for index in made.begin(rows):
                made.new_page(index, int(rows[index]), lengths[int(rows[index])] // 16, 100 + step)
            layout = made.decodes(padded) if slot is None else made.mixed([slot], [0], [chunk], [emits])
            inputs, decodes = made.send(layout), slot is None
            count = len(inputs.rows) if decodes else len(rows)
            meta = made.metadata(inputs, num_decodes=count, max_query_len=1, max_seq_len=128)
            emitted = [*rows.tolist(), *([slot] if slot is not None and emits else [])]
            tokens = np.array([1000 + 10 * step + place for place in range(len(emitted))], dtype=np.int64)
            seen = [part.tolist() for part in (inputs.input_ids, inputs.positions, inputs.slots)]
            seen += [meta.seq_lens.tolist(), meta.query_start.tolist()]
            seen += [
                table[: -(-length // 16)].tolist()
                for table, length in zip(meta.block_tables, meta.seq_lens.tolist(), strict=True)
            ]
            if made is both[0]:
                expected = seen
            made.keep(inputs, torch.from_numpy(tokens))
            made.sampled(np.array(emitted, dtype=np.int64), tokens)
        assert seen == expected
        for row in rows.tolist():
            lengths[row] += 1
        if slot is not None:
            lengths[slot] = len(chunk)
            if not emits:
                del lengths[slot]
        lengths = {row: length for row, length in lengths.items() if length < 100}
        rows = np.array([row for row in rows.tolist() if row in lengths], dtype=np.int64)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    with pytest.raises(InputError, match="seed: must be from 0"):
        EngineConfig(model="stub", seed=seed)


def test_buckets_are_powers_of_two_then_multiples_of_eight() -> None:
    assert default_buckets(1) == (1,)
    assert default_buckets(5) == (1, 2, 4, 8)
    assert default_buckets(33) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert default_buckets(10_000)[-1] == 512


# -- the KV pool -----------------------------------------------------------------------------------


def measured(**settings: object) -> int:
    config = EngineConfig(model="stub", **settings).on("cpu")  # type: ignore[arg-type]
    return capacity(config, StubSizes(), torch.float32, CPU, lambda: None).num_blocks


def test_the_pool_has_as_many_pages_as_are_given_or_fit() -> None:
    assert block_bytes(StubSizes(num_layers=3, num_kv_heads=2, head_dim=8), 16, torch.bfloat16) == 3072
    assert measured(num_kv_blocks=33) == 33
    assert measured(kv_cache_memory_bytes=1000) == 1000 // 128
    assert measured() == CPU_DEFAULT_BYTES // 128
    assert measured(kv_cache_memory_bytes=1000, block_size=32) == 1000 // 256


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kv_cache_memory_bytes": 100}, "no room for the KV cache"),
        ({"num_kv_blocks": 4, "max_model_len": 65}, "more than the 64 tokens the KV cache holds.*at most 64"),
        ({"max_model_len": 5000}, "model's own 4096"),
        ({"num_kv_blocks": 4, "kv_cache_memory_bytes": 1000}, "given twice"),
        ({"block_size": 8}, "not a page size"),
        ({"block_size": 48}, "not a page size"),
        ({"device": "tpu"}, "unknown choice"),
        ({"gpu_memory_utilization": 0.0}, "above 0"),
        ({"num_kv_blocks": 10**9}, "at most"),
        ({"scheduler": "best"}, "unknown choice"),
    ],
    ids=str,
)
def test_an_engine_that_cannot_work_is_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        stub_engine(**{"max_model_len": None, "num_kv_blocks": None, **settings})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"num_kv_blocks": 10**8}, "num_kv_blocks: a KV cache of 100,000,000 pages of 128 bytes"),
        ({"kv_cache_memory_bytes": 10**14}, "kv_cache_memory_bytes: a KV cache of 781,250,000,000 pages"),
        ({"max_num_seqs": 10**9}, "max_num_seqs: page tables for 1,000,000,000 sequences of 512 tokens"),
        (
            {"max_num_batched_tokens": 10**9},
            "max_num_batched_tokens: the inputs of steps of 1,000,000,000",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_into_memory_is_refused_before_anything_is_allocated(
    settings: dict[str, int], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocating(*arguments: object, **more: object) -> None:
        raise AssertionError("allocates")

    monkeypatch.setattr("engine.build.capacity", allocating)
    monkeypatch.setattr("engine.build.Scheduler", allocating)
    monkeypatch.setattr("engine.memory.host_bytes", lambda: 10**9)
    with pytest.raises(
        InputError, match=rf"{complaint}.* would take [\d,.]+ GB, the host has [\d,.]+ GB free"
    ):
        stub_engine(**{"num_kv_blocks": None, **settings})


def test_what_is_too_much_together_is_put_down_to_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_kv_blocks": 1000, "max_num_seqs": 100, "max_num_batched_tokens": 200}
    config = EngineConfig(model="stub", **sizes).on("cpu")  # type: ignore[arg-type]
    needs = memory_needs(config, StubSizes(), torch.float32, CPU)
    needed = sum(need.host + need.device for need in needs)
    monkeypatch.setattr("engine.memory.host_bytes", lambda: needed)
    check_memory(config, StubSizes(), torch.float32, CPU)
    with pytest.raises(InputError, match=r"^model: the weights would take"):
        check_memory(config, StubSizes(), torch.float32, CPU, weights=10 * needed)
    monkeypatch.setattr("engine.memory.host_bytes", lambda: needed - 1)
    with pytest.raises(InputError, match=f"^{max(needs, key=lambda need: need.host + need.device).key}: "):
        check_memory(config, StubSizes(), torch.float32, CPU)


def test_the_host_has_no_more_than_its_control_group_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_bytes() > 1 << 20
    texts = {"memory.max": "123456\n", "meminfo": "MemTotal: 2 kB\nMemAvailable:   900 kB\n"}
    monkeypatch.setattr("engine.memory._text", lambda path: texts.get(path.name, ""))
    assert host_bytes() == 123456
    texts["memory.max"] = "max\n"
    assert host_bytes() == 900 << 10


def test_the_longest_sequence_is_what_the_cache_holds_unless_set_otherwise() -> None:
    engine = stub_engine(max_model_len=None, num_kv_blocks=5)
    assert engine.scheduler.config.max_model_len == 80


def test_the_profiling_forward_runs_and_stores_nothing() -> None:
    from engine.build import largest_forward

    model = StubModel()
    config = EngineConfig(model="stub", max_num_seqs=8, max_num_batched_tokens=100).on("cpu")
    largest_forward(model, config, torch.float32, CPU)
    assert model.forwards == 1


def test_mixed_and_decode_batches_do_not_disturb_each_other_over_many_steps() -> None:
    engine = stub_engine()
    params = SamplingParams(temperature=0, max_tokens=40)
    sequences = []
    for step in range(60):
        if step % 7 == 0:
            sequences.append(engine.add_request([step + 1] * (step + 1), params))
        engine.step()
        engine.scheduler.check()
    log = engine.recorder.log()
    assert {0, 1} <= set(log.steps["prefill_seqs"])
    assert len(sequences) == 9
