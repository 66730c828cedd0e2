"""Samples on disk, visit by visit, so that an interrupted measurement can be continued."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.errors import InputError
from blis_py.traces.samples import StepSamples, joined, read_samples, write_samples
from engine.profile._journal import ROUND, ProfileJournal, ProfileProgress, read_journal

SAMPLES, JOURNAL = "samples.csv.gz", "samples.journal.csv"


class ProfileStore:
    """The samples of one profile; append-only, in whole visits.

    New visits go to a journal, which `fold` merges into the sample file.

    Args:
        folder: created if necessary.
        meta: description of the measurement; its `settings` must equal those of existing samples.

    Raises:
        InputError: existing samples are of another measurement, or damaged.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.path = folder / SAMPLES
        self._journal = ProfileJournal(folder / JOURNAL)
        self._meta = meta
        self._parts = [joined([], {**meta, "rounds": 0, "visits": 0})]
        self.progress = ProfileProgress()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "cannot be made", file=folder, value=error.strerror, fix="choose --out"
            ) from None
        samples = recovered(folder)
        if samples is not None:
            _check(self.path, samples.meta.get("settings", {}), meta["settings"])
            self._parts, self.progress = [samples], ProfileProgress.recorded_in(samples.meta)
            self.fold()

    @property
    def samples(self) -> StepSamples:
        """All samples, with their metadata."""
        if len(self._parts) > 1:
            self._parts = [with_summary(joined(self._parts), self._meta, self.progress)]
        return self._parts[0]

    @property
    def rounds(self) -> int:
        """Number of complete rounds."""
        return self.progress.rounds

    def add(self, samples: StepSamples) -> None:
        """Append a visit; on disk when this returns."""
        self._journal.add(samples, self._parts[0].meta)
        self._parts.append(samples)
        self.progress = ProfileProgress(self.progress.rounds, self.progress.visits + 1)

    def end_round(self, samples: StepSamples) -> None:
        """Append the last visit of a round, which completes it."""
        self._journal.add(samples, self._parts[0].meta, ROUND)
        self._parts.append(samples)
        self.progress = ProfileProgress(self.progress.rounds + 1)

    def fold(self) -> None:
        """Merge the journal into the sample file."""
        if self._journal.path.exists():
            self._parts = [with_summary(joined(self._parts), self._meta, self.progress)]
            _replace(self.path, self._parts[0])
            self._journal.drop()


def recovered(folder: Path) -> StepSamples | None:
    """Samples of a folder, from file and journal; `None` if nothing was measured.

    Raises:
        InputError: one of them is damaged.
    """
    path = folder / SAMPLES
    whole = read_samples(path) if path.exists() else None
    journal = read_journal(folder / JOURNAL)
    if journal is None:
        return whole
    samples, progress = journal
    begun = ProfileProgress() if whole is None else ProfileProgress.recorded_in(whole.meta)
    if ProfileProgress.recorded_in(samples.meta) != begun:
        return whole  # already in the sample file
    parts = [samples] if whole is None else [whole, samples]
    return with_summary(joined(parts), samples.meta, progress)


def fold(folder: Path) -> Path | None:
    """Merge the journal of an interrupted measurement into its sample file; return the file, if any.

    Raises:
        InputError: one of them is damaged.
    """
    path, samples = folder / SAMPLES, recovered(folder)
    if samples is not None and (folder / JOURNAL).exists():
        _replace(path, samples)
        (folder / JOURNAL).unlink()
    return path if path.exists() else None


def with_summary(samples: StepSamples, meta: dict[str, Any], progress: ProfileProgress) -> StepSamples:
    """Samples with metadata on measurement and progress."""
    counts = dict(sorted(Counter(samples["source"].tolist()).items()))
    summary = {
        "rounds": progress.rounds,
        "visits": progress.visits,
        "counts": {"steps": len(samples), "shapes": _shapes(samples), **counts},
        "launch_bound": int(samples["launch_bound"].sum()),
        "drift": round(drift(samples), 4),
    }
    return StepSamples({**meta, **summary}, samples.table)


def recorded_meta(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Metadata of a folder's samples; empty without samples.

    Raises:
        InputError: samples measured with other settings, or damaged.
    """
    samples = recovered(folder)
    if samples is None:
        return {}
    _check(folder / SAMPLES, samples.meta.get("settings", {}), settings)
    return samples.meta


def _replace(path: Path, samples: StepSamples) -> None:
    half_written = path.with_name(f"unfinished-{SAMPLES}")
    write_samples(samples, half_written)
    os.replace(half_written, path)


def _check(path: Path, recorded: dict[str, Any], required: dict[str, Any]) -> None:
    for key, here in required.items():
        if recorded.get(key) != here:
            raise InputError(
                f"was measured with another setting than now ({here!r})",
                file=path,
                key=key,
                value=recorded.get(key),
                fix="use the same settings to go on, another --out, or remove the file",
            )


def _shapes(samples: StepSamples) -> int:
    return len(set(zip(samples["source"].tolist(), samples["shape"].tolist(), strict=True)))


def drift(samples: StepSamples) -> float:
    """Drift of the sentinel: the largest deviation of its medians over thirds of the measurement from its
    overall median, relative to that. 0 with fewer than three visits.
    """
    rows = samples.where((samples["source"] == "sentinel") & (samples["shape"] == 0))
    if len(rows) < 3:
        return 0.0
    totals = rows["total_ns"][np.argsort(rows["repetition"], kind="stable")]
    thirds = [float(np.median(third)) for third in np.array_split(totals, 3)]
    middle = float(np.median(totals))
    return max(abs(third - middle) for third in thirds) / middle
