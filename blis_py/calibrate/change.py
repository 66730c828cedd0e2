"""A change of settings that an autopsy advises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blis_py.config.loader import load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError

_GAPS = {"gap_us": 0, "gap_seq_us": 1}
_OF_STEPS = {"step_scale", *_GAPS}
"""Numbers of `trained` alone."""
_FRONTS = {"frontend_ms": 0, "frontend_seq_ms": 2}


@dataclass(frozen=True)
class AdvisedChange:
    """A change of one number of a simulated server."""

    name: str
    """`step_scale`, `gap_us`, `gap_seq_us`, `frontend_ms`, `frontend_seq_ms` or `async_scheduling`."""
    amount: float
    """Difference, of a factor from 1; 1 or 0 switches asynchronous scheduling on or off."""

    def on(self, config: RunConfig, share: float = 1.0) -> RunConfig | None:
        """The configuration with a share of the change; None if it cannot be changed like that."""
        if self.name in _OF_STEPS and config.latency.model != "trained":
            return None
        key, value = self._setting(config, self.amount * share)
        try:
            return load_config(overrides={key: value}, base=config)
        except InputError:
            return None

    def _setting(self, config: RunConfig, amount: float) -> tuple[str, Any]:
        """Key and value of the changed setting."""
        if self.name == "async_scheduling":
            return "scheduler.async_scheduling", bool(self.amount)
        if self.name == "step_scale":
            return "latency.step_scale", config.latency.step_scale * (1 + amount)
        if self.name in _GAPS:
            gaps = _raised(config.latency.step_gap_us, 2, _GAPS[self.name], amount)
            return "latency.step_gap_us", gaps
        return "frontend_ms", _raised(config.frontend_ms or (), 4, _FRONTS[self.name], amount)

    def words(self, share: float = 1.0) -> str:
        """The change in the imperative."""
        amount = self.amount * share
        if self.name == "async_scheduling":
            flag = "--async-scheduling" if amount else "--no-async-scheduling"
            return f"{flag}, if the server is of that kind"
        if self.name == "step_scale":
            return f"multiply latency.step_scale by {1 + amount:.3f}, or `blis profile fit`"
        if self.name == "gap_us":
            return f"add {amount:.0f} to latency.step_gap_us"
        if self.name == "gap_seq_us":
            return f"add {amount:.1f} to the second number of latency.step_gap_us"
        if self.name == "frontend_seq_ms":
            cpu = "a server's front end short of CPU needs more cores or API servers"
            return f"add {amount:.3g} to the third number of --frontend-ms; {cpu}"
        if amount < 0:
            return f"lower --frontend-ms by {-amount:.1f} ms, at most to 0; the rest is in the step times"
        return f"add {amount:.1f} ms to --frontend-ms"


def _raised(numbers: tuple[float, ...], count: int, index: int, amount: float) -> list[float]:
    """Numbers, at least so many, with one of them raised, but not below 0."""
    raised = [*numbers, *[0.0] * (count - len(numbers))]
    raised[index] = max(raised[index] + amount, 0.0)
    return raised
