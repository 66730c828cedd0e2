"""The YAML workload spec (version 2 of BLIS's): clients in open loops, or with so many requests under way.

Prefixes and conversations are in `spec_sharing.py`.

The models carry the YAML's keys and types; what the values mean together is checked in `resolved`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, ValidationError

from blis_py.core.bounds import MOST_REQUESTS
from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.workload import arrivals
from blis_py.workload.arrivals import Arrivals
from blis_py.workload.client import Client
from blis_py.workload.spec_base import (
    DistributionSpec,
    Positive,
    Seed,
    Share,
    Strict,
    Text,
    TimeUs,
    Tokens,
    Whole,
    as_text,
    lengths_of,
)
from blis_py.workload.spec_sharing import (
    PrefixSpec,
    ReasoningSpec,
    check_prefixes,
    prefix_levels,
    sessions,
)

if TYPE_CHECKING:
    from blis_py.workload.diffusion import DiffusionClient

SLO_CLASSES = ("critical", "standard", "batch", "sheddable", "background", "")
RENAMED_CLASSES = {"realtime": "critical", "interactive": "standard"}
SESSION_TIMEOUT_US = 300_000_000
"""Patience of a client with several turns that does not say how long it waits (as in BLIS)."""
DEFAULT_PREFIX_TOKENS = 50
"""Length of a prefix group's prefix where no client gives one (as in BLIS)."""

NOT_YET: dict[str, frozenset[str]] = {
    "top": frozenset({"cohorts", "servegen_data", "inference_perf", "drain_timeout_secs"}),
    "client": frozenset(
        [
            "adapter",
            "network",
            "lifecycle",
            "multimodal",
        ]
    ),
}
"""Keys of the format that this program does not act on yet; refused unless they are null, 0 or false."""


class ArrivalSpec(Strict):
    """`shape` and `scale` (us) together replace `cv` and the client's rate."""

    process: Literal["poisson", "gamma", "weibull", "constant"]
    cv: Positive | None = None
    shape: Positive | None = None
    scale: Positive | None = None


class DiffusionSpec(Strict):
    """`kind: diffusion` and what belongs to it (`blis_py.workload.diffusion`), of a client or of all."""

    kind: Literal["autoregressive", "diffusion"] | None = None
    block_size: int | None = None
    steps: Any = None
    commit_rounds: int | None = None


class ClientSpec(DiffusionSpec):
    """One source of requests, or with `reasoning.multi_turn` of sessions.

    With `concurrency` (absent or 0: an open loop) no more of its requests are under way, and each, once
    answered, leaves its place to the next after `think_time_us`. With a rate (`rate_fraction`, `arrival`)
    those that are due wait for a place; without one the next is sent as soon as there is one.
    Times in us; `timeout` is patience from sending, 0: endless; absent: endless, or 300 s with several turns.
    """

    id: Text = ""
    tenant_id: Text = ""
    slo_class: str = ""
    model: str = ""
    rate_fraction: Share | None = None
    arrival: ArrivalSpec | None = None
    concurrency: Annotated[Whole, Field(le=MOST_REQUESTS)] = 0
    think_time_us: TimeUs = 0
    input_distribution: DistributionSpec
    output_distribution: DistributionSpec
    prefix_group: Text = ""
    prefix_length: Tokens = 0
    prefixes: Annotated[
        tuple[PrefixSpec, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
    ] = ()
    reasoning: ReasoningSpec | None = None
    closed_loop: bool | None = None
    streaming: bool = False
    timeout: TimeUs | None = None
    slo_target_us: TimeUs | None = None
    structured_output_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0


class WorkloadSpec(DiffusionSpec):
    """A workload: clients share `aggregate_rate` (requests/s) in proportion to their `rate_fraction`.

    It is needed where a client has one. `num_requests` (those sent first) and `horizon` (us) bound it; 0 or
    absent: no bound. What it says of diffusion holds for every client that does not say otherwise.
    """

    version: Annotated[Literal["", "1", "2"], BeforeValidator(as_text)] = "2"
    seed: Seed | None = None
    category: Literal["", "language", "multimodal", "reasoning"] = ""
    aggregate_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    num_requests: Whole = 0
    horizon: TimeUs = 0
    clients: Annotated[
        tuple[ClientSpec, ...], BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
    ]
    goodput_slo_targets: dict[Text, dict[str, float]] = Field(default_factory=dict)
    _file: Path | None = PrivateAttr(default=None)
    _classes: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def file(self) -> Path | None:
        """Where the spec was read from."""
        return self._file

    def resolved(self, *, rate: float | None = None) -> list[Client]:
        """The clients with every default, share and file resolved.

        Args:
            rate: requests per second, instead of `aggregate_rate`.

        Raises:
            InputError: with file and key of what cannot be.
        """
        _check_clients(self.clients, self._file, rate, self._classes)
        total = math.fsum(client.rate_fraction or 0.0 for client in self.clients)
        prefixes = _prefix_lengths(self.clients, self._file)
        check_prefixes([client.prefixes for client in self.clients], self._file)
        aggregate = self._aggregate_rate(rate) if total else 0.0
        return [
            _client(client, index, aggregate * (client.rate_fraction or 0.0) / (total or 1.0), prefixes, self)
            for index, client in enumerate(self.clients)
        ]

    def _aggregate_rate(self, rate: float | None) -> float:
        """Of the clients that have one."""
        aggregate = self.aggregate_rate if rate is None else rate
        if self.aggregate_rate is None:
            raise InputError("missing key", file=self._file, key="aggregate_rate", fix="add it")
        if not aggregate:
            raise InputError("must be greater than 0", file=self._file, key="aggregate_rate", value=0)
        arrivals.check_rate(aggregate, key="aggregate_rate", file=self._file)
        return aggregate


def load_spec(path: str | Path, *, classes: Collection[str] = ()) -> WorkloadSpec:
    """Read and check a workload spec; `classes` are SLO classes there are beside the usual ones.

    Raises:
        InputError: one, for the first problem: file, dotted key, value and what to do.
    """
    path = Path(path)
    values = load_mapping(path)
    _refuse_not_yet(values, path)
    try:
        spec = WorkloadSpec.model_validate(values)
    except ValidationError as error:
        raise _input_error(error, path) from None
    spec._file = path
    spec._classes = frozenset(classes)
    spec.resolved()
    return spec


def _refuse_not_yet(values: dict[str, Any], path: Path) -> None:
    places = [("", values, NOT_YET["top"])]
    clients = values.get("clients")
    for index, client in enumerate(clients if isinstance(clients, list) else []):
        if isinstance(client, dict):
            places.append((f"clients[{index}].", client, NOT_YET["client"]))
    for where, mapping, keys in places:
        for key in [key for key in mapping if key in keys]:
            if mapping[key] not in (None, 0, False, "", [], {}):
                raise InputError("not supported yet", file=path, key=f"{where}{key}", fix="remove the key")
            del mapping[key]


def _input_error(error: ValidationError, path: Path) -> InputError:
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    location = first["loc"]
    key = _dotted(location)
    if first["type"] == "extra_forbidden":
        return InputError("unknown key", file=path, key=key, fix=_nearest(location))
    if first["type"] == "missing":
        return InputError("missing key", file=path, key=key, fix="add it")
    problem = first["msg"].replace("Input should be", "must be").replace("a valid", "a")
    value = first["input"] if isinstance(first["input"], (str, int, float, bool)) else None
    return InputError(problem, file=path, key=key, value=value)


def _dotted(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _nearest(location: tuple[int | str, ...]) -> str:
    """What an unknown key may have meant, from the model that it stands in."""
    model: type[BaseModel] = WorkloadSpec
    for part in location[:-1]:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
            model = next((kind for kind in inner if issubclass(kind, BaseModel)), model)
    near = difflib.get_close_matches(str(location[-1]), model.model_fields, 1)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(model.model_fields)}"


def _check_clients(
    clients: tuple[ClientSpec, ...], path: Path | None, rate: float | None, classes: Collection[str]
) -> None:
    if not clients:
        raise InputError("at least one client is needed", file=path, key="clients")
    if rate is not None:
        arrivals.check_rate(rate, key="--rate")
        if all(client.arrival is None for client in clients):
            fix = "drop it, or give clients a rate_fraction"
            raise InputError("no client has a rate", file=path, key="--rate", value=rate, fix=fix)
    seen: set[str] = set()
    for index, client in enumerate(clients):
        key = f"clients[{index}]"
        name = client.id or f"client_{index}"
        if name in seen:
            raise InputError(
                "two clients have this id", file=path, key=f"{key}.id", value=name, fix="rename one"
            )
        seen.add(name)
        if client.prefixes and client.prefix_group:
            raise InputError(
                "a client has a prefix group or prefixes, not both",
                file=path,
                key=f"{key}.prefix_group",
                value=client.prefix_group,
                fix="make the group's prefix the first of the prefixes",
            )
        _check_class(client.slo_class, f"{key}.slo_class", path, classes)
        _check_loop(client, key, path)
        arrival = client.arrival
        if arrival is None:
            continue
        arrivals.check(
            arrival.process, arrival.cv, arrival.shape, arrival.scale, key=f"{key}.arrival", file=path
        )
        if rate is not None and arrival.scale is not None:
            raise InputError(
                "fixes the client's rate, so --rate cannot set it",
                file=path,
                key=f"{key}.arrival.scale",
                fix="use cv instead of shape and scale",
            )


def _check_loop(client: ClientSpec, key: str, path: Path | None) -> None:
    """A rate and how it is spaced, or a number of requests under way, or both."""

    def refuse(problem: str, name: str, fix: str) -> InputError:
        return InputError(problem, file=path, key=f"{key}.{name}", fix=fix)

    given = (client.rate_fraction is not None, client.arrival is not None)
    if given[0] != given[1] or not (given[1] or client.concurrency):
        missing, other = ("arrival", "rate_fraction") if given[0] else ("rate_fraction", "arrival")
        alone = f", or remove {other}: the client has a concurrency" if client.concurrency else ""
        raise refuse("missing key", missing, f"add it{alone}")
    if client.think_time_us and not client.concurrency:
        raise refuse("means a closed loop", "think_time_us", "say how many are under way with concurrency")
    if client.concurrency and client.reasoning is not None and client.reasoning.multi_turn is not None:
        raise refuse("has no meaning for sessions", "concurrency", "remove it, or reasoning.multi_turn")
    if client.concurrency and client.closed_loop is False:
        raise refuse("contradicts concurrency", "closed_loop", "remove one of the two")


def _check_class(name: str, key: str, path: Path | None, classes: Collection[str]) -> None:
    if name in SLO_CLASSES or name in classes:
        return
    known = ", ".join(filter(None, SLO_CLASSES))
    renamed = RENAMED_CLASSES.get(name)
    priority = f"give it a priority: --set admission.slo_priorities.{name}=N"
    fix = f"use one of {known}, leave it out, or {priority}"
    if renamed:
        fix = f"it is called {renamed} since version 2, or {priority}"
    raise InputError("unknown SLO class", file=path, key=key, value=name, fix=fix)


def _prefix_lengths(clients: tuple[ClientSpec, ...], path: Path | None) -> dict[str, int]:
    """One length per prefix group: what its clients say, which must be the same where they say it."""
    lengths_of: dict[str, int] = {}
    for index, client in enumerate(clients):
        key, tokens = f"clients[{index}].prefix_length", client.prefix_length
        if tokens and not client.prefix_group:
            raise InputError("a prefix is shared in a group", file=path, key=key, fix="give prefix_group too")
        if tokens and lengths_of.setdefault(client.prefix_group, tokens) != tokens:
            raise InputError(
                f"the group's prefix has {lengths_of[client.prefix_group]} tokens already",
                file=path,
                key=key,
                value=tokens,
                fix="use one length, or another group",
            )
    return lengths_of


def _client(
    client: ClientSpec, index: int, rate: float, prefixes: dict[str, int], spec: WorkloadSpec
) -> Client:
    key, path = f"clients[{index}]", spec.file
    group = client.prefix_group
    several = sessions(client.reasoning, None if client.concurrency else client.closed_loop, key, path)
    timeout_us = (SESSION_TIMEOUT_US if several else 0) if client.timeout is None else client.timeout
    return Client(
        name=client.id or f"client_{index}",
        arrivals=None if client.arrival is None else _arrivals(client.arrival, rate, key, path),
        input=lengths_of(client.input_distribution, f"{key}.input_distribution", path),
        output=lengths_of(client.output_distribution, f"{key}.output_distribution", path),
        tenant=client.tenant_id,
        slo_class=client.slo_class,
        model=client.model,
        prefix_group=group,
        prefix_tokens=prefixes.get(group, DEFAULT_PREFIX_TOKENS) if group else 0,
        prefixes=prefix_levels(client.prefixes, f"{key}.prefixes", path),
        sessions=several,
        streaming=client.streaming,
        timeout_ns=timeout_us * 1000 or None,
        slo_target_ns=(client.slo_target_us or 0) * 1000,
        structured_output_ratio=client.structured_output_ratio,
        diffusion=_diffusion(client, key, spec),
        permits=client.concurrency or None,
        think_ns=client.think_time_us * 1000,
    )


def _arrivals(arrival: ArrivalSpec, rate: float, key: str, path: Path | None) -> Arrivals:
    if arrival.shape is None:
        arrivals.check_rate(rate, key=f"{key}.rate_fraction", file=path)
    return Arrivals(
        arrival.process,
        rate,
        cv=1.0 if arrival.cv is None else arrival.cv,
        shape=arrival.shape,
        scale_us=arrival.scale,
    )


def _diffusion(client: ClientSpec, key: str, spec: WorkloadSpec) -> DiffusionClient | None:
    """What the client says, over what the spec says for all."""
    names = DiffusionSpec.model_fields
    common, own = ({n: getattr(s, n) for n in names if getattr(s, n) is not None} for s in (spec, client))
    said = common | own
    if said.get("kind") == "diffusion":
        from blis_py.workload.diffusion import diffusion_client

        place = key if own else ""
        return diffusion_client(said, key=place, file=spec.file)
    for name in own if common.get("kind") == "diffusion" else said:
        if name != "kind":
            where, fix = f"{key}.{name}" if name in own else name, "give kind: diffusion too, or drop it"
            raise InputError("belongs to block diffusion", file=spec.file, key=where, fix=fix)
    return None
