"""Encoding, decoding, end-of-sequence tokens, and text that comes token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.errors import InputError
from engine.models import Detokenizer, load_tokenizer
from engine.models.tokenizer import ByteTokenizer, Tokenizer

tokenizers = pytest.importorskip("tokenizers")

BYTES = ByteTokenizer(260, [257])


def checkpoint(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 1, "vocab_size": 260, **config}))
    return folder


def train(folder: Path) -> Path:
    """A byte-level BPE tokenizer, as most models have."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat and the hat sat, naïve café"] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(train(checkpoint(tmp_path_factory.mktemp("bpe"), eos_token_id=0)))


def test_a_tokenizer_json_is_used_when_there_is_one(trained: Tokenizer) -> None:
    ids = trained.encode("the cat")
    assert len(ids) < len("the cat")
    assert trained.decode([*ids, 0]) == "the cat"
    assert trained.vocab_size > 256 + len("<end>")
    assert trained.eos_ids == {0}


def test_without_a_tokenizer_json_tokens_are_bytes(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(checkpoint(tmp_path))
    assert tokenizer.encode("né") == [110, 195, 169]
    assert tokenizer.decode([110, 256, 195, 169, 259]) == "né"
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (260, frozenset())


def test_a_bundled_model_has_bytes_in_its_own_vocabulary() -> None:
    assert load_tokenizer("qwen3-0.6b").vocab_size == 151_936


def test_the_generation_config_names_the_end_tokens_before_the_config(tmp_path: Path) -> None:
    checkpoint(tmp_path, eos_token_id=7)
    assert load_tokenizer(tmp_path).eos_ids == {7}
    assert load_tokenizer(tmp_path / "config.json").eos_ids == {7}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    assert load_tokenizer(tmp_path).eos_ids == {8, 9}
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 1}))
    assert load_tokenizer(tmp_path).eos_ids == {7}


@pytest.mark.parametrize("value", ["</s>", -1, [1, None], True])
def test_an_end_token_that_is_no_id_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(InputError, match=r"config\.json: eos_token_id: must be a token id"):
        load_tokenizer(checkpoint(tmp_path, eos_token_id=value))


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    (checkpoint(tmp_path) / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(tmp_path)


def test_text_for_a_vocabulary_smaller_than_a_byte_is_refused() -> None:
    assert ByteTokenizer(100).encode("A") == [65]
    with pytest.raises(InputError, match="byte 122 is outside the vocabulary of 100 tokens"):
        ByteTokenizer(100).encode("Az")


@given(text=st.text())
def test_byte_tokens_come_back_as_the_text(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


@given(text=st.text(max_size=60).filter(lambda text: "\ufffd" not in text))
def test_streamed_text_is_whole_characters_and_adds_up(trained: Tokenizer, text: str) -> None:
    for tokenizer in (BYTES, trained):
        stream = Detokenizer(tokenizer)
        pieces = [stream.add(token) for token in tokenizer.encode(text)]
        assert "\ufffd" not in "".join(pieces)
        assert "".join(pieces) == stream.text == text
        assert stream.finish() == ""


@given(ids=st.lists(st.integers(0, 259), max_size=80))
def test_a_stream_of_any_tokens_ends_as_the_text_of_them_all(trained: Tokenizer, ids: list[int]) -> None:
    for tokenizer in (BYTES, trained):
        stream = Detokenizer(tokenizer)
        for token in ids:
            stream.add(token)
        stream.finish()
        assert stream.text == tokenizer.decode(ids)


def test_a_character_of_four_tokens_comes_with_its_last() -> None:
    stream = Detokenizer(BYTES)
    assert [stream.add(token) for token in BYTES.encode("a🙂b")] == ["a", "", "", "", "🙂", "b"]


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    stream = Detokenizer(BYTES)
    assert [stream.add(token) for token in [97, 0xF0, 0x9F]] == ["a", "", ""]
    assert stream.finish() == "\ufffd"


def test_tokens_that_never_make_text_are_not_held_back_forever() -> None:
    stream = Detokenizer(BYTES)
    for _ in range(100):
        stream.add(0xFF)
    assert len(stream.text) > 80
    assert [stream.add(token) for token in BYTES.encode("é")][-1].endswith("é")
