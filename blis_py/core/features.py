"""Step features: the schema of everything that determines a step's duration, and the row of one step.

`FEATURES` is the schema. It determines what a feature is some steps later (`StepFeatures.after`), in a step
with more or fewer sequences (`+`, `-`), and the columns of steps tables, step logs and samples. A further
feature is one entry with the function that computes it:

    FEATURES["waiting_tokens"] = Feature("tokens", compute=lambda step, scheduler: ...)

Every scheduler created afterwards computes it; without further features there is no cost. A latency model
reads it as `features["waiting_tokens"]`. A feature of every step is an attribute of `StepFeatures` instead,
for speed: an entry of the schema and a parameter of its constructor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.errors import InputError

Compute = Callable[[Any, Any], Any]
"""From a planned step (`Step`, or what its kind of requests has) and its scheduler to the value, an int or a
float. Typed as `float`, native code would make a float of an int."""


class Feature(NamedTuple):
    """An entry of the schema."""

    unit: str
    optional: bool = False
    """Whether it is 0 in most runs: a log has the column only if some step has a value."""
    grows: str | int | None = 0
    """Growth from one of several identical decode steps to the next: a constant, or the value of the named
    feature. None = not predictable, so every step is planned by itself. A value below 0 (unknown) stays."""
    largest: bool = False
    """Whether a step has the maximum over its sequences, not the sum."""
    whole: bool = True
    """Whether it is a whole number."""
    compute: Compute | None = None
    """The function that computes a further feature."""


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
"""Features by name, in the order of columns."""

_NONE: Final[Mapping[str, Any]] = {}
F = TypeVar("F", bound="StepFeatures")


@mypyc_attr(acyclic=True, free_list_len=1)
@dataclass(slots=True, init=False)
class StepFeatures:
    """The only input of a latency model, and the row that an engine logs.

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
    """Sum of T*(length + T/2), where length is the prefill's total (the prompt and, after a preemption, the
    tokens emitted before): the attention measure `trained-physics` was fitted with."""
    decode_seqs: int
    """Sequences computing one token; of a burst (`blis_py.core.emission`), every position it computes."""
    decode_kv_tokens: int
    """KV entries the decodes read: sum of their contexts, the new tokens not counted."""
    max_context: int
    """Longest context among all sequences, excluding the new tokens; -1 if it is not tracked."""
    emitted_rows: int
    """Sequences that emit a token when the step ends (rows through the LM head)."""
    constrained_rows: int
    """Sequences among them whose next token is constrained by a grammar: the host computes a mask for
    each."""
    shared_kv_tokens: int
    """KV entries of running sequences in shared pages, for each holder but one: repeated reads. Minus these,
    the entries read are distinct."""
    scanned_requests: int
    """Waiting requests looked up in the prefix cache to plan the step: a policy that orders by the cache
    looks up all of them, once for each admission and once for the request that has to wait."""
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
        """Written out because native code would run a generated one as Python, at every step."""
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
        """Names of the features that are attributes."""
        return _ATTRIBUTES

    def __getitem__(self, name: str) -> Any:
        """A feature by name; a further one is 0 if it was not computed."""
        if name in self.further:
            return self.further[name]
        return 0 if _is_further(name) else getattr(self, name)

    def row(self, names: Sequence[str]) -> list[Any]:
        """The features of these names."""
        if len(FEATURES) == len(_ATTRIBUTES):
            return [getattr(self, name) for name in names]
        return [self[name] for name in names]

    def but(self, values: Mapping[str, Any]) -> StepFeatures:
        """A copy with other values of some features."""
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
        """The features of a pure decode step `steps` steps later, with longer contexts.

        Raises:
            ValueError: the step has prefills, or a feature that is not predictable.
        """
        self._require_decodes()
        later = self._decodes(steps)
        if self.further:
            later.further = {
                name: self._grown(name, value, FEATURES[name].grows, steps)
                for name, value in self.further.items()
            }
        return later

    def _require_decodes(self) -> None:
        if self.prefill_seqs:
            raise ValueError("only a pure decode step repeats itself")

    def _decodes(self, steps: int) -> StepFeatures:
        """The attributes, grown as the schema says. Written out because an overlapped engine prices one per
        run."""
        longest = self.max_context
        return StepFeatures(
            decode_seqs=self.decode_seqs,
            decode_kv_tokens=self.decode_kv_tokens + steps * self.decode_seqs,
            max_context=longest if longest < 0 else longest + steps,
            emitted_rows=self.emitted_rows,
            constrained_rows=self.constrained_rows,
            shared_kv_tokens=self.shared_kv_tokens,
            scanned_requests=self.scanned_requests,
        )

    def _grown(self, name: str, value: Any, grows: str | int | None, steps: int) -> Any:
        if grows is None and steps:
            raise ValueError(f"{name} of later steps cannot be foreseen")
        if value < 0 or not grows:
            return value
        return value + steps * (self[grows] if isinstance(grows, str) else grows)

    def __add__(self, other: StepFeatures) -> StepFeatures:
        """The step with the sequences of another one added."""
        return self._joined(other, 1)

    def __sub__(self, other: StepFeatures) -> StepFeatures:
        """The step without the sequences of another one; maxima over sequences are left as they are."""
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
_IS_ATTRIBUTE: Final = frozenset(FEATURES)
SELDOM: Final = tuple(name for name, feature in FEATURES.items() if feature.optional)
"""Features that are 0 in most runs; logs contain them only if they are not."""
FEATURE_NAMES: Final = tuple(name for name in FEATURES if name not in SELDOM)
"""Features contained in every log."""


def _is_further(name: str) -> bool:
    return name in FEATURES and name not in _IS_ATTRIBUTE


def further_names() -> tuple[str, ...]:
    """Names of the features that are not attributes."""
    return tuple(FEATURES)[len(_ATTRIBUTES) :]


def is_whole(name: str) -> bool:
    """Whether a column of steps contains whole numbers."""
    return name not in FEATURES or FEATURES[name].whole


def features_from(kind: type[F], values: Mapping[str, Any]) -> F:
    """The features of a step from values by name, including further ones."""
    further = {name: values[name] for name in further_names() if name in values}
    own: dict[str, Any] = {name: value for name, value in values.items() if name not in further}
    return kind(**own, further=further or _NONE)


def further_features() -> tuple[tuple[str, Compute], ...]:
    """The further features that a scheduler has to compute, by name.

    Raises:
        InputError: an entry without `compute`, or with the name of another feature.
    """
    for name, feature in FEATURES.items():
        if (feature.compute is None) != (name in _IS_ATTRIBUTE):
            taken = (
                "is a feature of every step already" if name in _IS_ATTRIBUTE else "no function computes it"
            )
            fix = "give it another name" if name in _IS_ATTRIBUTE else "give its entry `compute`"
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
