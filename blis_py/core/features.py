"""What one engine step consists of, as far as its duration is concerned: the schema, and the row of one step.

`FEATURES` is the schema. From it follow what a feature is some steps later (`StepFeatures.after`), in a step
with more or fewer sequences (`+`, `-`), and the columns of steps tables, step logs and samples. A further
feature is one entry with the function that computes it:

    FEATURES["waiting_tokens"] = Feature("tokens", compute=lambda step, scheduler: ...)

Every scheduler that is made from then on computes it; where there is none it costs nothing. A latency model
reads it as `features["waiting_tokens"]`. What every step has is an attribute of `StepFeatures` instead, for
speed: an entry of the schema and a parameter of its constructor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from blis_py.errors import InputError

Compute = Callable[[Any, Any], Any]
"""From a planned step (`Step`, or what its kind of requests has) and its scheduler to the value, an int or a
float. Typed as `float`, native code would make a float of an int."""


class Feature(NamedTuple):
    """An entry of the schema."""

    unit: str
    optional: bool = False
    """0 in most runs: a log has the column only where some step has some of it."""
    grows: str | int | None = 0
    """What the next of alike decode steps has more of it: so many, or as many as it has of the named feature.
    None = that cannot be foreseen, so every step is planned by itself. A value below 0 (unknown) stays."""
    largest: bool = False
    """A step has the largest value among its sequences, not the sum."""
    whole: bool = True
    """A whole number."""
    compute: Compute | None = None
    """Of a further feature."""


FEATURES: Final[dict[str, Feature]] = {
    "prefill_seqs": Feature("sequences"),
    "prefill_tokens": Feature("tokens"),
    "prefill_pairs": Feature("query-key pairs"),
    "prefill_kv_tokens": Feature("tokens"),
    "prefill_prompt_pairs": Feature("query-key pairs", whole=False),
    "decode_seqs": Feature("sequences"),
    "decode_kv_tokens": Feature("tokens", grows="decode_seqs"),
    "max_context": Feature("tokens", grows=1, largest=True),
    "emitted_rows": Feature("rows"),
    "constrained_rows": Feature("rows", optional=True),
    "shared_kv_tokens": Feature("tokens", optional=True),
    "scanned_requests": Feature("requests", optional=True),
}
"""By name, in the order of columns."""

_NONE: Final[Mapping[str, Any]] = {}
F = TypeVar("F", bound="StepFeatures")


@dataclass(slots=True, init=False)
class StepFeatures:
    """The only thing a latency model sees, and the row an engine logs.

    A prefill sequence computes T new tokens on top of P tokens already in the KV cache; a decode
    sequence computes one token on top of its context. All counts are sums over the sequences that
    compute something in the step, on one model replica (not divided by the TP degree).
    """

    prefill_seqs: int
    """Sequences computing a prompt (or recomputing one after a preemption)."""
    prefill_tokens: int
    """Sum of T."""
    prefill_pairs: int
    """Causal query-key pairs of the prefills: sum of T*P + T*(T+1)/2."""
    prefill_kv_tokens: int
    """KV entries the prefills read back: sum of P."""
    prefill_prompt_pairs: float
    """Sum of T*(length + T/2), length being what the prefill has to compute in the end (the prompt, and
    after a preemption what had been emitted too): the attention measure `trained-physics` was fitted with."""
    decode_seqs: int
    """Sequences computing one token; of a burst (`blis_py.core.emission`), every position it computes."""
    decode_kv_tokens: int
    """KV entries the decodes read: sum of their contexts, the new tokens not counted."""
    max_context: int
    """Longest context among all sequences, the new tokens not counted; -1 where it is not tracked."""
    emitted_rows: int
    """Sequences that emit a token when the step ends (rows through the LM head)."""
    constrained_rows: int
    """Those among them whose next token a grammar constrains: the host computes a mask for each."""
    shared_kv_tokens: int
    """KV entries of running sequences in pages that others hold too, for each but one of these: what is read
    again. Without them the entries read are distinct."""
    scanned_requests: int
    """Waiting requests that the host looked up in the prefix cache to plan the step: a policy that orders by
    the cache looks at all of them, once for each that it admits and once for the one that has to wait."""
    further: Mapping[str, Any]
    """Further features of `FEATURES`, by name."""

    def __init__(
        self,
        *,
        prefill_seqs: int = 0,
        prefill_tokens: int = 0,
        prefill_pairs: int = 0,
        prefill_kv_tokens: int = 0,
        prefill_prompt_pairs: float = 0.0,
        decode_seqs: int = 0,
        decode_kv_tokens: int = 0,
        max_context: int = 0,
        emitted_rows: int = 0,
        constrained_rows: int = 0,
        shared_kv_tokens: int = 0,
        scanned_requests: int = 0,
        further: Mapping[str, Any] = _NONE,
    ) -> None:
        """Spelled out, since native code would run a generated one as Python, at every step."""
        self.prefill_seqs = prefill_seqs
        self.prefill_tokens = prefill_tokens
        self.prefill_pairs = prefill_pairs
        self.prefill_kv_tokens = prefill_kv_tokens
        self.prefill_prompt_pairs = prefill_prompt_pairs
        self.decode_seqs = decode_seqs
        self.decode_kv_tokens = decode_kv_tokens
        self.max_context = max_context
        self.emitted_rows = emitted_rows
        self.constrained_rows = constrained_rows
        self.shared_kv_tokens = shared_kv_tokens
        self.scanned_requests = scanned_requests
        self.further = further

    @property
    def tokens(self) -> int:
        """Tokens through the dense layers."""
        return self.prefill_tokens + self.decode_seqs

    @property
    def seqs(self) -> int:
        """Sequences in the step."""
        return self.prefill_seqs + self.decode_seqs

    def names(self) -> tuple[str, ...]:
        """The features that are attributes."""
        return _ATTRIBUTES

    def __getitem__(self, name: str) -> Any:
        """A feature by name; a further one is 0 where it was not computed."""
        if name in self.further:
            return self.further[name]
        return 0 if _is_further(name) else getattr(self, name)

    def row(self, names: Sequence[str]) -> list[Any]:
        """The features of these names."""
        if len(FEATURES) == len(_ATTRIBUTES):
            return [getattr(self, name) for name in names]
        return [self[name] for name in names]

    def but(self, values: Mapping[str, Any]) -> StepFeatures:
        """The same step with other values of some features."""
        other, further = type(self)(), dict(self.further)
        for name in self.names():
            value = getattr(self, name)
            if value:
                setattr(other, name, value)
        for name, value in values.items():
            if _is_further(name):
                further[name] = value
            else:
                setattr(other, name, value)
        if further:
            other.further = further
        return other

    def after(self, steps: int) -> StepFeatures:
        """The features of a pure decode step after `steps` more of its kind: contexts have grown."""
        if self.prefill_seqs:
            raise ValueError("only a pure decode step repeats itself")
        later = self._decodes()
        for name in _GROWING:
            setattr(later, name, self._grown(name, steps))
        if self.further:
            later.further = {name: self._grown(name, steps) for name in self.further}
        return later

    def _decodes(self) -> StepFeatures:
        """A copy of a pure decode step. Spelled out, since an overlapped engine prices one each run."""
        return StepFeatures(
            decode_seqs=self.decode_seqs,
            decode_kv_tokens=self.decode_kv_tokens,
            max_context=self.max_context,
            emitted_rows=self.emitted_rows,
            constrained_rows=self.constrained_rows,
            shared_kv_tokens=self.shared_kv_tokens,
            scanned_requests=self.scanned_requests,
        )

    def _grown(self, name: str, steps: int) -> Any:
        value, grows = self[name], FEATURES[name].grows
        if grows is None and steps:
            raise ValueError(f"{name} of later steps cannot be foreseen")
        if value < 0 or not grows:
            return value
        return value + steps * (self[grows] if isinstance(grows, str) else grows)

    def __add__(self, other: StepFeatures) -> StepFeatures:
        """The step with the sequences of another one too."""
        return self._joined(other, 1)

    def __sub__(self, other: StepFeatures) -> StepFeatures:
        """The step without the sequences of another one; the largest of all may be one of them, and stays."""
        return self._joined(other, -1)

    def _joined(self, other: StepFeatures, sign: int) -> StepFeatures:
        joined: dict[str, Any] = {}
        for name in (*self.names(), *further_names()):
            mine, theirs = self[name], other[name]
            if name in FEATURES and FEATURES[name].largest:
                joined[name] = max(mine, theirs) if sign > 0 else mine
            else:
                joined[name] = mine + sign * theirs
        return self.but(joined)


_ATTRIBUTES: Final = tuple(FEATURES)
_GROWING: Final = tuple(name for name, feature in FEATURES.items() if feature.grows)
SELDOM: Final = tuple(name for name, feature in FEATURES.items() if feature.optional)
"""Features that are 0 in most runs: a log has them where they are not."""
FEATURE_NAMES: Final = tuple(name for name in FEATURES if name not in SELDOM)
"""Those that every log has."""


def _is_further(name: str) -> bool:
    return name in FEATURES and name not in _ATTRIBUTES


def further_names() -> tuple[str, ...]:
    """The features that are no attributes of every step."""
    return tuple(FEATURES)[len(_ATTRIBUTES) :]


def is_whole(name: str) -> bool:
    """Whether a column of steps has whole numbers."""
    return name not in FEATURES or FEATURES[name].whole


def features_from(kind: type[F], values: Mapping[str, Any]) -> F:
    """The features of a step by name, further ones among them."""
    further = {name: values[name] for name in further_names() if name in values}
    own: dict[str, Any] = {name: value for name, value in values.items() if name not in further}
    return kind(**own, further=further or _NONE)


def further_features() -> tuple[tuple[str, Compute], ...]:
    """What a scheduler has to compute, by name.

    Raises:
        InputError: an entry that says nothing of how, or takes the name of another feature.
    """
    for name, feature in FEATURES.items():
        if (feature.compute is None) != (name in _ATTRIBUTES):
            taken = "is a feature of every step already" if name in _ATTRIBUTES else "no function computes it"
            fix = "give it another name" if name in _ATTRIBUTES else "give its entry `compute`"
            raise InputError(f"step feature: {taken}", key=f"FEATURES[{name!r}]", fix=fix)
    return tuple([(name, feature.compute) for name, feature in FEATURES.items() if feature.compute])


def computed(further: Iterable[tuple[str, Compute]], step: Any, scheduler: Any) -> dict[str, Any]:
    """The further features of a planned step."""
    return {name: _checked(name, compute(step, scheduler)) for name, compute in further}


def _checked(name: str, value: Any) -> Any:
    if type(value) is int or (type(value) is float and not FEATURES[name].whole):
        return value
    fix = "have it return an int, or give the entry `whole=False`"
    raise InputError("step feature: not a whole number", key=f"FEATURES[{name!r}]", value=value, fix=fix)
