"""Many requests, aborts and odd prompts: nothing leaks, no request starves, nothing crosses requests."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_blocks import CHOICES, VOCAB, assert_no_leak, expected, params, problems, stub_engine

from engine.diffusion.low_confidence import LowConfidence

REQUESTS = 2_500


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), fdfo=st.booleans(), reuse=st.booleans(), which=st.integers(0, 3))
def test_state_never_crosses_requests(seed: int, fdfo: bool, reuse: bool, which: int) -> None:
    rng, algorithm = Random(seed), CHOICES[which]
    engine = stub_engine(
        algorithm, fdfo=fdfo, reuse_in_place=reuse, num_kv_blocks=10, max_num_seqs=3, max_model_len=160
    )
    pending, kept = problems(seed, 9, most=60), {}
    while pending or engine.has_unfinished:
        if pending and rng.random() < 0.5:
            prompt, most = pending.pop()
            sequence = engine.add_request(prompt, params(most))
            if rng.random() < 0.2:
                engine.abort_request(sequence.request.id)
            else:
                kept[sequence] = expected(algorithm, prompt, most)[0]
        engine.step()
    assert_no_leak(engine)
    for sequence, output in kept.items():
        assert sequence.output_ids == output


@pytest.mark.slow
def test_thousands_of_requests_leave_nothing_behind() -> None:
    rng = Random(1)
    engine = stub_engine(LowConfidence(0.5), max_num_seqs=32, num_kv_blocks=80, max_model_len=256)
    finished, added, rounds = 0, 0, 0
    while added < REQUESTS or engine.has_unfinished:
        while added < REQUESTS and len(engine.scheduler.waiting) < 8:
            length = rng.choice([0, 1, 31, 32, 33])
            prompt = [rng.randrange(VOCAB) for _ in range(length)]
            engine.add_request(prompt, params(rng.randint(1, 40)), request_id=str(added))
            if rng.random() < 0.05:
                engine.abort_request(str(max(added - rng.randrange(40), 0)))
            added += 1
        finished += len(engine.step().finished)
        rounds += 1
        assert rounds < 10 * REQUESTS
    assert finished == REQUESTS
    assert_no_leak(engine)
