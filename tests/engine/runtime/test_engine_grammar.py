"""Constrained decoding on the tiny model: outputs are of their grammar, whatever the engine does."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from grammar_forms import CROWDED, EOS, PROMPT, constrained, of_its_form, random_forms, served, tiny_engine
from stub_engine import assert_no_leak, run_all
from virtual_clock import StepClock

from blis_py.calibrate.parity import replay_steps
from blis_py.errors import InputError
from blis_py.traces.steplog import read_step_log
from blis_py.traces.steplog_columns import MASK_KINDS
from engine.engine import LLMEngine
from engine.grammar.compiler import texts_compiler
from engine.grammar.params import StructuredOutputsParams
from engine.sampling_params import SamplingParams

pytest.importorskip("xgrammar")


@pytest.fixture(scope="module")
def shared() -> LLMEngine:
    """For tests that only add requests and serve them all."""
    return tiny_engine()


@pytest.fixture
def engine(shared: LLMEngine) -> LLMEngine:
    shared.reset()
    return shared


# ---- outputs are of their grammar -----------------------------------------------------------------


@pytest.mark.parametrize("prefix_cache", ["hash", "radix", "none"])
def test_outputs_are_of_their_grammar_across_chunks_preemption_and_prefix_hits(prefix_cache: str) -> None:
    engine = tiny_engine(prefix_cache=prefix_cache, **CROWDED)
    params = [
        constrained(structured_outputs=form, seed=i, logprobs=1 if i % 5 == 0 else None)
        for i, form in enumerate(random_forms(seed=3, count=36))
    ]
    free = SamplingParams(temperature=0, max_tokens=40)
    everyone = [
        own for i, params in enumerate(params) for own in ([params, free] if i % 3 == 0 else [params])
    ]
    sequences = served(engine, *everyone, prompt=PROMPT * 2)

    preempted = {s.index for s in sequences if s.request.preemptions and s.params.structured_outputs}
    whole = [s for s in sequences if s.finish_reason == "stop" and s.params.structured_outputs]
    assert preempted, "no request was preempted"
    assert len(whole) >= 30
    for sequence in whole:
        assert of_its_form(sequence.text(), sequence.params), (sequence.text(), sequence.params)
        assert sequence.output_ids.count(EOS) == 1
    assert {s.error for s in sequences} == {None}
    for sequence in sequences:
        assert sequence.params.logprobs is None or len(sequence.logprobs) == len(sequence.output_ids)
    assert replay_steps(engine.recorder.log()).share == 1, "the simulator forms other batches"
    free_texts = {s.text() for s in sequences if not s.params.structured_outputs}
    assert free_texts == {served(engine, free, prompt=PROMPT * 2)[0].text()}, "rows without grammar changed"


def test_a_constrained_output_does_not_depend_on_the_batch(engine: LLMEngine) -> None:
    params = [
        constrained(structured_outputs=form, seed=i) for i, form in enumerate(random_forms(seed=5, count=12))
    ]
    together = [s.output_ids for s in served(engine, *params)]
    crowded = [s.output_ids for s in served(tiny_engine(**CROWDED), *params)]
    alone = [served(engine, own)[0].output_ids for own in params]
    assert together == crowded == alone


def test_a_greedy_model_writes_what_it_would_if_that_is_of_the_grammar(engine: LLMEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    greedy = SamplingParams(temperature=0, max_tokens=60)
    forced = SamplingParams(temperature=0, max_tokens=60, structured_outputs={"json": schema})
    free, same = served(engine, greedy, forced)
    assert free.output_ids == same.output_ids
    assert json.loads(same.text()) == {"name": "bo", "age": 7}


def test_text_is_utf_8_whatever_bytes_the_model_likes(engine: LLMEngine) -> None:
    """The matcher by itself would also go on to surrogates, which no text has."""
    params = [constrained(guided_regex="[^ -~]{4}", seed=i) for i in range(60)]
    for sequence in served(engine, *params):
        text = bytes(sequence.output_ids[:-1]).decode()
        assert re.fullmatch("[^ -~]{4}", text)
    grammar = engine.grammars.begin(params[0], frozenset({EOS}))
    assert grammar is not None
    for first, seconds in ((0xED, range(0x80, 0xA0)), (0xE1, range(0x80, 0xC0))):
        assert grammar.accept(first)
        assert allowed(grammar) == set(seconds)
        grammar.rollback()


def test_log_probabilities_are_the_models_own(engine: LLMEngine) -> None:
    """Not those of the tokens that the grammar leaves."""
    constrained_one, free = served(
        engine,
        SamplingParams(temperature=0, max_tokens=1, logprobs=2, guided_regex="z+"),
        SamplingParams(temperature=0, max_tokens=1, logprobs=2),
    )
    best = free.output_ids[0]
    assert constrained_one.output_ids == [ord("z")]
    assert constrained_one.logprobs[0][best] == pytest.approx(free.logprobs[0][best])
    assert constrained_one.logprobs[0][ord("z")] < free.logprobs[0][best]


# ---- where outputs end ----------------------------------------------------------------------------


def test_the_end_comes_only_where_the_grammar_may_end(engine: LLMEngine) -> None:
    """The model likes to end after its answer; here that is only half of what the grammar wants."""
    (sequence,) = served(engine, SamplingParams(temperature=0, max_tokens=90, guided_regex=r"(\{[^}]*\}){2}"))
    assert re.fullmatch(r"(\{[^}]*\}){2}", sequence.text())
    assert sequence.output_ids[-1] == EOS
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", None)


def test_with_ignore_eos_an_output_goes_on_while_it_may_and_ends_where_it_must(engine: LLMEngine) -> None:
    must, may = served(
        engine,
        constrained(guided_regex="ab{2,4}c", ignore_eos=True),
        constrained(guided_regex="[ab]+", ignore_eos=True, max_tokens=40),
    )
    assert re.fullmatch("ab{2,4}c", must.text())
    assert (must.finish_reason, must.stop_reason, must.output_ids[-1]) == ("stop", None, ord("c"))
    assert (may.finish_reason, len(may.output_ids)) == ("length", 40)
    assert re.fullmatch("[ab]{40}", may.text())


def test_a_length_stop_leaves_the_beginning_of_an_output(engine: LLMEngine) -> None:
    (sequence,) = served(engine, constrained(guided_regex="a{30}", max_tokens=10))
    assert (sequence.text(), sequence.finish_reason) == ("a" * 10, "length")


def test_stop_strings_and_stop_tokens_end_a_constrained_output(engine: LLMEngine) -> None:
    string, ordinary, special = served(
        engine,
        constrained(guided_regex="[ab]{3}xy[ab]+", stop="xy"),
        constrained(guided_regex="[ab]{3}xy[ab]+", stop_token_ids=[ord("x")]),
        constrained(guided_regex="a{3}", stop_token_ids=[258], ignore_eos=True),
    )
    assert re.fullmatch("[ab]{3}", string.text())
    assert string.stop_reason == "xy"
    assert re.fullmatch("[ab]{3}", ordinary.text())
    assert ordinary.stop_reason == ord("x")
    assert special.output_ids == [*b"aaa", 258], "a token without text may come where the grammar may end"


def test_min_tokens_holds_back_the_end_that_the_grammar_permits(engine: LLMEngine) -> None:
    (sequence,) = served(engine, constrained(guided_regex="a*", min_tokens=12))
    assert len(sequence.output_ids) > 12
    assert re.fullmatch("a{12,}", sequence.text())


# ---- one request alone fails ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"guided_regex": "a{4}", "min_tokens": 6}, "after 4: the output may end there, but min_tokens = 6"),
        ({"guided_regex": "a{4}", "min_tokens": 6, "ignore_eos": True}, "after 4: the output may end there"),
        ({"guided_grammar": 'root ::= "aa" deeper\ndeeper ::= deeper "b"'}, "allows no token after 2"),
    ],
    ids=["min_tokens", "min_tokens without an end token", "dead end"],
)
def test_an_output_that_can_go_no_further_fails_alone(
    engine: LLMEngine, form: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed: list[int] = []
    keep = engine.executor.keep_tokens
    monkeypatch.setattr(
        engine.executor, "keep_tokens", lambda batch, t: (relayed.extend(t.tolist()), keep(batch, t))
    )
    others = [constrained(guided_regex="[bc]{20}", seed=1), SamplingParams(temperature=0, max_tokens=30)]
    expected = [s.output_ids for s in served(engine, *others)]
    stuck = engine.add_request(PROMPT, constrained(**form, logprobs=0))
    sequences = [engine.add_request(PROMPT, own) for own in others]
    emitted: list[int] = []
    while engine.has_unfinished:
        output = engine.step()
        emitted += [t for s, t in zip(output.sequences, output.tokens, strict=True) if s is stuck]
    assert_no_leak(engine.scheduler, engine.executor)
    assert stuck.finish_reason == "error"
    assert problem in str(stuck.error)
    assert emitted == stuck.output_ids, "a token outside the vocabulary was emitted"
    assert min(relayed) >= 0, "no embedding has such a token"
    assert len(stuck.logprobs) == len(stuck.output_ids)
    assert [s.output_ids for s in sequences] == expected


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ({"guided_regex": "(a"}, "structured_outputs.regex"),
        ({"guided_grammar": "rot ::= x"}, "structured_outputs.grammar"),
        ({"guided_grammar": 'root ::= root "a"'}, "structured_outputs.grammar"),
        ({"guided_json": "{"}, "structured_outputs.json"),
        ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}}, "structured_outputs.json"),
        ({"guided_regex": "", "min_tokens": 1}, "structured_outputs.regex"),
    ],
    ids=str,
)
def test_a_grammar_that_does_not_compile_or_allows_nothing_is_refused_alone(
    engine: LLMEngine, form: dict[str, Any], key: str
) -> None:
    other = engine.add_request(PROMPT, constrained(guided_regex="[bc]{5}"))
    with pytest.raises(InputError, match=re.escape(key)):
        engine.add_request(PROMPT, SamplingParams(**form))
    run_all(engine)
    assert re.fullmatch("[bc]{5}", other.text())


# ---- the seam -------------------------------------------------------------------------------------


def allowed(grammar: Any) -> set[int]:
    from engine.grammar import compiler, state

    bitmask = torch.zeros((1, 9), dtype=torch.int32)
    state.allowed([grammar], bitmask, [0], compiler.batch_matcher(1))
    return {token for token in range(264) if bitmask[0, token >> 5] >> (token & 31) & 1}


def test_rollback_is_as_if_the_latest_tokens_had_never_been(engine: LLMEngine) -> None:
    params = SamplingParams(guided_regex="ab?é+")
    grammar = engine.grammars.begin(params, frozenset({EOS}))
    assert grammar is not None
    states = []
    for token in "abéé".encode():
        states.append(allowed(grammar))
        assert grammar.accept(token)
    assert grammar.accept(EOS)
    grammar.rollback()
    for before in reversed(states):
        grammar.rollback()
        assert allowed(grammar) == before
    assert grammar.tokens == []
    assert not grammar.accept(ord("b"))
    assert allowed(grammar) == {ord("a")}


def test_a_large_grammar_is_refused_where_requests_are_compiled(
    engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile = texts_compiler(*engine.grammars.vocabulary)
    small, large = (StructuredOutputsParams(choice=["x" * length]) for length in (10, 9000))
    monkeypatch.setattr("engine.grammar.compiler._MOST_MIB", 1)
    engine.grammars.learn(small, compile(small))
    assert engine.grammars.has(small)
    with pytest.raises(InputError, match=r"structured_outputs\.choice: compiles to more than 1 MiB"):
        compile(large)


def test_a_grammar_is_compiled_once(engine: LLMEngine) -> None:
    params = SamplingParams(guided_regex="[a-m]{3,17}x")
    compiler = engine.grammars._compiler
    before = compiler.get_cache_size_bytes()
    engine.grammars.begin(params, frozenset({EOS}))
    after = compiler.get_cache_size_bytes()
    engine.grammars.begin(SamplingParams(guided_regex="[a-m]{3,17}x"), frozenset())
    assert before < after == compiler.get_cache_size_bytes()


def test_special_tokens_are_never_allowed_within_an_output(engine: LLMEngine) -> None:
    grammar = engine.grammars.begin(SamplingParams(guided_regex=r"[^a]*"), frozenset({EOS}))
    assert {token for token in allowed(grammar) if token >= 256} == {EOS}


def test_an_end_of_sequence_that_looks_like_text_is_no_text() -> None:
    """A checkpoint may end by a token that its tokenizer does not call special."""
    from engine.grammar.compiler import Grammars
    from engine.models.tokenizer import ByteTokenizer

    grammar = Grammars(ByteTokenizer(264, [ord("!")]), 264).begin(
        SamplingParams(guided_regex="[^a]*"), frozenset()
    )
    assert {ord("!"), ord("a")} & allowed(grammar) == set()
    assert ord("b") in allowed(grammar)


def test_a_sequence_that_is_over_allows_everything_in_a_step_that_was_launched_before(
    engine: LLMEngine,
) -> None:
    """Its token will be discarded; that of its neighbour counts."""
    from engine.emitters import Emitters
    from engine.grammar.masks import Masks

    over, goes_on = (engine.add_request(PROMPT, constrained(guided_regex="a+")) for _ in range(2))
    free = engine.add_request(PROMPT, SamplingParams())
    over.finish_reason = "stop"
    emitters = Emitters([over, free, goes_on], [], torch.zeros(3).numpy(), 0, frozenset(), True)
    mask = Masks(264, StepClock()).launched(emitters, CPU)
    assert mask is not None
    bitmask = mask.fill()
    assert (bitmask[:2] == -1).all()
    assert [token for token in range(264) if bitmask[2, token >> 5] >> (token & 31) & 1] == [ord("a")]
    over.finish_reason = None
    for sequence in (over, goes_on, free):
        engine.abort_request(sequence.request.id)
    run_all(engine)


CPU = torch.device("cpu")


# ---- mask time ------------------------------------------------------------------------------------


def test_mask_time_is_reported_of_each_step_and_is_a_part_of_sampling(
    engine: LLMEngine, tmp_path: Any
) -> None:
    served(
        engine, *[constrained(guided_regex="[a-z]{8}")] * 3, SamplingParams(max_tokens=20, ignore_eos=True)
    )
    engine.recorder.write(tmp_path / "steps.csv")
    log = read_step_log(tmp_path / "steps.csv")
    rows, mask_ns, exposed_ns = (log.steps[name] for name in MASK_KINDS)
    assert rows == [3] * 9 + [0] * 11
    assert all((ns > 0) == (count > 0) for ns, count in zip(mask_ns, rows, strict=True))
    assert all(ns <= sample_ns for ns, sample_ns in zip(mask_ns, log.steps["sample_ns"], strict=True))
    assert exposed_ns == mask_ns, "the forward is over before the masks are begun"


def test_a_step_without_emitting_sequences_has_no_masks() -> None:
    engine = tiny_engine(max_num_batched_tokens=16)
    served(engine, constrained(guided_regex="a"), prompt="1")
    served(engine, constrained(guided_regex="b", max_tokens=1), prompt="x" * 40)
    assert engine.recorder.log().steps["constrained_rows"] == [1, 1, 0, 0, 1]


def test_without_grammars_nothing_is_reported_of_masks(engine: LLMEngine) -> None:
    served(engine, SamplingParams(max_tokens=4))
    assert not MASK_KINDS.keys() & engine.recorder.log().steps.keys()


@pytest.mark.parametrize(
    ("forward_end_ns", "exposed_ns"), [(None, 1000), (1500, 500), (900, 1000), (5000, 0)]
)
def test_what_runs_beside_the_forward_is_hidden(
    engine: LLMEngine, forward_end_ns: int | None, exposed_ns: int
) -> None:
    from engine.emitters import Emitters
    from engine.grammar.masks import Masks

    sequence = engine.add_request(PROMPT, constrained(guided_regex="ab"))
    masks = Masks(264, StepClock(tick_ns=1000))
    first, second = (
        masks.launched(Emitters([sequence], [], torch.zeros(1).numpy(), 0, frozenset(), True), CPU)
        for _ in range(2)
    )
    assert first is not None
    assert second is not None
    bitmask = first.fill()
    assert first.times(forward_end_ns) == (1, 1000, exposed_ns)
    before = bitmask.clone()
    assert sequence.grammar is not None
    assert sequence.grammar.accept(ord("a"))
    assert not torch.equal(second.fill(), before)
    assert torch.equal(bitmask, before), "still in use while the next batch's is filled"
    assert first.times(forward_end_ns) == (1, 1000, exposed_ns), "of a batch, whatever came after it"
    assert masks.launched(Emitters([], [], torch.zeros(0).numpy(), 0, frozenset(), False), CPU) is None
    engine.abort_request(sequence.request.id)
    run_all(engine)
