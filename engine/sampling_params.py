"""Sampling parameters and end conditions of one request; names and defaults of vLLM."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from numbers import Integral, Real
from typing import Any

from blis_py.errors import InputError
from engine.grammar.params import StructuredOutputsParams, form_of


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters; immutable, so one object may serve many requests.

    Raises:
        InputError: a value out of range.
    """

    temperature: float = 1.0
    """0 = greedy."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 or -1 = all."""
    top_p: float = 1.0
    """Sample from the most likely tokens that together have this probability."""
    min_p: float = 0.0
    """Sample from tokens with at least this share of the most likely one's probability."""
    seed: int | None = None
    """Seed of this request; `None` = derived from the engine's seed and the request number."""
    repetition_penalty: float = 1.0
    """Divisor of positive and factor of negative logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens in the output, once per occurrence."""
    max_tokens: int | None = 16
    """Most tokens to emit; `None` = up to `max_model_len`."""
    min_tokens: int = 0
    """Least number of tokens before an end of sequence or any stop condition."""
    stop: str | Sequence[str] = ()
    """Strings that end the output on their first occurrence."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the output, besides the model's own."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    """Treat the model's end of sequence as an ordinary token."""
    logprobs: int | None = None
    """Number of most likely tokens whose log-probabilities are returned beside the chosen one's; `None` =
    none at all."""
    detokenize: bool = True
    """Whether outputs carry text."""
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    """The form of the output; always a `StructuredOutputsParams` once it has been given."""
    guided_json: InitVar[str | Mapping[str, Any] | None] = None
    """Deprecated names of `structured_outputs`."""
    guided_regex: InitVar[str | None] = None
    guided_choice: InitVar[Sequence[str] | None] = None
    guided_grammar: InitVar[str | None] = None

    def __post_init__(
        self,
        guided_json: str | Mapping[str, Any] | None,
        guided_regex: str | None,
        guided_choice: Sequence[str] | None,
        guided_grammar: str | None,
    ) -> None:
        guided = {
            "guided_json": guided_json,
            "guided_regex": guided_regex,
            "guided_choice": guided_choice,
            "guided_grammar": guided_grammar,
        }
        object.__setattr__(self, "structured_outputs", form_of(self.structured_outputs, guided))
        stop = (self.stop,) if isinstance(self.stop, str) else _items("stop", self.stop, str, "text")
        object.__setattr__(self, "stop", stop)
        ids = _items("stop_token_ids", self.stop_token_ids, Integral, "a whole number")
        object.__setattr__(self, "stop_token_ids", ids)
        for key in _FLAGS:
            if not isinstance(getattr(self, key), bool):
                raise InputError("must be true or false", key=key, value=getattr(self, key))
        for key, (low, high, excluded) in _RANGES.items():
            value = getattr(self, key)
            _check_number(key, value)
            if value is not None and (not low <= value <= high or value == excluded):
                raise InputError("out of range", key=key, value=value, fix=_fix(low, high, excluded))
        if not all(stop):
            raise InputError("holds an empty string", key="stop", fix="drop it")
        if stop and not self.detokenize:
            raise InputError("needs text to look at", key="stop", fix="leave detokenize on, or drop stop")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InputError(
                f"is more than max_tokens = {self.max_tokens}", key="min_tokens", value=self.min_tokens
            )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop`, always as a tuple."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def penalised(self) -> bool:
        """Whether any penalty is active."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


_RANGES: dict[str, tuple[float, float, float | None]] = {
    "temperature": (0.0, math.inf, math.inf),
    "top_k": (-1, math.inf, None),
    "top_p": (0.0, 1.0, 0.0),
    "min_p": (0.0, 1.0, None),
    "seed": (-(2**63), 2**63 - 1, None),
    "repetition_penalty": (0.0, math.inf, 0.0),
    "presence_penalty": (-2.0, 2.0, None),
    "frequency_penalty": (-2.0, 2.0, None),
    "max_tokens": (1, math.inf, None),
    "min_tokens": (0, math.inf, None),
    "logprobs": (0, math.inf, None),
}
"""Least value, most, and an excluded bound."""


_FRACTIONS = frozenset(
    ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
)
"""Fractional parameters; the others are whole numbers."""
_ABSENT = frozenset(("seed", "max_tokens", "logprobs"))
"""Parameters that may be None."""
_FLAGS = ("include_stop_str_in_output", "ignore_eos", "detokenize")


def _check_number(key: str, value: object) -> None:
    if type(value) is int or (value is None and key in _ABSENT):
        return
    allowed = Real if key in _FRACTIONS else Integral
    if isinstance(value, bool) or not isinstance(value, allowed):
        kind = "a number" if key in _FRACTIONS else "a whole number"
        raise InputError(f"must be {kind}", key=key, value=value)


def _items(key: str, values: Any, kind: type, name: str) -> tuple[Any, ...]:
    """The items of a list, all of one type."""
    if isinstance(values, tuple) and not values:
        return ()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"must be a list, each item {name}", key=key, value=values)
    items = tuple(values)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, kind):
            raise InputError(f"each item must be {name}", key=key, value=item)
    return items


def _fix(low: float, high: float, excluded: float | None) -> str:
    if excluded == low:
        return f"use more than {low:g}" + (f", at most {high:g}" if high < math.inf else "")
    return f"use at least {low:g}" + (f", at most {high:g}" if high < math.inf else "")
