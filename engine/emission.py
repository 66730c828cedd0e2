"""Emission of a step: tokens, log-probabilities, blocks that others may find."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

from blis_py.core.request import Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.token_keys import token_keys
from engine.emitters import Emitters
from engine.grammar.masks import emitted as allowed
from engine.outcome import SampledLogprobs, StepOutcome
from engine.sequence import Sequence, TokenLogprobs


@dataclass(slots=True)
class StepOutput:
    """Output of one call of `LLMEngine.step`."""

    sequences: Ordered[Sequence] = ()
    """Those that emitted a token."""
    tokens: Ordered[int] = ()
    """Their tokens."""
    finished: list[Sequence] = field(default_factory=list)
    """Those that are over, for whatever reason."""


@dataclass(slots=True)
class Emitted:
    """Tokens of a step for the requests that were still there."""

    sequences: list[Sequence]
    tokens: list[int]
    rows: list[int] | None = field(default=None)
    """Which rows of the outcome these are; None = all."""
    lacks: bool = False
    """Whether one of the tokens is -1: there is none."""


def emit(emitters: Emitters, outcome: StepOutcome, complete: bool = True) -> tuple[Emitted, list[Request]]:
    """Append tokens to the sequences that are still there; returns also those that stop with them.

    A sequence that was retracted meanwhile gets none: the scheduler has dropped the token, which will be
    computed again. One that was preempted keeps it.

    Args:
        complete: all are there.
    """
    sequences, tokens, outputs = emitters.sequences, outcome.ids().tolist(), emitters.outputs
    emitted = Emitted(sequences, tokens)
    if not complete:
        here = [i for i, each in enumerate(sequences) if _takes(each.request, len(outputs[i]))]
        emitted = Emitted([sequences[i] for i in here], [tokens[i] for i in here], here)
        outputs = [outputs[i] for i in here]
    assert len(outputs) == len(emitted.tokens)
    deque(map(list.append, outputs, emitted.tokens), maxlen=0)
    if outcome.logprobs is not None:
        note_logprobs(outcome.logprobs, emitted)
    emitted.lacks = min(emitted.tokens, default=0) < 0
    stops = bool(emitters.stop_ids) and not emitters.stop_ids.isdisjoint(tokens)
    if not (stops or emitters.watched or emitted.lacks):
        return emitted, []
    both = zip(emitted.sequences, emitted.tokens, strict=True)
    return emitted, [sequence.request for sequence, token in both if sequence.stops_at(token)]


def _takes(request: Request, output_tokens: int) -> bool:
    """Whether a request of a step in flight gets the token of that step.

    Args:
        output_tokens: that it has.
    """
    if request.status is Status.WAITING:
        return request.generated > output_tokens
    return request.status is not Status.FINISHED


def note_logprobs(sampled: SampledLogprobs, emitted: Emitted) -> None:
    """Append to each sequence that is still there the log-probabilities of its token."""
    own, values, ids = (part.tolist() for part in (sampled.own, sampled.values, sampled.ids))
    places = range(len(emitted.sequences)) if emitted.rows is None else emitted.rows
    here = {row: i for i, row in enumerate(places)}
    for i, row in enumerate(sampled.rows):
        if row not in here:
            continue
        sequence, token = emitted.sequences[here[row]], emitted.tokens[here[row]]
        count = sequence.params.logprobs or 0
        noted: TokenLogprobs = dict(zip(ids[i][:count], values[i][:count], strict=True))
        noted.setdefault(token, own[i])
        sequence.logprobs.append(noted)


def emissions(emitters: Emitters, emitted: Emitted) -> tuple[Ordered[Sequence], Ordered[int]]:
    """Sequences that emitted a token, and the tokens; none where there is none."""
    if not (emitters.constrained or emitted.lacks):
        return emitted.sequences, emitted.tokens
    return allowed(emitted.sequences, emitted.tokens)


def publish(scheduler: Scheduler, sequence_of: Mapping[Request, Sequence], ending: Iterable[Request]) -> None:
    """Before sequences end: the blocks their outputs have filled can be shared from now on.

    The token just sampled is left out: its keys and values are not in the cache.
    """
    kv = scheduler.kv
    if not kv.prefix_caching:
        return
    for request in ending:
        if request.status in (Status.FINISHED, Status.WAITING):
            continue  # it has left, or has no blocks
        if sequence_of[request].finish_reason == "error":
            continue  # its keys and values may be no numbers
        if scheduler.config.async_scheduling:
            scheduler.settle(request)
        else:
            scheduler.block_table(request)
        sequence, named = sequence_of[request], len(request.block_keys) * kv.block_size
        computed = sequence.computed(named)
        parent = request.block_keys[-1] if named else b""
        assert isinstance(parent, bytes)
        request.block_keys = [*request.block_keys, *token_keys(computed, kv.block_size, parent)]
