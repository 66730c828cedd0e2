"""Samples on disk, round by round, so that a measurement that was broken off goes on where it stopped."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.calibrate.samples import StepSamples, joined, read_samples, write_samples
from blis_py.errors import InputError

SAMPLES = "samples.csv.gz"


class Store:
    """The file of samples of one profile. What is in it is kept; only whole rounds are added.

    Args:
        folder: made if need be.
        meta: where and what is being measured; its `settings` must be those of the file, if there is one.

    Raises:
        InputError: the file is of another measurement, or damaged.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.path = folder / SAMPLES
        self._meta = meta
        self.samples = joined([], {**meta, "rounds": 0})
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "cannot be made", file=folder, value=error.strerror, fix="choose --out"
            ) from None
        if self.path.exists():
            found = read_samples(self.path)
            _check(self.path, found.meta.get("settings", {}), meta["settings"])
            self.samples = found

    @property
    def rounds(self) -> int:
        """Rounds measured so far."""
        return int(self.samples.meta["rounds"])

    def add(self, parts: list[StepSamples]) -> None:
        """One more round; the file is replaced as a whole."""
        self.samples = samples = self._told(joined([self.samples, *parts]), self.rounds + 1)
        half_written = self.path.with_name(f"unfinished-{SAMPLES}")
        write_samples(samples, half_written)
        os.replace(half_written, self.path)

    def _told(self, samples: StepSamples, rounds: int) -> StepSamples:
        """With what is to be said of these samples."""
        counts = dict(sorted(Counter(samples["source"].tolist()).items()))
        summary = {"steps": len(samples), "shapes": _shapes(samples), **counts}
        meta = {**self._meta, "rounds": rounds, "counts": summary, "drift": round(drift(samples), 4)}
        return StepSamples(meta, samples.table)


def found_meta(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What the samples of a folder say of themselves; nothing where there are none.

    Raises:
        InputError: they were measured with other settings, or are damaged.
    """
    path = folder / SAMPLES
    if not path.exists():
        return {}
    meta = read_samples(path).meta
    _check(path, meta.get("settings", {}), settings)
    return meta


def _check(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, here in wanted.items():
        if found.get(key) != here:
            raise InputError(
                f"was measured with another setting than now ({here!r})",
                file=path,
                key=key,
                value=found.get(key),
                fix="use the same settings to go on, another --out, or remove the file",
            )


def _shapes(samples: StepSamples) -> int:
    return len(set(zip(samples["source"].tolist(), samples["shape"].tolist(), strict=True)))


def drift(samples: StepSamples) -> float:
    """How far the sentinel moved: the largest deviation of its medians over thirds of the measurement from
    its median over all of it, as a share of that. 0 where it was measured less than three times.
    """
    rows = samples.where((samples["source"] == "sentinel") & (samples["shape"] == 0))
    if len(rows) < 3:
        return 0.0
    totals = rows["total_ns"][np.argsort(rows["repetition"], kind="stable")]
    thirds = [float(np.median(third)) for third in np.array_split(totals, 3)]
    middle = float(np.median(totals))
    return max(abs(third - middle) for third in thirds) / middle
