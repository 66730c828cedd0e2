"""Outputs are the model's, whatever the engine does to compute them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from stub_engine import VOCAB, Letters, StubModel, expected, run_all, stub_engine, with_graphs

from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Some share a beginning of 50 tokens."""
    rng = random.Random(seed)
    begin = [rng.randrange(VOCAB) for _ in range(50)]
    return [
        begin * (i % 3 == 0) + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))]
        for i in range(count)
    ]


def serve(engine: LLMEngine, texts: list[list[int]], output: int = 24) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=output)
    sequences = [engine.add_request(prompt, params) for prompt in texts]
    run_all(engine)
    return [sequence.output_ids for sequence in sequences]


@pytest.mark.usefixtures("prepared_on")
def test_64_concurrent_requests_get_the_answers_of_one_at_a_time() -> None:
    texts = prompts(64)
    engine = stub_engine(max_num_seqs=64, num_kv_blocks=600)
    assert serve(engine, texts) == [expected(prompt, 24) for prompt in texts]
    assert engine.scheduler.counters.preemptions == 0
    assert max(engine.recorder.log().steps["running"]) == 64


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 5},
        {"block_size": 32},
        {"block_size": 64},
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 37},
        {"long_prefill_token_threshold": 7},
        {"enable_prefix_caching": False},
        {"batch_former": "prefill-first"},
        {"scheduler": "sjf"},
        {"preemption_policy": "priority"},
        {"scheduler_reserve_full_isl": True, "watermark": 0.1},
        {"prefill_schedule_interval": 3, "async_scheduling": True},
        {"long_prefill_token_threshold": 7, "long_prefill_token_threshold_adaptive": True},
    ],
    ids=str,
)
def test_settings_do_not_change_greedy_outputs(settings: dict[str, Any]) -> None:
    texts = prompts(24)
    engine = stub_engine(**{"num_kv_blocks": 200, **settings})
    assert serve(engine, texts) == [expected(prompt, 24) for prompt in texts]


@pytest.mark.usefixtures("prepared_on")
@pytest.mark.parametrize("overlapped", [False, True], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("cache", ["radix", "hash", "none"])
@pytest.mark.parametrize("victim", ["fcfs", "fewest-tokens"])
def test_a_retracted_request_goes_on_as_if_nothing_had_been_in_flight(
    overlapped: bool, cache: str, victim: str
) -> None:
    """Its token of the step in flight is dropped and computed again."""
    texts = prompts(24)
    engine = stub_engine(
        num_kv_blocks=24, max_model_len=200, batch_former="prefill-only", async_scheduling=overlapped,
        prefix_cache=cache, preemption_policy=victim,
    )  # fmt: skip
    assert serve(engine, texts, 40) == [expected(prompt, 40) for prompt in texts]
    assert engine.scheduler.counters.preemptions > 0


@pytest.mark.usefixtures("prepared_on")
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("chunk", [0, 9])
def test_forced_preemption_does_not_change_greedy_outputs(prefix_caching: bool, chunk: int) -> None:
    texts = prompts(24)
    engine = stub_engine(
        num_kv_blocks=14,
        max_model_len=200,
        enable_prefix_caching=prefix_caching,
        long_prefill_token_threshold=chunk,
        max_num_batched_tokens=40,
    )
    assert serve(engine, texts, output=60) == [expected(prompt, 60) for prompt in texts]
    assert engine.scheduler.counters.preemptions > 5


def test_a_prefix_hit_computes_less_and_answers_the_same() -> None:
    engine = stub_engine()
    prompt = prompts(1)[0]
    first, second = (serve(engine, [prompt])[0] for _ in range(2))
    assert first == second == expected(prompt, 24)
    assert engine.scheduler.counters.prefix_hit_tokens == (len(prompt) - 1) // 16 * 16


def test_the_next_turn_finds_the_output_of_the_last_one_in_the_cache() -> None:
    engine = stub_engine()
    turn = prompts(1)[0]
    answer = serve(engine, [turn], output=40)[0]
    after = [*turn, *answer, 5, 6, 7]
    assert serve(engine, [after]) == [expected(after, 24)]
    shared = (len(turn) + len(answer) - 1) // 16 * 16  # the last token was never computed
    assert engine.scheduler.counters.prefix_hit_tokens == shared


def test_a_block_of_equal_tokens_behind_another_prefix_is_not_a_hit() -> None:
    engine = stub_engine()
    same = [7] * 16
    serve(engine, [[1] * 16 + same + [3]])
    assert serve(engine, [[2] * 16 + same + [3]]) == [expected([2] * 16 + same + [3], 24)]
    assert engine.scheduler.counters.prefix_hit_tokens == 0


@pytest.mark.usefixtures("prepared_on")
def test_padded_decode_batches_give_the_outputs_of_exact_ones() -> None:
    texts = prompts(16)
    engine = stub_engine(num_kv_blocks=200, max_num_seqs=16)
    with_graphs(engine, (1, 2, 4, 8, 12))
    sequences = [
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=4 + 2 * i))
        for i, prompt in enumerate(texts)
    ]
    run_all(engine)
    for i, sequence in enumerate(sequences):
        assert sequence.output_ids == expected(texts[i], 4 + 2 * i)
    steps = engine.recorder.log().steps
    ways = zip(steps["decode_seqs"], steps["regime"], steps["bucket"], strict=True)
    taken = {decodes: (regime, bucket) for decodes, regime, bucket in ways}
    assert taken[16] == taken[13] == ("eager", 0)
    assert [taken[n] for n in (12, 9, 8, 5, 4, 3, 2, 1)] == [
        ("graph", bucket) for bucket in (12, 12, 8, 8, 4, 4, 2, 1)
    ]


def answer(prompt: str, **params: Any) -> Sequence:
    """Served beside other requests, with a tokenizer of one character per token."""
    engine = stub_engine(tokenizer=Letters())
    other = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    engine.add_request("something else", other)
    sequence = engine.add_request(prompt, SamplingParams(temperature=0, **params))
    engine.add_request("and another", other)
    run_all(engine)
    return sequence


def all_of(prompt: str, count: int = 40) -> str:
    """What the model would say if nothing stopped it."""
    letters = Letters()
    return letters.decode(expected(letters.encode(prompt), count))


def test_end_of_sequence_stops_and_is_no_text() -> None:
    prompt = next(p for p in (f"A{chr(i)}" for i in range(40, 120)) if " " in all_of(p)[1:30])
    whole = all_of(prompt)
    sequence = answer(prompt, max_tokens=40)
    assert sequence.text() == whole[: whole.index(" ")]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", None)
    assert sequence.output_ids[-1] == 0
    ignoring = answer(prompt, max_tokens=40, ignore_eos=True)
    assert (ignoring.text(), ignoring.finish_reason) == (whole, "length")


def test_stop_strings_cut_the_text_before_or_after_them() -> None:
    whole = all_of("ABC")
    stop = whole[7:10]
    sequence = answer("ABC", max_tokens=40, ignore_eos=True, stop=[stop, "never said"])
    assert sequence.text() == whole[: whole.index(stop)]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", stop)
    assert len(sequence.output_ids) == whole.index(stop) + 3
    kept = answer("ABC", max_tokens=40, ignore_eos=True, stop=stop, include_stop_str_in_output=True)
    assert kept.text() == whole[: whole.index(stop) + 3]


def test_stop_token_ids_stop_and_are_named_as_the_reason() -> None:
    tokens = expected(Letters().encode("ABC"), 40)
    sequence = answer("ABC", max_tokens=40, ignore_eos=True, stop_token_ids=[tokens[5]])
    assert sequence.output_ids == tokens[: tokens.index(tokens[5]) + 1]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", tokens[5])


def test_nothing_stops_a_sequence_before_its_least_length() -> None:
    sequence = answer("ABC", max_tokens=40, min_tokens=20, stop=all_of("ABC")[3:5])
    assert len(sequence.output_ids) > 20
    assert 0 not in sequence.output_ids[:20], "end of sequence was sampled though it was forbidden"


def test_a_sequence_ends_at_the_longest_length_there_is() -> None:
    engine = stub_engine(max_model_len=64)
    sequence = engine.add_request([1] * 40, SamplingParams(temperature=0, max_tokens=None))
    run_all(engine)
    assert (len(sequence.output_ids), sequence.finish_reason) == (24, "length")


def test_the_lm_head_reads_only_rows_that_emit() -> None:
    class Counting(StubModel):
        rows = 0

        def logits(self, hidden: Any) -> Any:
            self.rows += len(hidden)
            return super().logits(hidden)

    model = Counting()
    engine = stub_engine(model, max_num_batched_tokens=16)
    serve(engine, prompts(5), output=10)
    assert model.rows == 5 * 10
