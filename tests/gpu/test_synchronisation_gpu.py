"""Both loops on a CUDA device under torch's check of hidden synchronisation, with every kind of sampling.

The loops wait for events alone. A copy that blocks, or a number read off the device, would make the host wait
for the forward; here it raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest
import torch
from test_engine_gpu import SHARED, build

from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

KINDS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0}],
    "temperature": [{"temperature": 0.8}],
    "filters": [{"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 5, "top_p": 0.8, "min_p": 0.02}],
    "penalties": [{"repetition_penalty": 1.2}, {"presence_penalty": 0.5, "frequency_penalty": 0.3}],
    "logprobs": [{"temperature": 0, "logprobs": 0}, {"logprobs": 5}],
    "ends": [{"min_tokens": 4, "stop_token_ids": [7]}, {"stop": ["a"]}, {"ignore_eos": True}],
}
FORMS: list[dict[str, Any]] = [{"guided_regex": "[xyz]{4,9}"}, {"guided_choice": ["yes", "no"]}]
MIXED = [kind for kinds in KINDS.values() for kind in kinds]
CASES = {**KINDS, "all of them": MIXED}
if find_spec("xgrammar") is not None:
    CASES |= {"forms": FORMS, "all of them and forms": MIXED + FORMS}


@contextmanager
def hidden_synchronisation_raises() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def serve(engine: LLMEngine, kinds: list[dict[str, Any]]) -> list[Sequence]:
    """Requests that come and go, so that batches change: chunks, prefix hits, preemption, an abort."""
    rng, sequences, step = Random(0), list[Sequence](), 0
    while len(sequences) < 48 or engine.has_unfinished:
        if step % 2 == 0 and len(sequences) < 48:
            own = [rng.randrange(250) for _ in range(rng.randint(1, 30))]
            kind = kinds[len(sequences) % len(kinds)]
            params = SamplingParams(max_tokens=rng.randint(6, 24), seed=len(sequences), **kind)
            sequences.append(engine.add_request(SHARED[: rng.randrange(65)] + own, params))
        if step == 21:
            engine.abort_request(sequences[-1].request.id)
        engine.step()
        step += 1
    return sequences


@pytest.mark.parametrize("overlapped", [False, True], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("kinds", CASES.values(), ids=CASES.keys())
def test_no_step_synchronises_but_by_waiting_for_an_event(
    kinds: list[dict[str, Any]], overlapped: bool
) -> None:
    engine = build(
        max_num_seqs=16,
        block_size=16,
        num_kv_blocks=60,
        max_num_batched_tokens=64,
        async_scheduling=overlapped,
    )
    with hidden_synchronisation_raises():
        sequences = serve(engine, kinds)
    assert {"stop", "length", "abort"} >= {sequence.finish_reason for sequence in sequences}
    assert sum(len(sequence.output_ids) for sequence in sequences) > 100


def test_the_check_finds_what_it_is_for() -> None:
    there = torch.ones(4, device="cuda")
    with hidden_synchronisation_raises(), pytest.raises(RuntimeError, match="synchronizing"):
        there.sum().item()
