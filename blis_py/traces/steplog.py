"""The step log of an engine: one row per step, one row per request, as CSV or Parquet.

`steps.csv` has the steps, `steps.requests.csv` beside it the requests (the same with `.parquet`). Both
carry the same metadata: in CSV as JSON in a first line that begins with `#`, in Parquet in the file's own.
Lists of request numbers are separated by blanks in CSV. A missing `decode_ids` means the same as in the
previous step.

Where answers come in blocks, a step is a round, `decode_ids` are the requests whose blocks take
part, and there are further columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.bounds import MAX_TOKENS, check_count
from blis_py.core.features import SELDOM, StepFeatures, features_from, further_names, is_whole
from blis_py.core.kinds import IN_BLOCKS, named_in
from blis_py.errors import InputError
from blis_py.outputs.complete import check_complete
from blis_py.outputs.staging import Outputs
from blis_py.traces._steplog_files import format_of
from blis_py.traces.steplog_columns import BLOCK_FEATURES, FEATURE_KINDS, REQUEST_KINDS, STEP_KINDS, kinds_of

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepLog:
    """A recorded run.

    `steps` and `requests` map the names of `STEP_KINDS` and `REQUEST_KINDS` (and those of its kind of
    requests) to columns: lists, of equal length within each table. `meta` says what ran: `schema`, `clock`,
    `scheduler` (the settings of `SchedulerConfig`), and what else the engine reported.
    """

    meta: dict[str, Any]
    steps: dict[str, list[Any]]
    requests: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.steps["step"])

    @property
    def kind(self) -> str | None:
        """The kind of its requests; `None` = autoregressive."""
        return named_in(self.meta)

    def column(self, name: str) -> NDArray[Any]:
        """A numeric column of the steps, `[steps]`."""
        return np.array(self.steps[name], dtype=np.int64 if is_whole(name) else np.float64)

    def features(self, index: int) -> StepFeatures:
        """The features of one step, as its kind of requests has them."""
        names = (*FEATURE_KINDS, *further_names())
        if "batch" not in self.steps:
            values = self._values((*names, *SELDOM), index)
            if "constrained" not in self.requests:  # the requests of these rows are unknown
                values.pop("constrained_rows", None)
            return features_from(StepFeatures, values)
        values = self._values((*names, *BLOCK_FEATURES), index)
        return features_from(IN_BLOCKS.features, {**values, "begins_batch": self.begins_batch(index)})

    def _values(self, names: Iterable[str], index: int) -> dict[str, Any]:
        """Values of one step, for the columns present."""
        return {name: self.steps[name][index] for name in names if name in self.steps}

    def begins_batch(self, index: int) -> int:
        """Whether a round is the first of its batch: 1 or 0."""
        batch = self.steps["batch"]
        return int(index == 0 or batch[index] != batch[index - 1])


def write_step_log(log: StepLog, path: str | Path) -> None:
    """Write both files; the name must end in `.csv`, `.csv.gz` or `.parquet`."""
    path = Path(path)
    write = format_of(path)[1]
    decode_ids: list[Numbers] = log.steps["decode_ids"]
    changed = [i == 0 or ids != decode_ids[i - 1] for i, ids in enumerate(decode_ids)]
    stated = [ids if new else None for ids, new in zip(decode_ids, changed, strict=True)]
    with Outputs() as outputs:
        steps = {**log.steps, "decode_ids": stated}
        write(outputs.file(path), log.meta, steps, kinds_of(STEP_KINDS, log.steps))
        requests = outputs.file(_requests_path(path))
        write(requests, log.meta, log.requests, kinds_of(REQUEST_KINDS, log.requests))


def read_step_log(path: str | Path) -> StepLog:
    """
    Raises:
        InputError: not a step log, another schema, or damaged.
    """
    path = Path(path)
    check_complete(path)
    read = format_of(path)[0]
    meta, steps = read(path, STEP_KINDS)
    steps["decode_ids"] = list(_filled(steps["decode_ids"]))
    requests = read(_requests_path(path), REQUEST_KINDS)[1]
    for file, table in ((path, steps), (_requests_path(path), requests)):
        _check_lists(file, table)
    _check_ids(_requests_path(path), requests)
    _check_lengths(_requests_path(path), requests)
    return StepLog(meta, steps, requests)


def _filled(lists: Iterable[Numbers | None]) -> Iterator[Numbers]:
    latest: Numbers = ()
    for ids in lists:
        latest = latest if ids is None else ids
        yield latest


def _requests_path(path: Path) -> Path:
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}.requests{dot}{rest}")


def _check_lists(path: Path, table: dict[str, list[Any]]) -> None:
    for name, column in table.items():
        if any(value is None for value in column):
            raise InputError("a list is missing", file=path, key=name, fix="record it again")


def _check_ids(path: Path, requests: dict[str, list[Any]]) -> None:
    """Check that request numbers and names are unique."""
    for name in ("number", "id"):
        ids = set()
        for value in requests[name]:
            if value in ids:
                raise InputError(
                    "two requests have it", file=path, key=name, value=value, fix="record it again"
                )
            ids.add(value)


def _check_lengths(path: Path, requests: dict[str, list[Any]]) -> None:
    # where answers come in blocks, no prompt is needed
    least_prompt_tokens = 0 if "block_rounds" in requests else 1
    for name, least in (("prompt_tokens", least_prompt_tokens), ("output_tokens", 0), ("max_tokens", 0)):
        for value in requests[name]:
            check_count(value, least=least, most=MAX_TOKENS, key=name, file=path, fix="record it again")
