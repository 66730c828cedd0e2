"""`inference_perf` of a workload spec, and the configuration file of inference-perf itself.

spec                                         config.yaml of inference-perf
inference_perf: {stages, shared_prefix}      load: {type, stages}, data: {type: shared_prefix, ...}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from blis_py.core.bounds import MAX_ARRIVALS_PER_S
from blis_py.errors import InputError
from blis_py.workload._sessions import MAX_ROUNDS
from blis_py.workload._spec_client import MAX_MEMBERS, ClientSpec
from blis_py.workload._spec_lifecycle import ArrivalSpec, LifecycleSpec, WindowSpec
from blis_py.workload._spec_sharing import MultiTurnSpec, PrefixSpec, ReasoningSpec
from blis_py.workload.spec_base import DistributionSpec, Strict, Tokens, Whole, as_tuple

SHORTEST_S, LONGEST_S = 1e-3, 1e9
"""Limits of a stage's duration, in s."""
_LOADS = ("constant", "poisson")
_NAMES = {
    "num_groups": "num_unique_system_prompts",
    "num_prompts_per_group": "num_users_per_system_prompt",
}
"""Current key names of inference-perf, and its former ones, which BLIS uses."""
_WITHOUT_EFFECT = ("api", "server", "tokenizer", "metrics", "report", "storage", "circuit_breakers")
"""Sections on the server and the report, ignored here."""


class StageSpec(Strict):
    """Requests per second, and for how long."""

    rate: Annotated[float, Field(gt=0, le=MAX_ARRIVALS_PER_S)]
    """Requests/s."""
    duration: Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S)]
    """In s."""


class SharedPrefixSpec(Strict):
    """System prompts, each shared by several users who ask a question of their own."""

    num_unique_system_prompts: Annotated[Whole, Field(ge=1, le=MAX_MEMBERS)]
    """Number of system prompts."""
    num_users_per_system_prompt: Annotated[Whole, Field(ge=1, le=MAX_MEMBERS)]
    """Number of users that share each."""
    system_prompt_len: Tokens
    """Tokens of a system prompt."""
    question_len: Annotated[Tokens, Field(ge=1)]
    """Tokens of a question."""
    output_len: Annotated[Tokens, Field(ge=1)]
    """Tokens of an answer."""
    enable_multi_turn_chat: bool = False
    """Every user has a conversation, whose prompts repeat it so far."""


class InferencePerfSpec(Strict):
    """Load as inference-perf makes it: one stage after the other, each with exactly rate times duration
    requests at random times, dealt out to the system prompts in equal shares. The questions of their users
    are sent in turn, again and again."""

    stages: Annotated[tuple[StageSpec, ...], BeforeValidator(as_tuple)]
    """One after the other."""
    shared_prefix: SharedPrefixSpec
    """Prompts and answers of the requests."""


def is_config(values: Mapping[str, Any]) -> bool:
    """Whether this is an inference-perf configuration."""
    return isinstance(values.get("load"), dict) and "data" in values and "clients" not in values


def of_config(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Content of an inference-perf configuration as content of a workload spec.

    Raises:
        InputError: an unsupported load or data type.
    """
    known = {"load", "data", *_WITHOUT_EFFECT}
    for key in values:
        if key not in known:
            raise InputError("unknown key of inference-perf", file=path, key=str(key), fix="remove it")
    load, data = values["load"], values["data"]
    if load.get("type", "constant") not in _LOADS:
        fix = "use constant or poisson, or limit requests under way with --concurrency"
        raise InputError("no such load here", file=path, key="load.type", value=load.get("type"), fix=fix)
    stages = [{key: stage.get(key) for key in ("rate", "duration")} for stage in _stages(load, path)]
    kind = data.get("type") if isinstance(data, dict) else None
    if kind == "shared_prefix":
        own = data.get("shared_prefix")
        if not isinstance(own, dict):
            raise InputError("missing key", file=path, key="data.shared_prefix", fix="add it")
        prefix = {_NAMES.get(key, key): value for key, value in own.items()}
        return {"version": "2", "inference_perf": {"stages": stages, "shared_prefix": prefix}}
    if kind in ("synthetic", "random"):
        return {"version": "2", "clients": [_random_lengths(data, stages, path)]}
    fix = "use shared_prefix, synthetic or random; of recorded texts give the file with --trace, and a --rate"
    raise InputError("its texts are not here", file=path, key="data.type", value=kind, fix=fix)


def _stages(load: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    stages = load.get("stages")
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages) or not stages:
        fix = "give rate and duration of each stage"
        raise InputError("must be a list of stages", file=path, key="load.stages", fix=fix)
    return stages


def _random_lengths(data: Mapping[str, Any], stages: list[dict[str, Any]], path: Path) -> dict[str, Any]:
    """One client with normally distributed lengths."""
    begin_us, windows = 0, []
    for number, stage in enumerate(stages):
        for key, value in stage.items():
            least, most = (SHORTEST_S, LONGEST_S) if key == "duration" else (1e-12, MAX_ARRIVALS_PER_S)
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
                where = f"load.stages[{number}].{key}"
                raise InputError(f"must be from {least:g} to {most:g}", file=path, key=where, value=value)
        end_us = begin_us + round(stage["duration"] * 1e6)
        count = max(round(stage["rate"] * stage["duration"]), 1)
        windows.append(_window(begin_us, end_us, count).model_dump(exclude_none=True, exclude_defaults=True))
        windows[-1] |= {"start_us": begin_us}
        begin_us = end_us
    sides = {
        f"{side}_distribution": _normal(data, f"{side}_distribution", path) for side in ("input", "output")
    }
    return {"id": "inference-perf", "lifecycle": {"windows": windows}} | sides


def _normal(data: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    given = data.get(key)
    if not isinstance(given, dict):
        raise InputError("missing key", file=path, key=f"data.{key}", fix="give mean, std_dev, min and max")
    names = ("mean", "std_dev", "min", "max")
    return {"type": "gaussian", "params": {name: given[name] for name in names if name in given}}


def inference_perf_clients(spec: InferencePerfSpec, file: Path | None) -> list[ClientSpec]:
    """A client for each system prompt, whose questions recur; in conversations, for each user and stage.

    Raises:
        InputError: no stages, too many clients, or unbounded conversations.
    """
    if not spec.stages:
        raise InputError("at least one stage is needed", file=file, key="inference_perf.stages")
    return list(_chats(spec, file) if spec.shared_prefix.enable_multi_turn_chat else _questions(spec))


def _questions(spec: InferencePerfSpec) -> Iterator[ClientSpec]:
    prompts = spec.shared_prefix.num_unique_system_prompts
    for prompt in range(prompts):
        windows = tuple(
            _window(begin_us, end_us, share)
            for begin_us, end_us, count in _timetable(spec)
            if (share := _share(count, prompt, prompts))
        )
        if windows:
            common = _repeated(spec.shared_prefix, f"prompt-{prompt}")
            yield ClientSpec(id=f"prompt-{prompt}", lifecycle=LifecycleSpec(windows=windows), **common)


def _chats(spec: InferencePerfSpec, file: Path | None) -> Iterator[ClientSpec]:
    """Clients with one conversation each, with as many turns as its share of the stage."""
    shared = spec.shared_prefix
    users = shared.num_unique_system_prompts * shared.num_users_per_system_prompt
    if users * len(spec.stages) > MAX_MEMBERS:
        problem, fix = f"more than {MAX_MEMBERS:,} conversations", "make it fewer users or stages"
        raise InputError(problem, file=file, key="inference_perf.shared_prefix", fix=fix)
    for stage, (begin_us, end_us, count) in enumerate(_timetable(spec)):
        think_us = round((end_us - begin_us) * users / count) if count else 0
        for user in range(users):
            rounds = _share(count, user, users)
            if rounds > MAX_ROUNDS:
                problem, fix = f"conversations of more than {MAX_ROUNDS:,} turns", "use more users"
                raise InputError(problem, file=file, key=f"inference_perf.stages[{stage}]", fix=fix)
            if rounds:
                start = _window(begin_us, min(begin_us + think_us, end_us), 1)
                yield _chat(shared, (stage, user), rounds, think_us, start)


def _chat(
    shared: SharedPrefixSpec, which: tuple[int, int], rounds: int, think_us: int, window: WindowSpec
) -> ClientSpec:
    stage, user = which
    prompt, number = divmod(user, shared.num_users_per_system_prompt)
    plan = MultiTurnSpec(
        max_rounds=rounds, think_time_us=think_us, context_growth="accumulate", single_session=True
    )
    return ClientSpec(
        id=f"stage-{stage}-prompt-{prompt}-user-{number}",
        lifecycle=LifecycleSpec(windows=(window,)),
        reasoning=ReasoningSpec(multi_turn=plan),
        **_common(shared, prompt),
    )


def _repeated(shared: SharedPrefixSpec, group: str) -> dict[str, Any]:
    """The questions of a system prompt's users, sent in turn and again: whole prompts recur.

    The last token is drawn for each request, since no cache has it: it is always computed.
    """
    users = shared.num_users_per_system_prompt
    levels = [(group, shared.system_prompt_len, 1), (f"{group} questions", shared.question_len - 1, users)]
    return {
        "tenant_id": group,
        "slo_class": "standard",
        "prefixes": tuple(
            PrefixSpec(name=name, tokens=tokens, pool=pool, in_turn=pool > 1)
            for name, tokens, pool in levels
            if tokens
        ),
        "input_distribution": _constant(1),
        "output_distribution": _constant(shared.output_len),
    }


def _common(shared: SharedPrefixSpec, prompt_tokens: int) -> dict[str, Any]:
    group = f"prompt-{prompt_tokens}"
    prefix = {"prefix_group": group, "prefix_length": shared.system_prompt_len}
    return {
        "tenant_id": group,
        "slo_class": "standard",
        "input_distribution": _constant(shared.question_len),
        "output_distribution": _constant(shared.output_len),
    } | (prefix if shared.system_prompt_len else {})


def _timetable(spec: InferencePerfSpec) -> Iterator[tuple[int, int, int]]:
    """Start and end in us, and number of requests, of each stage."""
    begin_us = 0
    for stage in spec.stages:
        end_us = begin_us + round(stage.duration * 1e6)
        yield begin_us, end_us, int(stage.rate * stage.duration + 1e-9)
        begin_us = end_us


def _share(count: int, index: int, parts: int) -> int:
    """Number of `count` items for part `index`, distributed in turn."""
    return count // parts + (index < count % parts)


def _window(begin_us: int, end_us: int, count: int) -> WindowSpec:
    rate = count * 1e6 / (end_us - begin_us)
    arrival = ArrivalSpec(process="poisson", exact_count=True)
    return WindowSpec(start_us=begin_us, end_us=end_us, trace_rate=rate, arrival=arrival)


def _constant(tokens: int) -> DistributionSpec:
    return DistributionSpec(type="constant", params={"value": float(tokens)})
