"""Corrections of one server to step times learned on others, from a client's times of one or several runs.

At most six numbers: a factor on the GPU time of every step, a gap between steps, one per sequence; and a
delay of the front end, one per sequence it streams to, one per token of the prompt. The recorded requests are
simulated with the current numbers and with each of them changed slightly; the errors of TTFT and TPOT are
explained by these slopes (robust least squares on relative errors, none negative, weakly regularised to the
preset), and the process is repeated, first with all numbers free. At what they lead to, the fewest numbers
are chosen that predict parts of the run, and loads, from the others as well as more would; these are then
fitted by themselves, and so are parts of them that predict nearly as much. Each simulation batches requests a
little differently, so the mean of what several rounds lead to is taken. Errors are averaged by slices of time
and in each by the length of the prompt (TTFT) and the requests in flight (TPOT).

Runs of one server differ from each other by more than the scatter within a run: three of Llama-2-7B by 2 % of
their TPOT. So a change of less than that scatter is none, one of twice as much is kept as it is, and between
the two the kept part grows evenly; where the numbers explain a run to within less than servers scatter, the
bound is lower in proportion. Of n runs the scatter is a sqrt(n)-th. A number that then differs from the
preset by less than the fit converges to is the preset's. Several runs count by their information, the inverse
of that scatter's variance and their own. A run without that scatter (a simulated server) is explained
further: TPOT decides on steps, and single requests on all numbers where most are simulated exactly, else on
the front end. A log that names the instances of its requests is one run of each.

Errors are those of whole simulations before and after. Held-out errors are of four parts of the run in turn,
predicted with numbers from the other three. Numbers with which either is worse than with the preset are not a
fit. Intervals are of fits to resampled slices (90 %).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blis_py.calibrate.fit.by_instance import by_instance
from blis_py.calibrate.fit.linearised import sizes
from blis_py.calibrate.fit.search import explained, rounded
from blis_py.calibrate.fit.server_runs import NAMES, Floats, ServerRun, ServerRuns, frontend_ms
from blis_py.calibrate.token_times import TokenTimes
from blis_py.errors import InputError
from blis_py.latency.base import unbounded
from blis_py.latency.operators import Operators
from blis_py.latency.trained import Trained
from blis_py.setup.setup import Setup

MAX = 20_000
"""Requests of a run: more take too long."""
_SAME = 5e-5
"""Difference of two errors that does not show."""
_FACTOR = 1.4
"""Beyond this, a factor compensates for effects it does not describe."""


@dataclass(frozen=True)
class FittedServer:
    """A number with its 90 % interval."""

    value: float
    low: float
    high: float

    def described(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    @classmethod
    def of(cls, *values: float) -> FittedServer:
        """A number with its interval."""
        return cls(*values)


@dataclass(frozen=True)
class ServerFit:
    """The fitted numbers, and their accuracy."""

    source: str
    requests: int
    numbers: Mapping[str, FittedServer]
    """Numbers by name, see `NAMES`."""
    frontend_ms: tuple[float, ...]
    """The front end as in the setting of that name."""
    before: Mapping[str, float]
    """Predicted over measured, minus one, of each mean and 99th percentile."""
    after: Mapping[str, float]
    held_out: Mapping[str, float]
    """Mean absolute error of the means of slices of time, with numbers from other parts of the run."""
    held_out_before: Mapping[str, float]
    in_flight: int = 0
    """Largest number of requests in flight, up to which a gap per sequence is known."""
    instances: int = 1
    """Instances that the runs are logs of, each fitted as a run of its own."""
    notes: tuple[str, ...] = ()

    @property
    def worse(self) -> str:
        """Figure that the fitted numbers predict worse than the preset, in one line; empty = none."""
        for name, error in self.held_out.items():
            if error > self.held_out_before[name] + _SAME:
                return f"held-out {name} is {error:.1%} off, with the preset {self.held_out_before[name]:.1%}"
        before, after = (mean_error(errors) for errors in (self.before, self.after))
        if after > before + _SAME:
            return f"means of TTFT, TPOT and E2E are {after:.1%} off, with the preset {before:.1%}"
        return ""


def mean_error(errors: Mapping[str, float]) -> float:
    """Mean absolute error of the means of all latencies."""
    return float(np.mean([abs(error) for name, error in errors.items() if name.endswith("mean")]))


def fit_server(
    setup: Setup, measured: TokenTimes | Sequence[TokenTimes], skip_first_s: float = 0.0
) -> ServerFit:
    """Fit the corrections of a server; see the module.

    Args:
        setup: the server as it would be simulated; its own requests are ignored.
        measured: the client's measurement of the run, or of several of this server, with prompt lengths.
        skip_first_s: requests sent in this initial period are simulated, but do not count.

    Raises:
        InputError: too few requests, or no lengths of prompts.
    """
    if not isinstance(unbounded(setup.latency), Trained | Operators):
        fix = "drop --latency-model"
        raise InputError("only trained step times can be fitted to a server", key="--latency-model", fix=fix)
    given = [measured] if isinstance(measured, TokenTimes) else measured
    logs, notes = by_instance(given, setup.config.instances)
    run = ServerRuns.of([ServerRun.of(setup, _limited(one, notes), skip_first_s) for one in logs])
    if setup.scheduler.prefix_cache != "none":
        unsaid = "does not state which prompts share a prefix: all are computed in full"
        notes += [f"{one.source} {unsaid}" for one in given if one.same_prompt is None]
    first = run.times(run.runs[0].numbers_of(setup))
    found, led, free, scatter = explained(run, first)
    numbers = rounded(found.shrunk(led, scatter))
    # the last slopes determine the numbers without further simulations
    low, high = np.percentile(found.drawn(free, scatter), (5, 95), axis=0)
    low, high = np.minimum(low, numbers), np.maximum(high, numbers)
    notes += _notes(numbers, run.in_flight)
    values = [FittedServer.of(*map(float, row)) for row in zip(numbers, low, high, strict=True)]
    held_out = found.held_out(free, scatter=scatter)
    same = bool((numbers == found.prior).all())
    return ServerFit(
        source=", ".join(one.source for one in given),
        requests=sum(int(one.counted.sum()) for one in run.runs),
        numbers=dict(zip(NAMES, values, strict=True)),
        frontend_ms=frontend_ms(numbers, setup.config.frontend_ms),
        before=run.errors(first),
        after=run.errors(first if same else run.times(numbers)),
        held_out=sizes(run.misses(first) if same else held_out, found.weights),
        held_out_before=sizes(run.misses(first), found.weights),
        in_flight=run.in_flight,
        instances=max(len(logs) // len(given), 1),
        notes=tuple(notes),
    )


def _limited(one: TokenTimes, notes: list[str]) -> TokenTimes:
    """The first requests of a run, with a note if these are not all."""
    if len(one.request_id) <= MAX:
        return one
    notes.append(f"only the first {MAX:,} of {len(one.request_id):,} requests of {one.source} were used")
    return one.take(np.argsort(one.sent_s, kind="stable")[:MAX])


def _notes(numbers: Floats, in_flight: int) -> Iterator[str]:
    if not 1 / _FACTOR < numbers[0] < _FACTOR:
        yield (
            f"a factor of {numbers[0]:.2g} on step times compensates for other effects: "
            "the fit holds at the load of this run alone"
        )
    if numbers[2] > 0:
        yield f"the gap per sequence was seen up to {in_flight:,} requests in flight and stays there"
