"""Display of a result: a short table, HTML in a notebook, and figures by name."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from blis_py.calibrate.token_times import TokenTimes
    from blis_py.figures.run import RunView
    from blis_py.report._explore import Exploration
    from blis_py.report._plots import Plots

_WIDTH = 100


class ShownResult(ABC):
    """Base of results that display themselves; subclasses supply the tables."""

    @property
    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The configuration as plain data: the content of `config.yaml`."""

    @property
    @abstractmethod
    def requests(self) -> pd.DataFrame:
        """One row per request, in order of arrival."""

    @property
    @abstractmethod
    def steps(self) -> pd.DataFrame:
        """One row per run of identical steps of an instance."""

    @cached_property
    @abstractmethod
    def view(self) -> RunView:
        """Data behind the figures."""

    @abstractmethod
    def token_times(self) -> TokenTimes:
        """First and last token of every request, to be compared with those of a measured run."""

    @property
    def plot(self) -> Plots:
        """Figures: `result.plot.ttft()`, `result.plot.timeline()`, …; `result.plot()` is the overview."""
        from blis_py.report._plots import Plots

        return Plots(self)

    def explore(self, *, open_browser: bool = False) -> Exploration:
        """The interactive page (`blis ui`) of this configuration: in a notebook cell, or at its `link`.

        Args:
            open_browser: open the link in a browser as well.
        """
        from blis_py.report._explore import Exploration

        return Exploration(self.settings, open_browser=open_browser)

    def __repr__(self) -> str:
        from blis_py.figures.facts import foot
        from blis_py.report.table import print_short

        text = io.StringIO()
        print_short(self.summary, text, _WIDTH)
        lines = (line.rstrip() for line in text.getvalue().rstrip().splitlines())
        return "\n".join([f"{type(self).__name__}: {foot(self.settings)}", *lines])

    def _repr_html_(self) -> str:
        from blis_py.figures.facts import foot
        from blis_py.report.html import summary_html

        return summary_html(self.summary, foot(self.settings))
