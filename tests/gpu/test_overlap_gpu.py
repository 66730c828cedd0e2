"""The overlapped loop on a CUDA device: tokens relayed there, masks and texts beside it; `make gpu`."""

from __future__ import annotations

import threading
from random import Random

import pytest
import torch
from test_engine_gpu import ANSWER, build, fewest_expected, problems, right, run

from engine.engine import LLMEngine
from engine.output_stream import OutputDelta
from engine.sampling_params import SamplingParams
from engine.tiny.tasks import check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ENDLESS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("size", [1, 16, 64])
def test_the_same_batches_give_the_same_tokens_in_both_loops(size: int, eager: bool) -> None:
    """All come at once and end by length: not a single bit may differ, so no token does."""
    outputs = []
    for overlapped in (False, True):
        engine = build(enforce_eager=eager, max_num_seqs=size, async_scheduling=overlapped)
        outputs.append([s.output_ids for s in run(engine, problems(size, size), ENDLESS)])
    assert outputs[0] == outputs[1]


def test_tokens_are_in_the_relay_buffer_whenever_they_are_taken_out() -> None:
    """Poisoned places would stop it; ends of sequence come a step late."""
    engine = build(async_scheduling=True, check_relay=True, max_num_batched_tokens=64)
    sequences = run(engine, problems(200, "relay"))
    assert right(sequences) >= fewest_expected("ar", 200)
    assert engine.scheduler.counters.discarded_tokens > 100


def test_steps_are_launched_ahead_and_the_simulator_forms_the_same_batches() -> None:
    engine, rng = build(async_scheduling=True, num_kv_blocks=120, block_size=16), Random(0)
    waiting = problems(150, "parity")
    while waiting or engine.has_unfinished:
        for _ in range(rng.randrange(4)):
            if waiting:
                engine.add_request(waiting.pop(), ANSWER)
        engine.step()
    log = engine.recorder.log()
    begun, ended = log.column("forward_start_ns"), log.column("forward_end_ns")
    assert (begun <= ended).all()
    assert (begun[1:] >= ended[:-1]).all(), "one stream, one after another"
    pytest.importorskip("simpy")  # the simulator, which a machine with a GPU need not have
    from blis_py.calibrate.parity import replay_steps

    assert replay_steps(log).share == 1


@pytest.mark.parametrize("overlapped", [False, True])
def test_constrained_and_free_rows_mix(overlapped: bool) -> None:
    pytest.importorskip("xgrammar")
    engine = build(async_scheduling=overlapped)
    form = SamplingParams(temperature=1.0, max_tokens=20, guided_regex="[xyz]{4,9}")
    texts = problems(32, "grammar")
    sequences = [engine.add_request(text, form if i % 2 else ANSWER) for i, text in enumerate(texts)]
    while engine.has_unfinished:
        engine.step()
    assert all(set(s.text()) <= set("xyz") and 4 <= len(s.text()) <= 9 for s in sequences[1::2])
    assert sum(check(s.prompt or "", s.text()) for s in sequences[::2]) >= fewest_expected("ar", 16)
    steps = engine.recorder.log().steps
    assert max(steps["constrained_rows"]) == 16
    assert all(
        exposed <= took for exposed, took in zip(steps["mask_exposed_ns"], steps["mask_ns"], strict=True)
    )


@pytest.mark.parametrize("overlapped", [False, True])
def test_texts_are_delivered_by_a_thread_of_their_own(overlapped: bool) -> None:
    engine: LLMEngine = build(async_scheduling=overlapped)
    fields: dict[str, list[OutputDelta]] = {}
    threads = set()

    def take(delta: OutputDelta) -> None:
        threads.add(threading.current_thread().name)
        fields.setdefault(delta.request_id, []).append(delta)

    sequences = [engine.add_request(text, ANSWER, on_delta=take) for text in problems(64, "stream")]
    while engine.has_unfinished:
        engine.step()
    engine.shutdown()
    assert threads == {"output"}
    for sequence in sequences:
        assert "".join(delta.text for delta in fields[sequence.request.id]) == sequence.text()
