"""`servegen_data` of a workload spec: clients as ServeGen recorded them (`blis_py.workload.servegen`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from blis_py.errors import InputError
from blis_py.requests.streams import stream
from blis_py.workload._spec_client import ClientSpec
from blis_py.workload._spec_lifecycle import ArrivalSpec, LifecycleSpec, WindowSpec
from blis_py.workload.arrivals import GAMMA_CV, WEIBULL_CV
from blis_py.workload.servegen import Chunk, Sends, Weights, is_servegen, read_chunks
from blis_py.workload.spec_base import DistributionSpec, Strict, Whole

PERIODS_S = {"midnight": 0, "morning": 28_800, "afternoon": 50_400}
"""Beginnings of the periods of a day; each has so many windows, of which one is played."""
_WINDOWS, _WINDOW_S, _DAY_S = 3, 600, 86_400
_CLASSES = ("critical", "standard", "batch", "sheddable", "background")


class ServeGenSpec(Strict):
    """A folder of ServeGen (`chunk-N-trace.csv`, `chunk-N-dataset.json`): every client with its own rate,
    burstiness and lengths.

    Ten minutes of midnight, of the morning (8:00) and of the afternoon (14:00) are played, one after the
    other; which ten of the first thirty each is drawn by the spec's seed. With `span_start` and `span_end` it
    is that part of the day instead, from beginning to end. SLO classes, which ServeGen does not have, are
    dealt out to the clients in turn.
    """

    path: str
    """The folder; a relative one starts at the spec."""
    time_window: Literal["", "midnight", "morning", "afternoon"] = ""
    """Only that one of the three."""
    window_duration_secs: Annotated[float, Field(ge=1e-3, le=1e9)] = _WINDOW_S
    """Time for which each is played."""
    drain_timeout_secs: Annotated[float, Field(ge=0, le=1e9)] = 0
    """Pause after each."""
    span_start: Annotated[Whole, Field(lt=_DAY_S)] | None = None
    """Play the day from this second on."""
    span_end: Annotated[Whole, Field(le=_DAY_S)] | None = None
    """To this one; absent: to its end."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A part of the day to be played.

    Attributes:
        name: of the part; empty if the day is played as recorded.
        day_s: its start in the day.
        begin_us: its start in the run.
        length_us: its length.
    """

    name: str
    day_s: int
    begin_us: int
    length_us: int


def servegen_clients(spec: ServeGenSpec, seed: int, file: Path | None) -> tuple[list[ClientSpec], list[str]]:
    """The clients that send in the played parts, and notes.

    Args:
        seed: of the random windows, and of the order in which classes are assigned.

    Raises:
        InputError: an invalid folder, or no requests in the played parts.
    """
    slots = list(_slots(spec, seed, file))
    folder = (file.parent if file else Path()) / Path(spec.path)
    if not is_servegen(folder):
        fix = "give the folder with its chunk-N-trace.csv and chunk-N-dataset.json"
        raise InputError("no data of ServeGen", file=file, key="servegen_data.path", value=spec.path, fix=fix)
    chunks = read_chunks(folder)
    sending = [chunk for chunk in chunks if _windows_of(chunk, slots)]
    if not sending:
        problem = "no client sends at that time of day"
        raise InputError(problem, file=file, key="servegen_data", value=spec.path)
    dealt = stream(seed, "servegen", "classes").permutation(len(sending)).tolist()
    clients = [
        _client(chunk, _windows_of(chunk, slots), _CLASSES[turn % len(_CLASSES)])
        for chunk, turn in zip(sending, dealt, strict=True)
    ]
    played = ", ".join(f"{slot.name or 'the day'} from {_clock(slot.day_s)}" for slot in slots)
    note = f"ServeGen: {len(clients):,} of {len(chunks):,} clients send, {played}; SLO classes are dealt out"
    return clients, [note]


def _slots(spec: ServeGenSpec, seed: int, file: Path | None) -> Iterator[_Slot]:
    if spec.span_start is not None or spec.span_end is not None:
        start_s, end_s = spec.span_start or 0, _DAY_S if spec.span_end is None else spec.span_end
        key = "servegen_data.span_end"
        if end_s <= start_s:
            raise InputError(f"must be after span_start ({start_s})", file=file, key=key, value=end_s)
        if spec.time_window:
            problem, fix = "contradicts span_start and span_end", "remove one of the two"
            raise InputError(problem, file=file, key="servegen_data.time_window", fix=fix)
        yield _Slot("", start_s, 0, (end_s - start_s) * 10**6)
        return
    begin_us, length_us = 0, round(spec.window_duration_secs * 1e6)
    for name, start_s in PERIODS_S.items():
        if spec.time_window in ("", name):
            drawn = int(stream(seed, "servegen", name).integers(_WINDOWS))
            yield _Slot(name, start_s + drawn * _WINDOW_S, begin_us, length_us)
            begin_us += length_us + round(spec.drain_timeout_secs * 1e6)


def _windows_of(chunk: Chunk, slots: Sequence[_Slot]) -> list[tuple[Sends, int, int]]:
    """The client's windows in the run: arrivals, start and end in us."""
    rows = []
    for slot in slots:
        for sends in chunk.sends:
            if slot.name:
                if sends.start_s == slot.day_s:
                    rows.append((sends, slot.begin_us, slot.begin_us + slot.length_us))
                continue
            begin_us = max(round((sends.start_s - slot.day_s) * 1e6), 0)
            end_us = min(round((sends.start_s + _WINDOW_S - slot.day_s) * 1e6), slot.length_us)
            if begin_us < end_us:
                rows.append((sends, begin_us, end_us))
    return rows


def _client(chunk: Chunk, windows: Sequence[tuple[Sends, int, int]], slo_class: str) -> ClientSpec:
    known: dict[int, tuple[DistributionSpec, DistributionSpec]] = {}

    def lengths(sends: Sends) -> tuple[DistributionSpec, DistributionSpec]:
        own = chunk.lengths_at(sends.start_s)
        if id(own) not in known:
            known[id(own)] = (_distribution(own[0]), _distribution(own[1]))
        return known[id(own)]

    first = lengths(windows[0][0])
    return ClientSpec(
        id=f"chunk-{chunk.number}",
        slo_class=slo_class,
        input_distribution=first[0],
        output_distribution=first[1],
        lifecycle=LifecycleSpec(
            windows=tuple(
                WindowSpec(
                    start_us=begin_us,
                    end_us=end_us,
                    trace_rate=sends.rate,
                    arrival=_arrival(sends),
                    input_distribution=None if lengths(sends) is first else lengths(sends)[0],
                    output_distribution=None if lengths(sends) is first else lengths(sends)[1],
                )
                for sends, begin_us, end_us in windows
            )
        ),
    )


def _distribution(weights: Weights) -> DistributionSpec:
    return DistributionSpec(type="empirical", params=weights)


def _arrival(sends: Sends) -> ArrivalSpec:
    """Arrivals of a window; variation beyond a Weibull distribution's range becomes a gamma distribution."""
    law = "gamma" if sends.law == "weibull" and not WEIBULL_CV[0] <= sends.cv <= WEIBULL_CV[1] else sends.law
    if law == "poisson" or sends.cv <= 0:
        return ArrivalSpec(process="poisson")
    low, high = WEIBULL_CV if law == "weibull" else GAMMA_CV
    return ArrivalSpec(process=law, cv=min(max(sends.cv, low), high))  # type: ignore[arg-type]


def _clock(time_s: int) -> str:
    return f"{time_s // 3600}:{time_s % 3600 // 60:02}"
