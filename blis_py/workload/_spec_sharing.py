"""Shared prompts in the YAML workload spec: nested prefixes, and conversations of several turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from blis_py.errors import InputError
from blis_py.workload._modalities import OTHERS, Multimodal
from blis_py.workload._prefixes import PrefixLevel
from blis_py.workload._sessions import MAX_ROUNDS, Sessions
from blis_py.workload.lengths import Lengths
from blis_py.workload.spec_base import DistributionSpec, Strict, Text, Tokens, Whole, lengths_of

MAX_TEXTS = 1_000_000


class PrefixSpec(Strict):
    """One level of a client's `prefixes`, the outermost first.

    `tokens` for texts of one length, `tokens_distribution` for texts that differ. `pool` is how many texts
    there are under each text of the level before; `zipf` is the exponent of their popularity, 0: all alike.
    """

    name: Text
    """Clients that name the same pool share its texts."""
    tokens: Annotated[Tokens, Field(ge=1)] | None = None
    """Length of each text."""
    tokens_distribution: DistributionSpec | None = None
    """Lengths of texts that differ."""
    pool: Annotated[Whole, Field(ge=1, le=MAX_TEXTS)] = 1
    """Number of texts under each text of the level before."""
    zipf: Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)] = 0.0
    """Exponent of their popularity; 0: all alike."""
    in_turn: bool = False
    """Requests of a client take the texts one after the other, and not at random."""


class MultimodalSpec(Strict):
    """Prompts of text and other things, instead of `input_distribution`: text, and so many images, audio
    clips and videos of so many tokens each. Together they are the tokens of the prompt, at least one.
    """

    text_distribution: DistributionSpec | None = None
    """Tokens of text; absent: no text."""
    image_distribution: DistributionSpec | None = None
    """Tokens of an image."""
    image_count_distribution: DistributionSpec | None = None
    """Images of a prompt; absent: none."""
    audio_distribution: DistributionSpec | None = None
    """Tokens of an audio clip."""
    audio_count_distribution: DistributionSpec | None = None
    """Audio clips of a prompt; absent: none."""
    video_distribution: DistributionSpec | None = None
    """Tokens of a video."""
    video_count_distribution: DistributionSpec | None = None
    """Videos of a prompt; absent: none."""


class MultiTurnSpec(Strict):
    """Sessions of at most `max_rounds` turns; exactly so many without `rounds_distribution`.

    `context_growth: accumulate` puts all earlier prompts and answers in front of each prompt. A turn is sent
    a think time after its client has the answer before it, and never if there is none: a closed loop. With
    `closed_loop: false` it is sent a think time after the planned end of that answer, at `planned_itl_us` per
    token.
    """

    max_rounds: Annotated[Whole, Field(ge=1, le=MAX_ROUNDS)]
    """Turns of a session, at most."""
    rounds_distribution: DistributionSpec | None = None
    """Turns of a session; absent: always `max_rounds`."""
    think_time_us: Annotated[Whole, Field(le=86_400_000_000)] = 0
    """Pause after an answer."""
    think_time_ms_distribution: DistributionSpec | None = None
    """Pauses that differ, in ms, instead."""
    planned_itl_us: Annotated[Whole, Field(le=1_000_000)] = 0
    """With `closed_loop: false`, what is planned for each token of an answer before the pause begins."""
    context_growth: Literal["", "accumulate"] = ""
    """`accumulate`: a prompt begins with all prompts and answers before it."""
    single_session: bool = False
    """One session only, which begins with the first arrival."""


class ReasoningSpec(Strict):
    """`reason_ratio_distribution` (the thoughts' share of an answer) changes nothing: thoughts are generated,
    and remembered, like the rest of the answer."""

    reason_ratio_distribution: DistributionSpec | None = None
    """Read, and without effect."""
    multi_turn: MultiTurnSpec | None = None
    """Sessions of several turns."""


def multimodal_of(spec: MultimodalSpec | None, key: str, path: Path | None) -> Multimodal | None:
    """Prompt composition of a client; None for text.

    Raises:
        InputError: pieces without a length or a number, or an empty prompt.
    """
    if spec is None:
        return None
    given = {name: getattr(spec, name) for name in MultimodalSpec.model_fields if getattr(spec, name)}
    known = {name: lengths_of(law, f"{key}.{name}", path) for name, law in given.items()}
    pieces = {}
    for name in OTHERS:
        both = [f"{name}_count_distribution", f"{name}_distribution"]
        there = [each for each in both if each in known]
        if len(there) == 1:
            (missing,) = set(both) - set(there)
            fix = "say how many pieces there are, and how many tokens each"
            raise InputError("missing key", file=path, key=f"{key}.{missing}", fix=fix)
        if there:
            pieces[name] = known[both[0]], known[both[1]]
    if not known:
        raise InputError("a prompt of nothing", file=path, key=key, fix="give text_distribution, or pieces")
    return Multimodal(known.get("text_distribution"), pieces)


def check_prefixes(of_clients: Sequence[tuple[str, Sequence[PrefixSpec]]], path: Path | None) -> None:
    """Refuse inconsistent levels: clients share the texts of pools with equal names.

    Args:
        of_clients: each client's location in the file, and its levels.

    Raises:
        InputError: a duplicate name in one client, or pools of one name with different sizes or lengths.
    """
    known: dict[str, PrefixSpec] = {}
    for client, levels in of_clients:
        for index, level in enumerate(levels):
            key = f"{client}.prefixes[{index}]"
            if level.name in [other.name for other in levels[:index]]:
                raise InputError(
                    "two levels of the client have this name", file=path, key=f"{key}.name", value=level.name
                )
            if (level.tokens is None) == (level.tokens_distribution is None):
                problem, fix = "how long is it?", "give either tokens or tokens_distribution"
                raise InputError(problem, file=path, key=f"{key}.tokens", fix=fix)
            first = known.setdefault(level.name, level)
            if first.model_copy(update={"zipf": level.zipf}) != level:
                raise InputError(
                    "another client has a pool of this name with other texts",
                    file=path,
                    key=f"{key}.name",
                    value=level.name,
                    fix="use the same pool and tokens, or another name",
                )


def prefix_levels(levels: Sequence[PrefixSpec], key: str, path: Path | None) -> tuple[PrefixLevel, ...]:
    def tokens(index: int, level: PrefixSpec) -> Lengths:
        if level.tokens_distribution is not None:
            return lengths_of(level.tokens_distribution, f"{key}[{index}].tokens_distribution", path)
        return Lengths("constant", {"value": float(level.tokens or 0)})

    return tuple(
        PrefixLevel(level.name, tokens(index, level), level.pool, level.zipf, level.in_turn)
        for index, level in enumerate(levels)
    )


def sessions(
    spec: ReasoningSpec | None, closed_loop: bool | None, key: str, path: Path | None
) -> Sessions | None:
    """Sessions of a client; None for independent requests.

    Raises:
        InputError: a closed loop of clients without sessions; contradictory settings.
    """
    plan = None if spec is None else spec.multi_turn
    if plan is None:
        if closed_loop:
            problem = "says that turns wait for answers, and this client has no turns"
            fix = "give it reasoning.multi_turn, or limit its requests with concurrency"
            raise InputError(problem, file=path, key=f"{key}.closed_loop", value=closed_loop, fix=fix)
        return None
    where = f"{key}.reasoning.multi_turn"
    if plan.think_time_us and plan.think_time_ms_distribution:
        problem, fix = "says the same as think_time_us", "remove one"
        raise InputError(problem, file=path, key=f"{where}.think_time_ms_distribution", fix=fix)

    if plan.planned_itl_us and closed_loop is not False:
        problem, fix = "turns wait for their answers, so nothing is planned", "give closed_loop: false too"
        raise InputError(problem, file=path, key=f"{where}.planned_itl_us", fix=fix)

    def lengths(name: str, given: DistributionSpec | None) -> Lengths | None:
        return None if given is None else lengths_of(given, f"{where}.{name}", path)

    return Sessions(
        rounds=lengths("rounds_distribution", plan.rounds_distribution)
        or Lengths("constant", {"value": float(plan.max_rounds)}),
        max_rounds=plan.max_rounds,
        think_ns=plan.think_time_us * 1000,
        think_ms=lengths("think_time_ms_distribution", plan.think_time_ms_distribution),
        planned_itl_ns=plan.planned_itl_us * 1000,
        closed_loop=closed_loop is not False,
        accumulate=plan.context_growth == "accumulate",
        single=plan.single_session,
    )
