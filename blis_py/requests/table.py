"""A workload as columns: the output of every generator and trace reader, and the input of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import LAST_NS, SECOND_NS
from blis_py.core.light_dataclass import dataclass
from blis_py.errors import InputError

Ints = NDArray[np.int64]
Content = tuple[tuple[str | int, int], ...]
"""The shareable prefix of a request: (segment id, tokens) runs, each the first `tokens` tokens of the text
with that id. Two requests share the tokens of equal leading runs, and of the next run as far as both extend
if it names the same text. Everything after the last run is unique to the request. The runs of a conversation
turn extend beyond `prompt_tokens` over the answer, which the next turn's prompt repeats."""


MODALITIES = ("text", "image", "audio", "video")


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A column of few distinct strings; the empty string means unset."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Iterable[str]) -> Labels:
        names: dict[str, int] = {}
        codes = np.fromiter((names.setdefault(v, len(names)) for v in values), dtype=np.int32)
        return cls(codes, tuple(names) or ("",))

    @classmethod
    def constant(cls, value: str, count: int) -> Labels:
        return cls(np.zeros(count, dtype=np.int32), (value,))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.names[int(self.codes[row])]

    def take(self, rows: NDArray[np.intp] | slice) -> Labels:
        return Labels(self.codes[rows], self.names)

    def to_list(self) -> list[str]:
        return [self.names[code] for code in self.codes.tolist()]

    def without_unused(self) -> Labels:
        """The same column without unused names."""
        used = np.flatnonzero(np.bincount(self.codes, minlength=len(self.names)))
        if len(used) == len(self.names):
            return self
        names = tuple(self.names[code] for code in used.tolist())
        return Labels(np.searchsorted(used, self.codes).astype(np.int32), names or ("",))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RequestTable:
    """Requests in order of arrival (ties: source order). All columns have equal length."""

    arrival_ns: Ints
    """Sending time from the start of the simulation, in ns; sorted, non-negative."""
    prompt_tokens: Ints
    """The whole prompt, a shared prefix included; at least 1."""
    output_tokens: Ints
    """Tokens the model would emit before stopping by itself; at least 1. Hidden from schedulers."""
    max_tokens: Ints
    """The client's limit on output tokens; 0 = none."""
    deadline_ns: Ints
    """Absolute time of the client's timeout in ns; -1 = never."""
    slo_class: Labels
    tenant: Labels
    client: Labels
    model: Labels
    prefix_group: Labels
    prefix_tokens: Ints
    """Leading tokens shared with the prefix group; 0 = none."""
    content: Ints
    """Index into `contents`; -1 if no part of the prompt can be shared."""
    contents: Sequence[Content] = ()
    streaming: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    slo_target_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The client's own latency target in ns; 0 = none."""
    request_id: Sequence[str] | None = None
    """Names; `request_<row>` if `None`."""
    ends_by_eos: NDArray[np.bool_] | None = None
    """Whether an answer ends unforeseen by the scheduler; `None` = all end at a known length."""
    constrained: NDArray[np.bool_] | None = None
    """Whether a grammar constrains the answer (structured outputs); `None` = no answer."""
    extra_key: Labels | None = None
    """Key that must be equal, beside the content, to share KV: a LoRA adapter, a salt; empty = nothing.
    `None` = of no request."""
    due_ns: Ints | None = None
    """In a closed loop, the time in ns at which each request would have been sent without the concurrency
    limit; -1 if unlimited. `None` = no closed loop."""
    session: Ints | None = None
    """Session numbers, -1 for a request without session; `None` = no sessions."""
    session_names: Sequence[str] | None = None
    """Names of the sessions by number; `session_<number>` if `None`."""
    round_index: Ints | None = None
    """Index of each turn in its session, from 0; 0 for a request without session. `None` = unknown."""
    modality_tokens: Ints | None = None
    """Shape (requests, `MODALITIES`): composition of the prompt beyond its shared prefix; all 0 if unknown.
    `None` = unknown for all."""
    network_ns: NDArray[np.float64] | None = None
    """Shape (requests, 2), in ns: round-trip time between client and cluster, and transmission time of a
    token. Arrivals are those at the cluster. `None` = no client network."""
    think_ns: Ints | None = None
    """Pause in ns of a waiting turn after the previous answer; -1 for turns with an arrival time of their
    own. `None` = all have one."""

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def __repr__(self) -> str:
        tokens = f"{self.prompt_tokens.sum():,} + {self.output_tokens.sum():,} tokens"
        return f"RequestTable({len(self):,} requests, {tokens})"

    def id_of(self, row: int) -> str:
        return f"request_{row}" if self.request_id is None else self.request_id[row]

    def ids(self, rows: slice = slice(None)) -> Sequence[str]:
        if self.request_id is not None:
            return self.request_id[rows]
        return [f"request_{row}" for row in range(len(self))[rows]]

    def session_ids(self, rows: slice = slice(None)) -> list[str]:
        """Session name of each request; empty without session."""
        if self.session is None:
            return [""] * len(self.arrival_ns[rows])
        names, numbers = self.session_names, self.session[rows].tolist()
        if names is None:
            return [f"session_{number}" if number >= 0 else "" for number in numbers]
        return [names[number] if number >= 0 else "" for number in numbers]

    @classmethod
    def build(
        cls,
        arrival_ns: Ints,
        prompt_tokens: Ints,
        output_tokens: Ints,
        *,
        max_tokens: Ints | None = None,
        deadline_ns: Ints | None = None,
        slo_class: Labels | None = None,
        tenant: Labels | None = None,
        client: Labels | None = None,
        model: Labels | None = None,
        prefix_group: Labels | None = None,
        prefix_tokens: Ints | None = None,
        content: Ints | None = None,
        contents: Sequence[Content] = (),
        streaming: NDArray[np.bool_] | None = None,
        slo_target_ns: Ints | None = None,
        request_id: Sequence[str] | None = None,
        session: Ints | None = None,
        session_names: Sequence[str] | None = None,
        round_index: Ints | None = None,
        modality_tokens: Ints | None = None,
        network_ns: NDArray[np.float64] | None = None,
        think_ns: Ints | None = None,
        constrained: NDArray[np.bool_] | None = None,
        extra_key: Labels | None = None,
    ) -> RequestTable:
        """Build a table from three columns; the others default to unset, and `max_tokens` to
        `output_tokens`."""
        rows = len(arrival_ns)
        unset = Labels.constant("", rows)
        zeros = np.zeros(rows, dtype=np.int64)
        nowhere = np.full(rows, -1, dtype=np.int64)

        def given(column: Ints | None, default: Ints) -> Ints:
            return default if column is None else column

        return cls(
            arrival_ns=arrival_ns,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            max_tokens=given(max_tokens, output_tokens),
            deadline_ns=given(deadline_ns, nowhere),
            slo_class=slo_class or unset,
            tenant=tenant or unset,
            client=client or unset,
            model=model or unset,
            prefix_group=prefix_group or unset,
            prefix_tokens=given(prefix_tokens, zeros),
            content=given(content, nowhere),
            contents=contents,
            streaming=np.zeros(rows, dtype=np.bool_) if streaming is None else streaming,
            slo_target_ns=given(slo_target_ns, zeros),
            request_id=request_id,
            session=session,
            session_names=session_names,
            round_index=round_index,
            modality_tokens=modality_tokens,
            network_ns=network_ns,
            think_ns=think_ns,
            constrained=constrained,
            extra_key=extra_key,
        )

    def take(self, rows: NDArray[np.intp] | slice) -> RequestTable:
        """The given rows, in the given order, under the ids they have here."""
        picked = np.arange(len(self))[rows]
        kept_in_place = bool(np.array_equal(picked, np.arange(len(picked))))
        names = None if self.request_id is None and kept_in_place else [self.id_of(row) for row in picked]
        return replace(
            self,
            arrival_ns=self.arrival_ns[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            max_tokens=self.max_tokens[rows],
            deadline_ns=self.deadline_ns[rows],
            slo_class=self.slo_class.take(rows),
            tenant=self.tenant.take(rows),
            client=self.client.take(rows),
            model=self.model.take(rows),
            prefix_group=self.prefix_group.take(rows),
            prefix_tokens=self.prefix_tokens[rows],
            content=self.content[rows],
            streaming=self.streaming[rows],
            slo_target_ns=self.slo_target_ns[rows],
            request_id=names,
            ends_by_eos=None if self.ends_by_eos is None else self.ends_by_eos[rows],
            constrained=None if self.constrained is None else self.constrained[rows],
            extra_key=None if self.extra_key is None else self.extra_key.take(rows),
            due_ns=None if self.due_ns is None else self.due_ns[rows],
            session=None if self.session is None else self.session[rows],
            round_index=None if self.round_index is None else self.round_index[rows],
            modality_tokens=None if self.modality_tokens is None else self.modality_tokens[rows],
            think_ns=None if self.think_ns is None else self.think_ns[rows],
            network_ns=None if self.network_ns is None else self.network_ns[rows],
        )

    def with_unforeseen_ends(self, share: float, rng: np.random.Generator) -> RequestTable:
        """A copy in which a random share of the answers ends with an end of sequence.

        A client limit equal to the answer's length is removed: it only encoded the known length.
        """
        ends = rng.random(len(self)) < share
        known = ends & (self.max_tokens == self.output_tokens)
        return replace(self, max_tokens=np.where(known, 0, self.max_tokens), ends_by_eos=ends)

    def with_structured_outputs(
        self, ratio: float | NDArray[np.float64], rng: np.random.Generator
    ) -> RequestTable:
        """A copy in which a random share of the answers is grammar-constrained; or each row with its own
        share."""
        return replace(self, constrained=rng.random(len(self)) < ratio)

    def at_once(self) -> RequestTable:
        """A copy with all arrivals at 0; patience is kept."""
        waits_ns = np.where(self.deadline_ns >= 0, self.deadline_ns - self.arrival_ns, -1)
        return replace(self, arrival_ns=np.zeros_like(self.arrival_ns), deadline_ns=waits_ns)

    def sorted_by_arrival(self) -> RequestTable:
        """A copy in order of arrival; ties keep their order."""
        if bool(np.all(self.arrival_ns[1:] >= self.arrival_ns[:-1])):
            return self
        return self.take(np.argsort(self.arrival_ns, kind="stable"))

    def limited(self, count: int) -> RequestTable:
        """A copy with the first `count` requests."""
        return self if count >= len(self) else self.take(slice(0, count))

    def busiest(self, count: int) -> int:
        """First row of the `count` consecutive requests with the most tokens per second."""
        tokens = np.concatenate(([0], np.cumsum(self.prompt_tokens + self.output_tokens)))
        span_ns = self.arrival_ns[count - 1 :] - self.arrival_ns[: len(self) - count + 1]
        return int(((tokens[count:] - tokens[:-count]) / (span_ns + SECOND_NS)).argmax())

    def scaled(
        self,
        factor: float,
        *,
        key: str = "factor",
        value: float | None = None,
        file: str | Path | None = None,
    ) -> RequestTable:
        """A copy with every arrival multiplied by `factor`: 2.0 halves the rate, 0.5 doubles it.

        A deadline keeps its distance from the arrival.

        Args:
            key, value, file: origin of the factor, for the message.

        Raises:
            InputError: the last request would arrive after more than a century.
        """
        if factor == 1.0:
            return self
        latest_ns = float(self.arrival_ns.max(initial=0)) * factor
        if not latest_ns <= LAST_NS:
            problem = "the last request would come after more than a century"
            raise InputError(problem, file=file, key=key, value=factor if value is None else value)
        arrival_ns = np.rint(self.arrival_ns * factor).astype(np.int64)
        patience_ns = np.where(self.deadline_ns < 0, -1, np.maximum(self.deadline_ns - self.arrival_ns, 0))
        return replace(self, arrival_ns=arrival_ns, deadline_ns=deadlines_ns(arrival_ns, patience_ns))

    def with_lengths(self, prompt: float = 1.0, output: float = 1.0) -> RequestTable:
        """A copy with prompts, shared parts included, scaled by `prompt`, and answers by `output`.

        An answer that ended at its client's limit still does.
        """
        if prompt == output == 1.0:
            return self
        outputs = _multiplied(self.output_tokens, output)
        limited = self.max_tokens == self.output_tokens
        return replace(
            self,
            prompt_tokens=_multiplied(self.prompt_tokens, prompt),
            output_tokens=outputs,
            max_tokens=np.where(limited, outputs, np.rint(self.max_tokens * output).astype(np.int64)),
            prefix_tokens=np.rint(self.prefix_tokens * prompt).astype(np.int64),
            modality_tokens=None
            if self.modality_tokens is None
            else np.rint(self.modality_tokens * prompt).astype(np.int64),
            contents=tuple(_longer(runs, prompt) for runs in self.contents),
        )


def _multiplied(tokens: Ints, factor: float) -> Ints:
    longer: Ints = np.maximum(np.rint(tokens * factor).astype(np.int64), 1)
    return longer


def _longer(runs: Content, factor: float) -> Content:
    """Runs with scaled, rounded ends rather than lengths, so that sharing is preserved."""
    ends = [0, *accumulate(tokens for _, tokens in runs)]
    longer = [round(end * factor) for end in ends]
    return tuple((name, longer[i + 1] - longer[i]) for i, (name, _) in enumerate(runs))


def deadlines_ns(arrival_ns: Ints, patience_ns: Ints) -> Ints:
    """Client timeouts in ns, `patience_ns` after each arrival; -1: never.

    A timeout beyond the end of the clock is never, too.
    """
    deadline_ns = arrival_ns + patience_ns
    return np.where((patience_ns < 0) | (deadline_ns > LAST_NS), -1, deadline_ns)
