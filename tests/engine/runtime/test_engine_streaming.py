"""Outputs are delivered as they come, beside the engine's thread; failures there are reported."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest
from mixed_load import assert_received_all, random_settings, serve_load
from stub_engine import Letters, expected, run_all, stub_engine

from engine.engine import LLMEngine
from engine.llm import generate, stream
from engine.models.tokenizer import ByteTokenizer
from engine.output_stream import OutputDelta, OutputStream, OutputThread
from engine.output_text import OutputText
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [[3, 1, 4, i] for i in range(4)]
BOTH_LOOPS = pytest.mark.parametrize("overlapped", [False, True], ids=["synchronous", "overlapped"])


def engine_with(tokenizer: Any = None, overlapped: bool = False, **settings: Any) -> LLMEngine:
    return stub_engine(tokenizer=tokenizer or Letters(), async_scheduling=overlapped, **settings)


class Watched(Letters):
    """Records the threads of its calls."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def decode(self, ids: Any) -> str:
        self.threads.add(threading.current_thread().name)
        return super().decode(ids)


class Broken(Letters):
    """Cannot say what one token means."""

    def __init__(self, token: int) -> None:
        self.token = token

    def decode(self, ids: Any) -> str:
        if self.token in ids:
            raise ValueError("no such piece")
        return super().decode(ids)


@BOTH_LOOPS
@pytest.mark.parametrize("seed", range(3))
def test_clients_get_every_output_piece_by_piece(seed: int, overlapped: bool) -> None:
    rng = Random(seed)
    load = serve_load(engine_with(overlapped=overlapped, **random_settings(rng)), rng)
    assert_received_all(load)
    assert {s.finish_reason for s in load.sequences} >= {"stop", "length"}
    assert any(isinstance(s.stop_reason, str) for s in load.sequences)


@BOTH_LOOPS
def test_only_texts_with_stop_strings_are_decoded_by_the_engines_thread(overlapped: bool) -> None:
    tokenizer = Watched()
    engine = engine_with(tokenizer, overlapped)
    engine.add_request(PROMPTS[0], GREEDY)
    run_all(engine)
    engine.outputs.shutdown()
    assert tokenizer.threads == {"output"}
    tokenizer.threads.clear()
    engine = engine_with(tokenizer, overlapped)
    with_stop = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop="never")
    engine.add_request(PROMPTS[0], with_stop)
    run_all(engine)
    engine.outputs.shutdown()
    assert tokenizer.threads == {threading.current_thread().name}


def test_text_without_a_reader_is_not_decoded() -> None:
    tokenizer = Watched()
    engine = engine_with(tokenizer)
    engine.add_request(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12, detokenize=False))
    run_all(engine)
    engine.shutdown()
    assert not tokenizer.threads


def piece_by_piece(text: str, stop: tuple[str, ...] = (), held_back: int = 0) -> list[str]:
    """What a client receives with each byte of a text, and at the end."""
    lines: list[OutputDelta] = []
    tokenizer = ByteTokenizer(256)
    decoder = None if stop else OutputText(tokenizer)
    stream = OutputStream(decoder, held_back, lines.append, lambda: None, lambda failed: None)
    own = OutputText(tokenizer, stop)
    for token in tokenizer.encode(text):
        found = own.append_and_stop(token) if stop else None
        stream.add("a", [token], True, own.text)
        if found:
            break
    stream.end("a", "stop", None, None, own.text)
    return [delta.text for delta in lines]


def test_a_character_of_several_tokens_is_delivered_whole() -> None:
    assert piece_by_piece("a🙂é") == ["a", "", "", "", "🙂", "", "é", ""]


def test_what_may_begin_a_stop_string_is_not_delivered_before_that_is_known() -> None:
    assert piece_by_piece("ab<en<end>c", ("<end>",), 4) == ["", "", "", "", "a", "b", "<", "e", "n", "", ""]
    assert piece_by_piece("ab<en", ("<end>",), 4) == ["", "", "", "", "a", "b<en"]


@BOTH_LOOPS
@pytest.mark.parametrize("stop", [(), ("never",)], ids=["output thread", "engine's thread"])
def test_a_text_that_cannot_be_decoded_fails_its_request_alone(overlapped: bool, stop: Any) -> None:
    outputs = [expected(prompt, 40) for prompt in PROMPTS]
    ours = next(
        token for token in outputs[1][2:20] if not any(token in o for i, o in enumerate(outputs) if i != 1)
    )
    engine = engine_with(Broken(ours), overlapped)
    lines: list[list[OutputDelta]] = [[] for _ in PROMPTS]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=stop)
    sequences = [
        engine.add_request(prompt, params, on_delta=own.append)
        for prompt, own in zip(PROMPTS, lines, strict=True)
    ]
    while engine.has_unfinished:
        engine.step()
        engine.outputs.settle()
    ends = [own[-1] for own in lines]
    assert [delta.finish_reason for delta in ends] == ["length", "error", "length", "length"]
    assert ends[1].error == "ValueError: no such piece"
    assert sequences[1].finish_reason == "error"
    assert len(sequences[1].output_ids) < 40, "it is not computed to the end for nothing"
    whole = [s.text() for i, s in enumerate(sequences) if i != 1]
    assert whole == [Letters().decode(o) for i, o in enumerate(outputs) if i != 1]


def test_an_output_whose_last_piece_cannot_be_decoded_is_an_error_too() -> None:
    answer = expected(PROMPTS[0], 12)
    tokenizer = Broken(answer[-1]) if answer.count(answer[-1]) == 1 else Broken(answer[0])
    (output,) = generate(engine_with(tokenizer), [PROMPTS[0]], [GREEDY])
    assert (output.finish_reason, output.error) == ("error", "ValueError: no such piece")


@BOTH_LOOPS
def test_a_client_that_fails_ends_its_own_request(overlapped: bool) -> None:
    engine = engine_with(overlapped=overlapped)

    def refuse(delta: OutputDelta) -> None:
        raise ConnectionError("gone")

    failing = engine.add_request(PROMPTS[0], GREEDY, on_delta=refuse)
    other = engine.add_request(PROMPTS[1], GREEDY)
    while engine.has_unfinished:
        engine.step()
        engine.outputs.settle()
    assert (failing.finish_reason, failing.error) == ("error", "ConnectionError: gone")
    assert other.text() == Letters().decode(expected(PROMPTS[1], 12))


@BOTH_LOOPS
def test_a_client_may_abort_and_read_the_text_from_its_callback(overlapped: bool) -> None:
    engine = engine_with(overlapped=overlapped)
    texts: list[str] = []

    def enough(delta: OutputDelta) -> None:
        texts.append(sequence.text())
        engine.abort_request(delta.request_id)

    sequence = engine.add_request(PROMPTS[0], GREEDY, on_delta=enough)
    while engine.has_unfinished:
        engine.step()
        engine.outputs.settle()
    assert sequence.finish_reason == "abort"
    assert texts[-1] == sequence.text() == Letters().decode(sequence.output_ids)


@BOTH_LOOPS
def test_shutdown_ends_unfinished_requests_with_an_error_and_joins_the_thread(overlapped: bool) -> None:
    engine = engine_with(overlapped=overlapped)
    lines: list[OutputDelta] = []
    sequence = engine.add_request(PROMPTS[0], GREEDY, on_delta=lines.append)
    for _ in range(4):
        engine.step()
    threads = [t for t in threading.enumerate() if t.name == "output"]
    engine.shutdown()
    assert not any(t.is_alive() for t in threads[-1:])
    assert (sequence.finish_reason, lines[-1].finish_reason) == ("abort", "abort")
    assert not engine.has_unfinished
    with pytest.raises(RuntimeError, match="has been shut down"):
        engine.add_request(PROMPTS[0], GREEDY)
    engine.shutdown()


def test_an_engine_that_is_forgotten_leaves_no_thread() -> None:
    before = {t for t in threading.enumerate() if t.name == "output"}
    thread = OutputThread()
    thread.put(lambda: None)
    thread.settle()
    (worker,) = {t for t in threading.enumerate() if t.name == "output"} - before
    del thread
    worker.join(600)
    assert not worker.is_alive()


def test_a_thread_that_broke_down_reports_it_and_is_not_waited_for() -> None:
    thread = OutputThread()

    def breaks() -> None:
        raise MemoryError("no room")

    thread.put(breaks)
    with pytest.raises(RuntimeError, match="output thread broke down: MemoryError: no room"):
        thread.settle()
    with pytest.raises(RuntimeError, match="output thread broke down"):
        thread.put(breaks)


@BOTH_LOOPS
def test_a_stream_yields_what_generate_returns(overlapped: bool) -> None:
    params = [GREEDY, SamplingParams(temperature=0, max_tokens=30), GREEDY, GREEDY]
    outputs = generate(engine_with(overlapped=overlapped), PROMPTS, params)
    texts = {output.request_id: "" for output in outputs}
    ends = {}
    for delta in stream(engine_with(overlapped=overlapped), PROMPTS, params):
        texts[delta.request_id] += delta.text
        if delta.finish_reason is not None:
            ends[delta.request_id] = delta.finish_reason
    assert texts == {output.request_id: output.text for output in outputs}
    assert ends == {output.request_id: output.finish_reason for output in outputs}


def test_a_client_that_stops_reading_ends_its_requests() -> None:
    engine = engine_with()
    deltas = stream(engine, PROMPTS, [GREEDY] * len(PROMPTS))
    next(deltas)
    deltas.close()
    assert not engine.has_unfinished


def test_neither_a_stop_string_nor_a_stop_token_is_delivered() -> None:
    answer = expected(PROMPTS[0], 12)
    text = Letters().decode(answer)
    place = text.index(text[6:9])
    by_string = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=text[6:9])
    by_token = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[answer[6]])
    for params, kept in ((by_string, text[:place]), (by_token, text[: answer.index(answer[6])])):
        deltas = list(stream(engine_with(), [PROMPTS[0]], [params]))
        assert "".join(delta.text for delta in deltas) == kept
