"""Advice of a client's autopsy, tried: the run is simulated again with each change, and what does not reduce
the error is not advised.

Changes of step times are tried first, the largest part of TPOT first, each on top of those before; changes
before the first token then count for what is left of TTFT. An error in queues feeds on itself, so the amount
that slopes suggest may be too much: half and a quarter of it are tried, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from blis_py.calibrate.change import AdvisedChange
from blis_py.calibrate.client_autopsy import ClientAutopsy, client_autopsies
from blis_py.calibrate.compare import Calibration
from blis_py.calibrate.token_times import token_times
from blis_py.config.loader import load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.paths import is_file, is_folder
from blis_py.setup.setup import Setup

_AMOUNTS = (1.0, 0.5, 0.25)
_BETTER = 0.9
"""Share of the error that may be left for a change to be advised."""
_SMALL = 0.01
"""Error, as a share of what was measured, below which nothing is advised."""
MOST = 20_000
"""Requests of a run up to which advice is tried: more take too long."""
_ORDER = ("TPOT", "TTFT")


@dataclass(frozen=True)
class TriedServer:
    """The simulated server with the changes so far, and its mean latencies in s."""

    config: RunConfig
    means: dict[str, float]


def config_of(results: str | Path) -> RunConfig | None:
    """The configuration in the folder of a simulated run; None if there is none."""
    path = Path(results)
    file = (path if is_folder(path) else path.parent) / "config.yaml"
    return load_config(file) if is_file(file) else None


def client_causes(calibration: Calibration, results: str | Path) -> tuple[tuple[ClientAutopsy, ...], str]:
    """The autopsies of a comparison, with advice that was tried if that is possible, and else the reason.

    Args:
        results: the simulated run, whose folder has its configuration.
    """
    causes = client_autopsies(calibration.measured, calibration.predicted)
    if len(calibration.predicted.request_id) > MOST:
        return causes, f"more than {MOST:,} requests take too long"
    try:
        config = config_of(results)
        return (causes, f"{results} has no configuration") if config is None else (tried(causes, config), "")
    except InputError as error:
        return causes, str(error)


def tried(autopsies: Sequence[ClientAutopsy], config: RunConfig) -> tuple[ClientAutopsy, ...]:
    """The autopsies with advice that reduces the error, by the amount that does; and what it was tried to.

    Args:
        config: the configuration of the simulated run.
    """
    first = state = _simulated(config)
    found = {}
    for one in sorted(autopsies, key=lambda each: _ORDER.index(each.latency)):
        fixes = {}
        for part in sorted(one.parts, key=lambda each: -abs(each.share_s)):
            if part.change is not None:
                state, fixes[part.name] = _tried(part.change, one, state, first)
        parts = tuple(replace(part, fix=fixes.get(part.name, part.fix)) for part in one.parts)
        found[one.latency] = replace(one, parts=parts)
    return tuple(found[one.latency] for one in autopsies)


def _tried(
    change: AdvisedChange, one: ClientAutopsy, state: TriedServer, first: TriedServer
) -> tuple[TriedServer, str]:
    """The server with as much of a change as reduces the error most, and the advice; without if none does."""

    def error_s(now: TriedServer) -> float:
        return one.error_s + now.means[one.latency] - first.means[one.latency]

    if abs(error_s(state)) < _SMALL * one.measured_s:
        return state, ""
    changed = {amount: change.on(state.config, amount) for amount in _AMOUNTS}
    states = {
        amount: now
        for amount, config in changed.items()
        if config is not None and config != state.config and (now := _if_possible(config)) is not None
    }
    amount = min(states, key=lambda each: abs(error_s(states[each])), default=0.0)
    if not amount or abs(error_s(states[amount])) >= _BETTER * abs(error_s(state)):
        return state, ""
    left = error_s(states[amount]) / one.measured_s
    return states[amount], f"{change.words(amount)} (tried: {one.latency} is then {left:+.1%} off)"


def _if_possible(config: RunConfig) -> TriedServer | None:
    """The simulated server; None if its settings contradict each other."""
    try:
        return _simulated(config)
    except InputError:
        return None


def _simulated(config: RunConfig) -> TriedServer:
    record, _ = Setup.of(config).simulate(False, None, None)
    times = token_times(record, "tried")
    return TriedServer(config, {"TTFT": float(times.ttft_s.mean()), "TPOT": float(np.nanmean(times.tpot_s))})
