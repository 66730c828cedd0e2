"""Compilation of requests' structured-output parameters to grammars over a model's tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from blis_py.errors import InputError
from engine.grammar.json_schema import enforceable
from engine.grammar.params import StructuredOutputsParams
from engine.grammar.regex import as_compiled
from engine.grammar.state import Grammar, allowed
from engine.grammar.vocabulary import SPECIAL, Words, followers, token_bytes
from engine.models.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams

_CACHE_BYTES = 256 << 20
"""Size of the cache of compiled grammars, evicted least recently used first."""
_MOST_MIB = 128
"""Largest grammar of a server's request."""


class Grammars:
    """Compiler and cache of the requests' grammars.

    Args:
        vocab_size: logits per row; may exceed the tokenizer's vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._learnt: dict[StructuredOutputsParams, Any] = {}
        """Grammars compiled elsewhere, the least recently used first."""

    def begin(self, params: SamplingParams, stop_ids: frozenset[int]) -> Grammar | None:
        """The grammar of a request in its initial state; None without structured outputs.

        Args:
            stop_ids: tokens that end the request. Those without text are allowed where the grammar may end;
            others are text like any other.

        Raises:
            InputError: the grammar does not compile or allows nothing; xgrammar is not installed.
        """
        outputs = params.structured_outputs
        if outputs is None:
            return None
        assert isinstance(outputs, StructuredOutputsParams)
        xgrammar, compiled = _xgrammar(), self.compile(outputs)
        ends = sorted(token for token in stop_ids if self._bytes[token] == SPECIAL)
        matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=ends or None)
        words = -(-self._vocab_size // 32)
        grammar = Grammar(
            matcher,
            ends=bool(ends),
            words=words,
            followers=self._followers,
            min_tokens=params.min_tokens,
            held_back=stop_ids,
        )
        first = torch.zeros((1, words), dtype=torch.int32)
        allowed([grammar], first, [0], batch_matcher(1))
        if not first.any():
            raise InputError(grammar.stuck(), key=f"structured_outputs.{outputs.form}", value=_given(outputs))
        return grammar

    def compile(self, outputs: StructuredOutputsParams) -> Any:
        """The compiled grammar, from a cache if known.

        Raises:
            InputError: a grammar that does not compile.
        """
        known = self._learnt.get(outputs)
        return compiled(self._compiler, outputs) if known is None else known

    @property
    def vocabulary(self) -> tuple[list[bytes], int]:
        """Arguments of `texts_compiler`, which compiles for this vocabulary in another process.

        Raises:
            InputError: there is no tokenizer, or xgrammar is not installed.
        """
        _xgrammar()
        return self._bytes, self._vocab_size

    def has(self, outputs: StructuredOutputsParams) -> bool:
        """Whether the grammar was learnt; it is then the last to be evicted."""
        if outputs in self._learnt:
            self._learnt[outputs] = self._learnt.pop(outputs)
        return outputs in self._learnt

    def learn(self, outputs: StructuredOutputsParams, text: str) -> None:
        """Take over a grammar that another process has compiled for this vocabulary."""
        self._learnt[outputs] = _xgrammar().CompiledGrammar.deserialize_json(text, self._info)
        while len(self._learnt) > 1 and self._learnt_bytes() > _CACHE_BYTES:
            del self._learnt[next(iter(self._learnt))]

    def _learnt_bytes(self) -> int:
        return sum(int(one.memory_size_bytes) for one in self._learnt.values())

    @cached_property
    def _bytes(self) -> list[bytes]:
        if self._tokenizer is None:
            fix = "use a model with a tokenizer"
            raise InputError("needs a tokenizer", key="structured_outputs", fix=fix)
        texts = token_bytes(self._tokenizer, self._vocab_size)
        for token in self._tokenizer.eos_ids:
            if token < self._vocab_size:
                texts[token] = SPECIAL
        return texts

    @cached_property
    def _followers(self) -> dict[int, Words]:
        return followers(self._bytes)

    @cached_property
    def _info(self) -> Any:
        return _vocabulary(self._bytes, self._vocab_size)

    @cached_property
    def _compiler(self) -> Any:
        return _xgrammar().GrammarCompiler(self._info, cache_limit_bytes=_CACHE_BYTES)


def compiled(compiler: Any, outputs: StructuredOutputsParams) -> Any:
    """The grammar of a form.

    Raises:
        InputError: a grammar that does not compile.
    """
    try:
        match outputs.form:
            case "json":
                assert isinstance(outputs.json, str)
                spaces = not outputs.disable_any_whitespace
                separators = None if spaces else (",", ":")
                return compiler.compile_json_schema(
                    enforceable(outputs.json), any_whitespace=spaces, separators=separators
                )
            case "json_object":
                return compiler.compile_grammar(_JSON_OBJECT)
            case "regex":
                assert outputs.regex is not None
                return compiler.compile_regex(as_compiled(outputs.regex))
            case "choice":
                texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in outputs.choice or ())
                return compiler.compile_grammar(f"root ::= {texts}")
            case _:
                return compiler.compile_grammar(outputs.grammar)
    except InputError:
        raise
    except RecursionError:
        raise InputError("is nested too deeply", key=f"structured_outputs.{outputs.form}") from None
    except (RuntimeError, ValueError) as error:
        key = f"structured_outputs.{outputs.form}"
        raise InputError(f"does not compile: {_reason(error)}", key=key, value=_given(outputs)) from None


def texts_compiler(texts: list[bytes], vocab_size: int) -> Callable[[StructuredOutputsParams], str]:
    """Compiler of forms to the text of their grammars, for `Grammars.learn`; too large ones are refused."""
    compiler = _xgrammar().GrammarCompiler(_vocabulary(texts, vocab_size), cache_enabled=False)

    def text(outputs: StructuredOutputsParams) -> str:
        grammar = compiled(compiler, outputs)
        if int(grammar.memory_size_bytes) > _MOST_MIB << 20:
            key = f"structured_outputs.{outputs.form}"
            raise InputError(f"compiles to more than {_MOST_MIB} MiB", key=key, fix="make it shorter")
        return str(grammar.serialize_json())

    return text


def _vocabulary(texts: list[bytes], vocab_size: int) -> Any:
    xgrammar = _xgrammar()
    return xgrammar.TokenizerInfo(texts, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=[])


_JSON_OBJECT = r"""
root ::= "{" space (pair ("," space pair)*)? "}"
pair ::= string space ":" space value space
value ::= root | array | string | number | "true" | "false" | "null"
array ::= "[" space (value space ("," space value space)*)? "]"
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" hex hex hex hex)
hex ::= [0-9a-fA-F]
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
space ::= [ \n\t]*
"""


def _xgrammar() -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise InputError(
            f"needs the package xgrammar, which cannot be imported ({error})",
            key="structured_outputs",
            fix="pip install 'blis-py[engine]', or only pip install --no-deps xgrammar apache-tvm-ffi",
        ) from None
    return xgrammar


def batch_matcher(threads: int | str) -> Any:
    """xgrammar's matcher for masks of many outputs at a time.

    Args:
        threads: number of threads; `auto` = half of the machine's.
    """
    return _xgrammar().BatchGrammarMatcher(max_threads=threads)


def _reason(error: Exception) -> str:
    """The package's message, without its source location."""
    return " ".join(str(error).split("cc:", 1)[-1].split(":", 1)[-1].split())


def _given(outputs: StructuredOutputsParams) -> Any:
    return getattr(outputs, outputs.form)
