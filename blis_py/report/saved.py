"""A result read back from its folder: `blis.load("out/chat")`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blis_py.config.loader import load_config
from blis_py.config.models import RunConfig
from blis_py.core.bounds import MAX_INSTANCES
from blis_py.core.features import FEATURES, is_whole
from blis_py.core.kinds import KIND_FEATURES
from blis_py.errors import InputError
from blis_py.files.csv_files import header_of
from blis_py.files.json_files import load_object
from blis_py.files.packages import data_frame, extra
from blis_py.files.paths import exists, full_path, is_folder
from blis_py.files.yaml_files import load_mapping
from blis_py.metrics.distribution import Distribution
from blis_py.metrics.groups import Rows, rows_by_name
from blis_py.metrics.registry import METRICS, OWN_COLUMNS
from blis_py.metrics.slo import GoodputTargets, parse_class_targets, parse_goodput
from blis_py.outputs.complete import check_complete
from blis_py.report.shown import ShownResult
from blis_py.requests.table import Labels
from blis_py.traces.columns import Columns, read_columns
from blis_py.traces.itl import NAME as ITL
from blis_py.traces.itl import read_gaps
from blis_py.traces.kinds import TraceKind, fractions, integers, integers_or, labels, texts

if TYPE_CHECKING:
    import pandas as pd

    from blis_py.calibrate.token_times import TokenTimes
    from blis_py.figures.run import Columns as StepColumns
    from blis_py.figures.run import RunView

CONFIG, SUMMARY, TRACE = "config.yaml", "summary.json", "trace.csv"
REQUESTS, STEPS = "requests.csv", "steps.csv"
_GONE = (
    "record",
    "simulation",
    "vllm",
    "blis",
    "save",
    "fill",
    "visits",
    "intervals",
    "cross_check",
    "saturation",
)
"""Attributes of `Result` that its folder lacks."""
_LABELS = ("client", "tenant", "slo_class", "model", "outcome")
_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")
_ALSO_COUNTS = ("blocks", "denoise_rounds", "round_index")
_TIMES = ("arrival_s", "finish_s", *OWN_COLUMNS)
_OF_STEPS = ("instance", "start_ns", "end_ns", "steps", "waiting", "running", "kv_blocks", "preemptions")
_WHOLE_OF_STEPS = (*_OF_STEPS, *(name for name in (*FEATURES, *KIND_FEATURES) if is_whole(name)))
_ALSO_NAMES = ("rejected_because", "session_id")
_ALSO_TIMES = ("client_ttft_ms", "client_e2e_ms", "client_wait_ms", "gateway_queue_ms", "time_per_block_ms")


class SavedResult(ShownResult):
    """A result read from its files: `summary`, `requests`, `steps`, `config`, `notes`, `plot`.

    The raw columns (`record`), what is made of them (`vllm()`, `blis()`) and the resolved simulation are not
    written; ITL over all tokens only with `--record-itl`, and otherwise figures show each request's mean.
    To have them, run it again: `blis.run("out/chat/config.yaml")` gives the same result.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._summary = load_object(folder / SUMMARY)
        self._settings = load_mapping(folder / CONFIG)
        self._facts = _facts(self._summary, folder / SUMMARY)
        _check_targets(self._settings, folder / CONFIG)

    def __getattr__(self, name: str) -> Any:
        if name in _GONE:
            again = f"run it again with blis.run({str(self.folder / CONFIG)!r})"
            raise AttributeError(f"a saved result has no {name!r}, which its files do not hold; {again}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        return self._summary

    @property
    def settings(self) -> dict[str, Any]:
        """The content of `config.yaml`."""
        return self._settings

    @cached_property
    def config(self) -> RunConfig:
        """The configuration; files named in it must still exist."""
        return load_config(self.folder / CONFIG)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the reliability of the figures."""
        return self._facts.notes

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request, in order of arrival, as `Result.requests` has it."""
        with extra("frames", "a data frame"):
            import pandas as pd

        columns = self._request_columns
        frame = pd.DataFrame(
            {
                name: _pandas(columns[name]) if columns else pd.Series(dtype="float64")
                for name in self._request_names
            }
        )
        instance = frame["instance"].astype("Int32")
        frame["instance"] = instance.mask(instance < 0)
        return frame

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per run of identical steps of an instance."""
        return data_frame(self._step_columns())

    @cached_property
    def view(self) -> RunView:
        """Data behind the figures."""
        from blis_py.figures.run import RunView, limits_of, of_pools

        columns = self._request_columns
        empty: NDArray[np.float64] = np.zeros(0)
        get = columns.__getitem__ if columns else lambda name: empty
        outcome = np.array(columns.labels("outcome").to_list() if columns else [], dtype=object)
        return RunView(
            config=self._settings,
            classes=rows_by_name(columns.labels("slo_class") if columns else Labels.of([])),
            completed=(outcome == "completed") | (outcome == "length_capped"),
            arrival_s=get("arrival_s"),
            finish_s=get("finish_s"),
            output_tokens=np.asarray(get("output_tokens"), dtype=np.int64),
            latency_ms={
                each.column: get(each.column_key)
                for each in METRICS.values()
                if each.column_key in self._request_names
            },
            instances=self._instances(),
            end_s=self._facts.simulated_s,
            gaps=self._gaps if columns and exists(self.folder / ITL) else None,
            limits=limits_of(self._settings, _targets(self._settings)),
            **of_pools(self._summary),
        )

    def token_times(self) -> TokenTimes:
        """First and last token of every completed request, in µs, as the trace has them."""
        from blis_py.calibrate.read_times import read_token_times

        return read_token_times(self.folder)

    @cached_property
    def _request_columns(self) -> Columns | None:
        """Request columns; `None` without requests."""
        if not self._facts.requests:
            return None
        kinds = _request_kinds()
        registered = {each.column_key for each in METRICS.values()}
        others = [
            name
            for name in self._request_names
            if name not in kinds and (name.endswith("_ms") or name in registered)
        ]
        kinds |= {name: fractions() for name in others}  # of metrics from outside of the package
        optional = (*_ALSO_COUNTS, *_ALSO_NAMES, *_ALSO_TIMES)
        columns = read_columns(self.folder / REQUESTS, kinds, optional=optional)
        instance = columns["instance"]
        columns.refuse(
            (instance < -1) | (instance >= MAX_INSTANCES), "no such instance", "instance", instance
        )
        return columns

    @property
    def _request_names(self) -> list[str]:
        return header_of(self.folder / REQUESTS)

    def _step_columns(self) -> dict[str, NDArray[Any]]:
        """
        Raises:
            InputError: the run did not record its steps.
        """
        path = self.folder / STEPS
        if not exists(path):
            fix = "save a run that has recorded its steps"
            raise InputError("this result has no table of steps", file=path, fix=fix)
        names = header_of(path)
        if not self._facts.steps:
            return {name: np.zeros(0, dtype=np.int64) for name in names}
        if "" in names:
            raise InputError("a column has no name", file=path, fix="save the run again")
        needed = (*names, *(name for name in _OF_STEPS if name not in names))
        kinds = {name: integers(-1) if name in _WHOLE_OF_STEPS else fractions() for name in needed}
        columns = read_columns(path, kinds)
        return {name: columns[name] for name in names}

    def _instances(self) -> list[Any]:
        from blis_py.figures.run import InstanceView

        stated = zip(self._facts.kv_blocks, self._facts.pools, strict=True)
        if not exists(self.folder / STEPS):
            return [InstanceView(count, None, pool) for count, pool in stated]
        columns = self._step_columns()
        return [InstanceView(count, _of(columns, index), pool) for index, (count, pool) in enumerate(stated)]

    @cached_property
    def _token_gaps(self) -> Any:
        numbers = read_columns(self.folder / TRACE, {"request_id": integers()})["request_id"]
        return read_gaps(self.folder / ITL, numbers)

    def _gaps(self, rows: Rows) -> Distribution:
        return Distribution.of(self._token_gaps.take(rows).values * 1e9)


def load(folder: str | Path) -> SavedResult:
    """A result from the folder that `--out` or `Result.save` wrote.

    It displays itself, has its summary, tables and configuration, and draws all its figures; see
    `SavedResult` for what the files lack.

    Raises:
        InputError: no such folder, no simulation result in it, or an incomplete one.
    """
    path = full_path(str(folder))
    fix = "name the folder that --out or Result.save wrote"
    if not is_folder(path):
        raise InputError("no such folder", file=path, fix=fix)
    check_complete(path)
    missing = [name for name in (CONFIG, SUMMARY, REQUESTS) if not exists(path / name)]
    if missing:
        measured = exists(path / "run.yaml")
        problem = "is a measured run" if measured else f"holds no result: there is no {missing[0]}"
        fix = "predict it, and compare the two with blis calibrate" if measured else fix
        raise InputError(problem, file=path, fix=fix)
    return SavedResult(path)


@dataclass(frozen=True)
class _Facts:
    """The entries of a summary that are used here."""

    requests: int
    steps: int
    simulated_s: float
    kv_blocks: tuple[int, ...]
    pools: tuple[str, ...]
    notes: tuple[str, ...]


def _facts(summary: dict[str, Any], path: Path) -> _Facts:
    try:
        json.dumps(summary, allow_nan=False)  # NaN would break every output
        return _Facts(
            requests=int(summary["cluster"]["requests"]["injected"]),
            steps=int(summary["cluster"]["steps"]),
            simulated_s=float(summary["window"]["simulated_s"]),
            kv_blocks=tuple(int(each["kv_blocks"]) for each in summary["instances"]),
            pools=tuple(str(each.get("pool", "")) for each in summary["instances"]),
            notes=tuple(str(note) for note in summary["notes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"is not a summary of a run: {type(error).__name__} {error}"
        raise InputError(problem, file=path, fix="save the run again") from None


def _request_kinds() -> dict[str, TraceKind]:
    return {
        **{name: texts() for name in ("request_id", "session_id")},
        **{name: labels() for name in (*_LABELS, "rejected_because")},
        "instance": integers_or(-1),
        **{name: integers() for name in (*_COUNTS, *_ALSO_COUNTS)},
        **{name: fractions() for name in (*_TIMES, *_ALSO_TIMES)},
    }


def _pandas(column: Any) -> Any:
    import pandas as pd

    if isinstance(column, Labels):
        return pd.Categorical.from_codes(column.codes, categories=pd.Index(column.names))
    return column


def _of(columns: dict[str, NDArray[Any]], instance: int) -> StepColumns:
    own = columns["instance"] == instance
    return {name: column[own] for name, column in columns.items() if name != "instance"}


def _check_targets(settings: dict[str, Any], file: Path) -> None:
    """Check that the targets are texts, as in a configuration."""
    for key, kind, what in (
        ("slo", list, "a list of texts"),
        ("goodput", list, "a list of texts"),
        ("goodput_by_class", dict, "texts by name"),
    ):
        given = settings.get(key)
        texts = given.values() if isinstance(given, dict) else given or ()
        if given is not None and not (isinstance(given, kind) and all(isinstance(t, str) for t in texts)):
            raise InputError(f"must be {what}", file=file, key=key, value=given)


def _targets(settings: dict[str, Any]) -> GoodputTargets:
    targets = parse_goodput(settings.get("goodput") or ())
    for metric, text in (settings.get("goodput_by_class") or {}).items():
        targets = targets.merged(parse_class_targets(metric, text))
    return targets
