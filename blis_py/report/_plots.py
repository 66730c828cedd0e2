"""Figures of a result, by name: the completions of `result.plot.`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from blis_py.errors import InputError
from blis_py.metrics.registry import METRICS

if TYPE_CHECKING:
    from blis_py.calibrate.token_times import TokenTimes
    from blis_py.figures.run import RunView
    from blis_py.figures.style import Picture


class Drawable(Protocol):
    """The part of a result that figures need."""

    @property
    def view(self) -> RunView: ...

    @property
    def settings(self) -> dict[str, Any]: ...

    def token_times(self) -> TokenTimes: ...


class Plots:
    """Figures of one run. In a notebook they show themselves; `.save("x.svg")` writes one.

    Figures of several runs are in `blis_py.figures`: `throughput_latency`, `pareto`, `hit_rate`.
    """

    def __init__(self, result: Drawable) -> None:
        self._result = result

    def __call__(self) -> Picture:
        return self.overview()

    def overview(self) -> Picture:
        """The run at a glance: how long users wait, and how full the cluster is."""
        return self._draw("overview")

    def latency_cdf(self) -> Picture:
        """Distributions of TTFT, TPOT, ITL and E2E by SLO class."""
        return self._draw("latency_cdf")

    def ttft(self) -> Picture:
        """Distribution of the time to first token by SLO class."""
        return self._draw("ttft")

    def tpot(self) -> Picture:
        """Distribution of each request's mean time per output token."""
        return self._draw("tpot")

    def itl(self) -> Picture:
        """Distribution of the times between tokens."""
        return self._draw("itl")

    def e2e(self) -> Picture:
        """Distribution of the end-to-end latency."""
        return self._draw("e2e")

    def __getattr__(self, name: str) -> Callable[[], Picture]:
        """The distribution of a metric from outside of the package."""
        if name not in METRICS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(self._draw, name)

    def timeline(self) -> Picture:
        """Running and waiting requests, KV use, instances at work and preemptions over time."""
        return self._draw("timeline")

    def instances(self) -> Picture:
        """A map of every instance over time: running, waiting, KV use."""
        return self._draw("instances")

    def batch(self) -> Picture:
        """Prefill and decode tokens per second and per step over time."""
        return self._draw("batch")

    def pools(self) -> Picture:
        """Latencies of the visits to each pool, and mean waits of hand-overs by cause."""
        return self._draw("pools")

    def predicted_measured(self, measured: str | Path) -> Picture:
        """Latencies of every request against those of a measured run.

        Args:
            measured: its folder, or a TraceV2 CSV with token times.

        Raises:
            InputError: not a measured run, or no request completed in both.
        """
        from blis_py.calibrate.compare import calibrate
        from blis_py.calibrate.read_times import read_token_times
        from blis_py.figures import predicted_measured

        compared = calibrate(read_token_times(measured), self._result.token_times())
        return predicted_measured(compared, self._result.settings)

    def save(
        self, folder: str | Path, names: Iterable[str] = (), kinds: Iterable[str] = ("png",)
    ) -> list[Path]:
        """Write figures, by default all that this run has data for, as `png`, `svg` or `pdf`.

        Raises:
            InputError: an unknown figure, or one that this run has no data for.
        """
        from blis_py.figures.saving import figures, save_plots

        for name in names:
            _check(name)
        written = save_plots(self._result.view, folder, names or figures(), kinds)
        if not written:
            raise _nothing_for(", ".join(names))
        return written

    def _draw(self, name: str) -> Picture:
        from blis_py.figures.saving import figures

        picture = figures()[name](self._result.view)
        if picture is None:
            raise _nothing_for(name)
        return picture


def _check(name: str) -> None:
    from blis_py.config.layers import did_you_mean
    from blis_py.figures.saving import figures

    if name not in figures():
        raise InputError("no such figure", key="figure", value=name, fix=did_you_mean(name, figures()))


def _nothing_for(name: str) -> InputError:
    """No data for a figure, or for several."""
    if name == "pools":
        fix = "run it with --prefill-instances and --decode-instances, or with pools"
        return InputError("this run has one pool", key=f"figure {name}", fix=fix)
    fix = "run it with record_steps=True, or with --out on the command line"
    return InputError("this run did not record its steps", key=f"figure {name}", fix=fix)
