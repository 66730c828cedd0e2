"""The Python interface: build, run, results; also the basis of the command line.

Keyword arguments are the flags of `blis run` (`num_instances=4`, `scheduler="priority-fcfs"`), sections
of the configuration as mappings (`latency={"model": "linear"}`), or both.
"""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.config.layers import did_you_mean
from blis_py.config.loader import load_config
from blis_py.config.models import NAMES, RunConfig
from blis_py.errors import InputError
from blis_py.report.notebook import CellProgress, in_notebook
from blis_py.result import Result
from blis_py.setup.setup import Progress, Setup

if TYPE_CHECKING:
    from blis_py.cluster.recording.observer import Observer

_LISTS = ("slo", "goodput")
"""Settings that are lists of short texts and may be given as one text: `slo="ttft.p99=500ms
tpot.p99=50ms"`."""


class Simulation(Setup):
    """A resolved configuration, ready to `run`."""

    def run(
        self,
        *,
        record_steps: bool = True,
        progress: Progress | bool | None = None,
        observer: Observer | None = None,
    ) -> Result:
        """Simulate until every request has ended, or until the horizon.

        Args:
            record_steps: keep the table of steps; without it `Result.steps` is not available.
            progress: called from time to time with (ended, all) requests. None = a bar in a notebook
                cell that takes longer than a second; False = none.
            observer: observer of every step.
        """
        if progress is True or (progress is None and in_notebook()):
            with CellProgress() as bar:
                record, notes = self.simulate(record_steps, bar, observer)
        else:
            record, notes = self.simulate(record_steps, progress or None, observer)
        return Result(record, self, (*self.notes, *notes))


def build(config: RunConfig | str | Path | None = None, /, **settings: Any) -> Simulation:
    """Resolve a configuration: model, GPU, KV capacity, latency model, requests.

    Args:
        config: a `RunConfig`, or the path of a YAML file; the `settings` are laid over it.
        settings: what the flags of `blis run` are called, with underscores.

    Raises:
        InputError: something unknown, contradictory, or impossible (a model that does not fit).
    """
    return Simulation.of(configure(config, **settings))


def run(config: RunConfig | str | Path | None = None, /, **settings: Any) -> Result:
    """Simulate a run: `build(...).run()`.

    Args:
        config: a `RunConfig`, or the path of a YAML file; the `settings` are laid over it.
        settings: what the flags of `blis run` are called, with underscores. `trace` may be a data frame with
            the columns `arrival_s`, `input_tokens` and `output_tokens`, or others named by `columns`.

    Returns:
        A result with `summary`, `requests`, `steps`, `plot` and `save`.

    Raises:
        InputError: something unknown, contradictory, or impossible (a model that does not fit).
    """
    return build(config, **settings).run()


def replay(trace: str | Path, **settings: Any) -> Result:
    """Simulate the requests of a trace, at their recorded times: `run(trace=...)`.

    Args:
        trace: a file in any format of recorded traffic, as `blis replay --trace` takes it.
        settings: what the flags of `blis replay` are called, with underscores.
    """
    return run(trace=str(trace), **settings)


def configure(config: RunConfig | str | Path | None = None, /, **settings: Any) -> RunConfig:
    """The configuration that `settings` laid over `config` make.

    Raises:
        InputError: an unknown setting, or a value that does not fit.
    """
    overrides = []
    for name, value in settings.items():
        if name not in NAMES:
            raise InputError("unknown setting", key=name, fix=did_you_mean(name, NAMES))
        overrides.append((name, NAMES[name], meant(name, value)))
    if isinstance(config, RunConfig):
        return load_config(overrides=overrides, base=config) if overrides else config
    return load_config(config, overrides)


def meant(name: str, value: Any) -> Any:
    """A path as text, a data frame as a file; targets in one text, as on the command line."""
    if name == "trace" and hasattr(value, "to_csv"):
        return _frame_file(value)
    if isinstance(value, Path):
        return str(value)
    return value.replace(",", " ").split() if name in _LISTS and isinstance(value, str) else value


def _frame_file(frame: Any) -> str:
    """A data frame as a CSV, in a folder named by its content that is removed at the end of the process."""
    text = frame.to_csv(index=False)
    path = _frames() / sha256(text.encode()).hexdigest()[:16] / "DataFrame.csv"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(path)


@cache
def _frames() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="blis-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
