"""What goes from host to device: in one copy, pinned and not waited for, and nothing twice.

The device is torch's meta device: copies to it are seen, and carry nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from stub_engine import StubModel, assert_no_leak, expected, run_all, stub_engine
from torch.utils._python_dispatch import TorchDispatchMode

from blis_py.core.diffusion_request import DenoiseBatch, DiffusionRequest
from engine.diffusion.executor import DiffusionExecutor
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.slots import BlockSlots
from engine.emitters import Emitters
from engine.engine import LLMEngine
from engine.grammar.masks import Masks
from engine.penalties import TokenCounts
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.staging import BlockTables
from engine.upload import upload

META, CPU = torch.device("meta"), torch.device("cpu")
GREEDY = SamplingParams(temperature=0, max_tokens=12)


class Copies(TorchDispatchMode):
    """Bytes of every copy from the host to the device, while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default:
            self._seen(args[0], result, kwargs.get("non_blocking", False))
        elif func is torch.ops.aten.copy_.default:
            self._seen(args[1], args[0], args[2] if len(args) > 2 else False)
        return result

    def _seen(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        if source.device == CPU and target.device == META:
            assert non_blocking, "the host waits for the device"
            self.nbytes.append(source.nbytes)


def running(count: int, **settings: Any) -> list[Sequence]:
    engine = stub_engine()
    sequences = [
        engine.add_request([i + 1, 2, 3], SamplingParams(max_tokens=9, **settings)) for i in range(count)
    ]
    engine.step()
    return sequences


def emitting(sequences: list[Sequence]) -> Emitters:
    return Emitters.of(sequences, np.array([s.slot for s in sequences], dtype=np.int64), 0)


def test_arrays_go_up_side_by_side_each_aligned_and_as_they_were() -> None:
    empty, some = np.zeros((0, 4), dtype=np.int32), np.array([1.5], dtype=np.float32)
    arrays = (np.arange(3), np.ones((2, 5), dtype=bool), empty, some)
    with Copies() as copies:
        there = upload(META, *arrays)
    assert copies.nbytes == [16 * (2 + 1 + 0 + 1)]
    assert [(t.shape, t.dtype) for t in there] == [(t.shape, t.dtype) for t in upload(CPU, *arrays)]
    assert all(t.storage_offset() * t.itemsize % 16 == 0 for t in there)
    for tensor, array in zip(upload(CPU, *arrays), arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_what_sampling_needs_to_know_of_a_batch_goes_up_in_one_copy() -> None:
    needs = {"frequency_penalty": 0.5, "min_tokens": 3, "stop_token_ids": [7], "logprobs": 2, "top_k": 5}
    sequences = running(4, **needs)
    sampler = Sampler(META)
    with Copies() as copies:
        plan = sampler.plan(emitting(sequences))
    assert plan.penalised is not None
    assert plan.held_back is not None
    assert plan.logprobs_index is not None
    assert len(copies.nbytes) == 1


def test_of_a_penalised_request_its_tokens_go_up_and_are_counted_there() -> None:
    """A row of counts is as long as the vocabulary: 600 KB for a request of three tokens."""
    sequences, vocabulary = running(2, presence_penalty=1.0), 152_000
    counts = TokenCounts(META)
    _, entrants = counts.rows_of(sequences)
    with Copies() as copies:
        counts.enter(entrants, vocabulary)
    assert len(copies.nbytes) == 1
    assert copies.nbytes[0] < 200


def test_a_row_of_counts_holds_nothing_of_the_request_that_had_it_before() -> None:
    one, other = running(2, presence_penalty=1.0)
    counts = TokenCounts(CPU)
    for sequence in (one, other):
        rows, entrants = counts.rows_of([sequence])
        counts.enter(entrants, 97)
        seen, emitted = set(sequence.prompt_ids.tolist()), np.bincount(sequence.output_ids, minlength=97)
        assert set(counts._prompts[rows[0]].nonzero().view(-1).tolist()) == seen
        assert counts._counts[rows[0]].tolist() == emitted.tolist()
        counts.release(sequence)


def test_a_change_of_the_constrained_batch_does_not_wait_for_its_forward() -> None:
    sequences = running(3)
    sequences[1].grammar = object()  # type: ignore[assignment]
    with Copies() as copies:
        mask = Masks(97, stub_engine().clock).launched(emitting(sequences), META)
    assert mask is not None
    assert len(copies.nbytes) == 1


def test_a_batch_of_blocks_begins_with_one_copy() -> None:
    block = 32
    slots = BlockSlots(4, block, 40, LowConfidence(), META)
    executor = DiffusionExecutor(StubModel(), [], slots, page_tokens=block)
    requests = []
    for i in range(3):
        request = DiffusionRequest(f"r{i}", 0, 3, row=i)
        request.slot, request.block_table = i, [i]
        requests.append(request)
    prompt = DiffusionRequest("prompt", 0, 64, row=3)
    prompt.block_table = [3, 4]
    batch = DenoiseBatch(denoise=requests, prefills=[(prompt, 64)])
    with Copies() as copies:
        begun = executor.begin(batch, lambda request, start, end: [1] * (end - start))
    assert len(copies.nbytes) == 1
    assert begun.rows_of_logits == [29, 29, 29], "three tokens of each block are known"


def test_one_transfer_has_each_place_of_the_block_tables_once_and_its_latest_page() -> None:
    tables = BlockTables(2, 4, CPU, shared=False)
    tables.write(0, 0, [5, 6])
    tables.write_one(0, 1, 7)
    tables.write(0, 0, [8, 7, 9])
    changes = tables.changes()
    assert changes is not None
    assert changes.tolist() == [[0, 1, 2], [8, 7, 9]]
    tables.apply(changes)
    assert tables.device[0].tolist() == tables.host[0].tolist()


def test_nothing_is_sent_twice_after_a_step_that_could_not_be_prepared() -> None:
    engine: LLMEngine = stub_engine(async_scheduling=True, num_kv_blocks=40, enable_prefix_caching=False)
    builder = engine.executor.builder
    changes, mixed = builder.tables.changes, builder.mixed
    left = 1

    def unique() -> Any:
        sent = changes()
        if sent is not None:
            places = sent[0].tolist()
            assert len(places) == len(set(places)), "one transfer writes a place twice"
        return sent

    def broken(*args: Any) -> Any:
        nonlocal left
        if left and len(args[0]) > 1:
            left -= 1
            raise RuntimeError("out of memory, say")
        return mixed(*args)

    builder.tables.changes = unique  # type: ignore[method-assign]
    builder.mixed = broken  # type: ignore[method-assign]
    failing = [engine.add_request([i + 1] * 20, GREEDY) for i in range(2)]
    engine.step()
    fine = [engine.add_request([i + 1] * 40, GREEDY) for i in range(3)]
    run_all(engine)
    assert [s.finish_reason for s in failing] == ["error", "error"]
    assert [s.error for s in fine] == [None] * 3
    assert [s.output_ids for s in fine] == [expected([i + 1] * 40, 12) for i in range(3)]
    assert_no_leak(engine.scheduler, engine.executor)


@pytest.mark.parametrize("turns", [3, 6])
def test_a_mask_that_fails_keeps_what_its_turn_has_brought(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    pytest.importorskip("xgrammar")
    from grammar_forms import PROMPT, constrained, tiny_engine

    engine = tiny_engine(async_scheduling=True)
    one = engine.add_request(PROMPT, constrained(guided_regex="[ab]{20}"))
    brought: list[int] = []
    for turn in range(40):
        if turn == turns:
            monkeypatch.setattr("engine.grammar.masks.BatchMask.fill", lambda self: 1 // 0)
        output = engine.step()
        assert all(sequence is one for sequence in output.sequences)
        brought += output.tokens
        if output.finished:
            break
    assert one.finish_reason == "error"
    assert brought == one.output_ids
    assert brought
