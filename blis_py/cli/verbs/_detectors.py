"""`--detectors` and what belongs to it: saturation detectors, after the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_py.cli.flags.flag import Flags
from blis_py.config.check import duration_ns
from blis_py.config.layers import did_you_mean
from blis_py.core.bounds import SECOND_NS
from blis_py.errors import InputError

if TYPE_CHECKING:
    from blis_py.metrics.detectors import DetectorSettings, Saturation
    from blis_py.metrics.record import RunRecord

_ALL = "all"
_BELONG = ("--saturation-config", "--saturation-report", "--saturation-final-window")
_SETTINGS = {
    "threshold": {"threshold_ms": ("threshold_ns", 10**6)},
    "backlog_drift": {"window_size_sec": ("window_ns", SECOND_NS)},
}
"""Sections of the file of settings: the key, and the setting here, in ns."""
_UNUSED = {
    *("min_windows", "peak_ratio", "peak_ratio_band", "confidence_ci", "warmup_windows", "tail_windows"),
    *("saturated_drain_ratio", "transient_drain_ratio"),
}
"""Keys of `backlog_drift` that BLIS reads and does not use."""
_FINAL_NS = 30 * SECOND_NS


class DetectorSelection(NamedTuple):
    """Selected detectors, with their settings."""

    names: tuple[str, ...]
    settings: DetectorSettings
    window_ns: int
    notes: tuple[str, ...] = ()

    def of(self, record: RunRecord) -> Saturation:
        """Their verdicts on a run."""
        from blis_py.metrics.detectors import detect, events_of

        return detect(events_of(record), self.names, self.settings, self.window_ns)


def requested(flags: Flags) -> DetectorSelection | None:
    """The detectors that the flags select; `None` = none.

    Raises:
        InputError: an unknown detector or setting, or settings of a detector that is not selected.
    """
    if "--detectors" not in flags:
        for name in _BELONG:
            if name in flags:
                raise InputError("needs detectors", key=name, fix="add --detectors all")
        return None
    names = _names(flags["--detectors"])
    in_ns, notes = _settings(flags.get("--saturation-config"), names)
    from blis_py.metrics.detectors import DetectorSettings

    window_ns = in_ns.get("window_ns", _FINAL_NS)
    if "--saturation-final-window" in flags:
        window_ns = duration_ns(flags["--saturation-final-window"], "--saturation-final-window")
    return DetectorSelection(names, DetectorSettings(**in_ns), window_ns, notes)


def _names(text: str) -> tuple[str, ...]:
    from blis_py.metrics.detectors import DETECTORS

    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if names == (_ALL,):
        return tuple(DETECTORS)
    for name in names:
        if name not in DETECTORS:
            fix = did_you_mean(name, (*DETECTORS, _ALL))
            raise InputError("unknown detector", key="--detectors", value=name, fix=fix)
    return names


def _settings(path: str | None, names: tuple[str, ...]) -> tuple[dict[str, int], tuple[str, ...]]:
    if path is None:
        return {}, ()
    from blis_py.files.yaml_files import load_mapping

    in_ns: dict[str, int] = {}
    notes: list[str] = []
    for section, values in load_mapping(Path(path)).items():
        if section not in _SETTINGS:
            raise InputError("unknown key", file=path, key=section, fix=did_you_mean(str(section), _SETTINGS))
        detector = str(section).replace("_", "-")
        if detector not in names:
            notes.append(f"{path}: {section} has no effect without --detectors {detector}")
        if not isinstance(values, Mapping):
            raise InputError("must be a section", file=path, key=section, value=values)
        for key, value in values.items():
            full = f"{section}.{key}"
            if section == "backlog_drift" and key in _UNUSED:
                notes.append(f"{path}: {full} has no effect, as in BLIS")
                continue
            if key not in _SETTINGS[section]:
                raise InputError(
                    "unknown key", file=path, key=full, fix=did_you_mean(str(key), _SETTINGS[section])
                )
            name, unit_ns = _SETTINGS[section][key]
            in_ns[name] = _positive_ns(value, unit_ns, path, full)
    return in_ns, tuple(notes)


def _positive_ns(value: Any, unit_ns: int, path: str, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value * unit_ns < 2**62:
        raise InputError("must be a number above 0", file=path, key=key, value=value)
    return max(round(value * unit_ns), 1)
