"""The YAML workload spec (version 2 of BLIS's): clients in open loops, or with so many requests under way.

Clients and cohorts are in `_spec_client.py`, when they send in `_spec_lifecycle.py`, what their prompts share
in `_spec_sharing.py`.

The models carry the YAML's keys and types; what the values mean together is checked in `resolved`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError

from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.workload._modalities import Multimodal
from blis_py.workload._spec_client import ClientSpec, CohortSpec
from blis_py.workload._spec_errors import input_error
from blis_py.workload._spec_rates import RatePart, parts_of, rates_of
from blis_py.workload._spec_servegen import ServeGenSpec, servegen_clients
from blis_py.workload._spec_sharing import check_prefixes, multimodal_of, prefix_levels, sessions
from blis_py.workload._spec_sources import RENAMED_CLASSES, check_sources, prefix_lengths, sources_of
from blis_py.workload.client import Client
from blis_py.workload.lengths import Lengths
from blis_py.workload.profile import Profile
from blis_py.workload.servegen import is_servegen
from blis_py.workload.spec_base import Seed, Text, TimeUs, Whole, as_text, as_tuple, lengths_of
from blis_py.workload.spec_inference_perf import (
    InferencePerfSpec,
    inference_perf_clients,
    is_config,
    of_config,
)
from blis_py.workload.spec_kinds import KindSpec, kind_of_client

SESSION_TIMEOUT_US = 300_000_000
"""Default timeout of a client with several turns (as in BLIS)."""
DEFAULT_SPEC_SEED = 42
DEFAULT_PREFIX_TOKENS = 50
"""Default prefix length of a prefix group (as in BLIS)."""

NOT_YET: dict[str, str] = {
    "adapter": "LoRA adapters are not simulated yet: remove the key, and all requests are for the base model",
}
"""Keys of a client that are not supported yet, with the remedy; refused unless they are null, 0 or false."""


class WorkloadSpec(KindSpec):
    """A workload: clients share `aggregate_rate` (requests/s) in proportion to their `rate_fraction`.

    It is needed where a client has one. `num_requests` (those sent first) and `horizon` (us) bound it; 0 or
    absent: no bound. A horizon that ends the load ends the simulation too. `rate_profile` is a CSV file with
    the columns `seconds` and `rate`: from that second on, the clients share that rate, instead of
    `aggregate_rate`.
    What it says of the kind of requests holds for every client that does not say otherwise.
    """

    version: Annotated[Literal["", "1", "2"], BeforeValidator(as_text)] = ""
    """`2`; without it, or with `1`, the classes `realtime` and `interactive` are read as `critical` and
    `standard`."""
    seed: Seed | None = None
    """Seed of all random draws, unless `--seed` is given; absent: 42."""
    category: Literal["", "language", "multimodal", "reasoning"] = ""
    """Read, and without effect."""
    aggregate_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Requests/s of all clients together that have a share of it; `--rate` replaces it. 0 or absent where
    windows say their own rates."""
    rate_profile: str = ""
    """A CSV file with the columns `seconds` and `rate`, next to the spec: the rate from each second on,
    instead of `aggregate_rate`."""
    num_requests: Whole = 0
    """Those that are sent first; 0: no bound."""
    horizon: TimeUs = 0
    """End of load and simulation, in us, unless `--horizon` is given, or `num_requests`
    ends the load before; 0: no bound."""
    clients: Annotated[tuple[ClientSpec, ...], BeforeValidator(as_tuple)] = ()
    """Sources of requests."""
    cohorts: Annotated[tuple[CohortSpec, ...], BeforeValidator(as_tuple)] = ()
    """Sources that are many clients alike."""
    servegen_data: ServeGenSpec | None = None
    """Clients as ServeGen recorded them."""
    inference_perf: InferencePerfSpec | None = None
    """Load as inference-perf makes it."""
    goodput_slo_targets: dict[Text, dict[str, float]] = Field(default_factory=dict)
    """Limits that a good request meets, by class: `ttft_ms`, `itl_ms`, `e2e_ms`."""
    _file: Path | None = PrivateAttr(default=None)
    _classes: frozenset[str] = PrivateAttr(default=frozenset())
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _everyone: tuple[ClientSpec, ...] = PrivateAttr(default=())

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on interpretations that differ from the text."""
        return self._notes

    @property
    def file(self) -> Path | None:
        """Source file of the spec."""
        return self._file

    @property
    def all_clients(self) -> tuple[ClientSpec, ...]:
        """All clients, those of `servegen_data` and `inference_perf` included."""
        return self._everyone or self.clients

    def _expand(self) -> list[str]:
        """Create the clients that are only described; return notes on them."""
        made = list(self.clients)
        notes: list[str] = []
        if self.servegen_data is not None:
            seed = DEFAULT_SPEC_SEED if self.seed is None else self.seed
            clients, notes = servegen_clients(self.servegen_data, seed, self._file)
            made += clients
        if self.inference_perf is not None:
            made += inference_perf_clients(self.inference_perf, self._file)
        self._everyone = tuple(made)
        return notes

    def resolved(self, *, rate: float | None = None) -> list[Client]:
        """The clients with every default, share and file resolved.

        Args:
            rate: requests per second, instead of `aggregate_rate`.

        Raises:
            InputError: with file and key of the invalid value.
        """
        sources = sources_of(self.all_clients, self.cohorts)
        check_sources(sources, self._file, rate, self._classes)
        prefixes = prefix_lengths(sources, self._file)
        check_prefixes([(source.key, source.spec.prefixes) for source in sources], self._file)
        parts = [part for source in sources for part in parts_of(source)]
        aggregate = self.aggregate_rate if rate is None else rate
        rates = rates_of(parts, aggregate, self._day(rate), self._file)
        return [
            client
            for part, (own, profile) in zip(parts, rates, strict=True)
            for client in _clients(part, own, profile, prefixes, self)
        ]

    def _day(self, rate: float | None) -> tuple[float, Profile] | None:
        if not self.rate_profile:
            return None
        if rate is not None or self.aggregate_rate:
            key, fix = ("--rate" if rate is not None else "aggregate_rate"), "drop one of the two"
            value = rate or self.aggregate_rate
            raise InputError("rate_profile says it", file=self._file, key=key, value=value, fix=fix)
        from blis_py.workload._rate_files import read_rates

        return read_rates((self._file.parent if self._file else Path()) / self.rate_profile)


def load_spec(path: str | Path, *, classes: Collection[str] = ()) -> WorkloadSpec:
    """Read and check a workload spec; `classes` are SLO classes beyond the usual ones.

    Raises:
        InputError: for the first problem: file, dotted key, value and remedy.
    """
    path = Path(path)
    spec = parse_spec(spec_values(path), path, classes=classes)
    if not is_servegen(path) and is_config(load_mapping(path)):
        spec._notes = (f"{path.name} is read as a configuration of inference-perf", *spec._notes)
    return spec


def parse_spec(values: dict[str, Any], path: Path, *, classes: Collection[str] = ()) -> WorkloadSpec:
    """Parse the values of the file `path`; they are modified.

    Raises:
        InputError: a key is unknown, missing, or has a value that does not fit.
    """
    _refuse_not_yet(values, path)
    notes = _upgrade(values, classes)
    try:
        spec = WorkloadSpec.model_validate(values)
    except ValidationError as error:
        raise input_error(error, WorkloadSpec, path) from None
    spec, unpaced = _without_idle_arrivals(spec)
    spec._file = path
    spec._classes = frozenset(classes)
    spec._notes = (*notes, *unpaced, *spec._expand())
    spec.resolved()
    return spec


def spec_values(path: Path) -> dict[str, Any]:
    """Values of a spec file, a ServeGen folder, or an inference-perf configuration."""
    if is_servegen(path):
        return {"version": "2", "servegen_data": {"path": str(path.absolute())}}
    values = load_mapping(path)
    return of_config(values, path) if is_config(values) else values


def _upgrade(values: dict[str, Any], classes: Collection[str]) -> list[str]:
    """Rename the classes of version 1 to those of version 2, unless they are defined; return the renamed
    ones."""
    if as_text(values.get("version") or "1") != "1":
        return []
    renamed: dict[str, str] = {}
    for kind in ("clients", "cohorts"):
        sources = values.get(kind)
        for source in sources if isinstance(sources, list) else []:
            name = source.get("slo_class") if isinstance(source, dict) else None
            if isinstance(name, str) and name in RENAMED_CLASSES and name not in classes:
                source["slo_class"] = renamed[name] = RENAMED_CLASSES[name]
    return [f"version 1 of the workload spec: class {old} is {new}" for old, new in renamed.items()]


def _without_idle_arrivals(spec: WorkloadSpec) -> tuple[WorkloadSpec, list[str]]:
    """The spec without the `arrival` of closed loops that have no rate, and notes on them."""
    notes, changes = [], {}
    for kind in ("clients", "cohorts"):
        sources = list(getattr(spec, kind))
        for index, source in enumerate(sources):
            has_rate = source.rate_fraction is not None or source.lifecycle is not None
            if source.concurrency and source.arrival is not None and not has_rate:
                sources[index] = source.model_copy(update={"arrival": None})
                where = f"{kind}[{index}].arrival"
                notes.append(f"{where} has no effect beside a concurrency without a rate_fraction")
        changes[kind] = tuple(sources)
    return (spec.model_copy(update=changes) if notes else spec), notes


def _refuse_not_yet(values: dict[str, Any], path: Path) -> None:
    for kind in ("clients", "cohorts"):
        sources = values.get(kind)
        for index, source in enumerate(sources if isinstance(sources, list) else []):
            for key in [key for key in source if key in NOT_YET] if isinstance(source, dict) else []:
                if source[key] not in (None, 0, False, "", [], {}):
                    where, fix = f"{kind}[{index}].{key}", NOT_YET[key]
                    raise InputError("not supported yet", file=path, key=where, fix=fix)
                del source[key]


def _clients(
    part: RatePart, rate: float, profile: Profile | None, prefixes: dict[str, int], spec: WorkloadSpec
) -> list[Client]:
    """The clients of a source, identical except for names and prefix groups."""
    client, key, path = part.source.spec, part.source.key, spec.file
    several = sessions(client.reasoning, None if client.concurrency else client.closed_loop, key, path)
    if several is not None and client.concurrency and not several.thinks:
        several = replace(several, think_ns=client.think_time_us * 1000)
    timeout_us = (SESSION_TIMEOUT_US if several else 0) if client.timeout is None else client.timeout
    common = Client(
        name="",
        part=part.name,
        arrivals=part.arrivals(rate, profile, path),
        input=_lengths(part, "input_distribution", path),
        output=_lengths(part, "output_distribution", path),
        tenant=client.tenant_id,
        slo_class=client.slo_class,
        model=client.model,
        prefixes=prefix_levels(client.prefixes, f"{key}.prefixes", path),
        sessions=several,
        multimodal=_multimodal(part, path),
        rtt_ns=0.0 if client.network is None else client.network.rtt_ms * 1e6,
        token_wire_ns=_token_wire_ns(client),
        streaming=client.streaming,
        timeout_ns=timeout_us * 1000 or None,
        slo_target_ns=(client.slo_target_us or 0) * 1000,
        structured_output_ratio=client.structured_output_ratio,
        kind=kind_of_client(client, spec, key, spec.file),
        permits=client.concurrency or None,
        think_ns=client.think_time_us * 1000,
    )
    return [
        common._replace(
            name=name,
            prefix_group=group,
            prefix_tokens=prefixes.get(group, DEFAULT_PREFIX_TOKENS) if group else 0,
        )
        for name, group in zip(part.source.names, part.source.prefix_groups, strict=True)
    ]


def _lengths(part: RatePart, name: str, path: Path | None) -> Lengths:
    own = getattr(part.window, name, None)
    if own is not None:
        return lengths_of(own, f"{part.key}.{name}", path)
    return lengths_of(getattr(part.source.spec, name), f"{part.source.key}.{name}", path)


def _token_wire_ns(client: ClientSpec) -> float:
    """Transmission time of a token in ns; a token has 4 bytes, as in BLIS."""
    mbps = 0.0 if client.network is None else client.network.bandwidth_mbps
    return 4 * 8 * 1e3 / mbps if mbps else 0.0


def _multimodal(part: RatePart, path: Path | None) -> Multimodal | None:
    spec, key = part.source.spec.multimodal, f"{part.source.key}.multimodal"
    if spec is not None and part.window is not None and part.window.input_distribution is not None:
        fix = "make several clients of the windows"
        raise InputError("contradicts the input_distribution of a window", file=path, key=key, fix=fix)
    return multimodal_of(spec, key, path)
