"""Which grammars are accepted, without the package that compiles it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blis_py.errors import InputError
from engine.grammar.json_schema import enforceable
from engine.grammar.params import StructuredOutputsParams
from engine.grammar.regex import as_compiled
from engine.grammar.vocabulary import followers, token_bytes
from engine.models.tokenizer import ByteTokenizer, JsonTokenizer
from engine.sampling_params import SamplingParams


def test_former_names_mean_the_same() -> None:
    now = SamplingParams(structured_outputs={"regex": "a+"})
    assert SamplingParams(guided_regex="a+") == now
    assert SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+")) == now
    assert replace(now, seed=1).structured_outputs == StructuredOutputsParams(regex="a+")
    schema = {"type": "integer"}
    assert SamplingParams(guided_json=schema) == SamplingParams(
        structured_outputs={"json": json.dumps(schema)}
    )


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"rgx": "a"}}, "structured_outputs.rgx"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "a", "guided_json": {}}, "structured_outputs"),
        ({"guided_regex": 5}, "structured_outputs.regex"),
        ({"guided_json": [1]}, "structured_outputs.json"),
        ({"guided_json": {"const": {1, 2}}}, "structured_outputs.json"),
        ({"guided_choice": []}, "structured_outputs.choice"),
        ({"guided_choice": "yes"}, "structured_outputs.choice"),
    ],
    ids=str,
)
def test_a_form_that_is_none_is_refused_by_name(params: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        SamplingParams(**params)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "minimun": 5}, "minimun"),
        ({"minimum": 5}, "minimum"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "properties.a.not"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "integer", "anyOf": [{"minimum": 5}]}, "type"),
        ({"$ref": "#/$defs/x", "minimum": 5, "$defs": {"x": {"type": "integer"}}}, "minimum"),
        ({"$ref": "https://example.org/schema"}, "$ref"),
        ({"allOf": [{"type": "integer"}, {"type": "integer", "maximum": 5}]}, "allOf"),
        ({"type": "string", "enum": ["a", 1]}, "enum"),
        ({"type": "string", "minLength": 2, "pattern": "^a*$"}, ""),
        ({"type": "string", "format": "iri"}, "format"),
        ({"type": "string", "pattern": "a^b"}, "pattern"),
        ({"type": "object", "properties": {}, "required": ["b"]}, "required"),
        ({"type": "object", "additionalProperties": True, "minProperties": 2}, "minProperties"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "int"}, "type"),
        ({"type": "array", "items": [{"type": "integer"}]}, "items"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_kept_to_the_letter_is_refused(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        enforceable(json.dumps(schema))
    assert caught.value.key == f"structured_outputs.json.{path}".rstrip(".")


@pytest.mark.parametrize("text", ['{"type": 5}', '{"properties": []}', "[1]", '"a"', "{"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"structured_outputs\.json"):
        enforceable(text)


def test_a_schema_as_pydantic_writes_it_is_taken() -> None:
    from pydantic import BaseModel, Field

    class Inner(BaseModel):
        tags: list[str] = Field(min_length=1, max_length=3)
        kind: str | None = None

    class Outer(BaseModel):
        name: str = Field(pattern="^[a-z]*$", description="lower case")
        age: int = Field(ge=0, lt=150)
        inner: Inner

    schema = Outer.model_json_schema()
    assert json.loads(enforceable(json.dumps(schema))) == schema


def test_lengths_become_a_pattern_that_keeps_control_characters_out() -> None:
    kept = json.loads(enforceable('{"type": "string", "minLength": 1, "maxLength": 3}'))
    assert kept == {"type": "string", "pattern": "^.{1,3}$"}


@pytest.mark.parametrize(
    ("regex", "compiled"),
    [
        ("a.c", r"a[^\n]c"),
        (r"a\.c", r"a\.c"),
        ("[.]", "[.]"),
        (r"\s[\s]", r"[ \t\n\r\f\v][ \t\n\r\f\v]"),
        ("[]a]b]", r"[\]a]b]"),
        ("[^]]", r"[^\]]"),
        ("^[$^]a$", "^[$^]a$"),
        (r"\$\^", r"\$\^"),
        (r"[a-z]+\d+x+", r"[a-z][a-z]*\d\d*xx*"),
        (r"\x41{3}[^.]{2,}?b{2,3}", r"\x41\x41\x41[^.][^.][^.]*?b{2,3}"),
        ("(ab)+(c|d+){2}", "(ab)+(c|dd*){2}"),
        ("a{0}b{0,}c{70}", "a{0}b{0,}c{70}"),
        ("a++", "aa*+"),
    ],
)
def test_a_regex_means_what_it_means_in_python(regex: str, compiled: str) -> None:
    assert as_compiled(regex) == compiled


@pytest.mark.parametrize("regex", ["a^b", "a$b", r"\Aa", r"a\Z", r"\bword"])
def test_what_would_be_overlooked_in_a_regex_is_refused(regex: str) -> None:
    with pytest.raises(InputError, match=re.escape("structured_outputs.regex")):
        as_compiled(regex)


# ---- the bytes of tokens --------------------------------------------------------------------------

TEXT = 'naïve {"a": 1}\n\t漢字 😀 <tool> x'


def trained(tmp_path: Path, kind: str) -> JsonTokenizer:
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

    if kind == "byte-level":
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet))
    else:
        pieces = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "a", "n", "▁x", "x"]
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "x")], byte_fallback=True))
        made.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
        made.normalizer = tokenizers.normalizers.Replace(" ", "▁")
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    made.add_tokens([AddedToken("<tool>", special=False)])
    made.add_special_tokens([AddedToken("<|end|>")])
    made.save(str(tmp_path / "tokenizer.json"))
    return JsonTokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
def test_the_bytes_of_tokens_add_up_to_the_text(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, kind)
    ids = tokenizer.encode(TEXT + "<|end|>")
    found = token_bytes(tokenizer, tokenizer.vocab_size + 5)
    assert b"".join(found[token] for token in ids).decode() == tokenizer.decode(ids) == TEXT
    assert found[ids[-1]] == b"", "a special token has no text"
    assert found[-5:] == [b""] * 5, "nor have ids that no token has"


def test_ids_beyond_the_logits_are_left_out(tmp_path: Path) -> None:
    assert len(token_bytes(trained(tmp_path, "byte-level"), 100)) == 100
    assert token_bytes(ByteTokenizer(264), 264)[255:] == [b"\xff"] + [b""] * 8


def test_only_bytes_that_make_a_character_follow_its_first(tmp_path: Path) -> None:
    bytes_of = [bytes([i]) for i in range(256)] + [b"x\xed", b"\x9f!", b"\xa0"]
    table = followers(bytes_of)
    allowed = {
        first: {t for t in range(len(bytes_of)) if words[t >> 5] >> (t & 31) & 1}
        for first, words in table.items()
    }
    assert set(allowed) == {0xE0, 0xED, 0xF0, 0xF4, 256}
    assert allowed[0xED] == allowed[256] == {*range(0x80, 0xA0), 257}
    assert allowed[0xE0] == {*range(0xA0, 0xC0), 258}
    assert allowed[0xF0] == {*range(0x90, 0xC0), 257, 258}
    assert allowed[0xF4] == set(range(0x80, 0x90))


# ---- without the package --------------------------------------------------------------------------


def test_without_xgrammar_only_a_request_that_needs_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from stub_engine import Letters, run_all, stub_engine

    monkeypatch.setitem(sys.modules, "xgrammar", None)
    engine = stub_engine(tokenizer=Letters())
    other = engine.add_request([1, 2], SamplingParams(temperature=0, max_tokens=4))
    with pytest.raises(InputError, match="xgrammar") as caught:
        engine.add_request([1, 2], SamplingParams(guided_regex="a"))
    assert "pip install" in str(caught.value)
    run_all(engine)
    assert len(other.output_ids) == 4
