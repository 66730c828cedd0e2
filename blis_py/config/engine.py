"""Engine presets: settings of a simulated engine, as defaults under those of the user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from blis_py.config.derived import RULES, LaunchedEngine
from blis_py.config.layers import did_you_mean
from blis_py.config.models import DEFAULT_ENGINE
from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.files.opening import read_text
from blis_py.files.paths import expanded, is_file
from blis_py.files.yaml_files import load_mapping, mapping_of

_FORMS = ({"value", "source"}, {"rule", "source"})
"""Keys of a setting."""
_LIMITS = {"loop", "since", "until"}
"""Keys that limit a setting to a loop, or to releases from the first and to the last."""
LOOPS = ("synchronous", "asynchronous")
"""Loops of the scheduler, to one of which an entry may be limited with the key `loop`."""
_HAS_NO_MEANING_ELSEWHERE = {"scheduler.late_length_stops": "asynchronous"}
"""Settings of one loop by themselves."""
_RELEASE = re.compile(r"([a-z]+)-(\d+\.\d+(?:\.\d+)?)(?:rc(\d+))?(?:\.\w+)*", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)*", re.ASCII)
Release = tuple[int, ...]


class EnginePreset(NamedTuple):
    """An engine preset.

    Attributes:
        title: display name of the engine.
        settings: value by configuration key.
        rules: names of the rules by which the engine derives others, by configuration key.
        sources: source of each value.
        loops: the loop of the scheduler to which a value is limited, by configuration key.
        releases: first and last release that it holds for; empty if it does not say.
        not_priced: what of a single release the preset leaves out.
        release: the release that the name is of, else the newest of those compared; empty if there is none.
        not_compared: a note if batches were not compared with those of the release's own scheduler.
        candidate: number of the release candidate that the name is of; None if it is of none.
    """

    file: Path
    title: str
    settings: dict[str, Any]
    rules: dict[str, str]
    sources: dict[str, str]
    loops: dict[str, str] = {}  # noqa: RUF012 a NamedTuple's default, never changed
    releases: tuple[str, ...] = ()
    not_priced: str = ""
    release: Release = ()
    not_compared: str = ""
    candidate: int | None = None

    def on(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings by configuration key, under those that a user set."""
        own = dict(self.settings)
        for key, name in self.rules.items():
            server = LaunchedEngine({**own, **settings}, self.release, self.candidate)
            own[key] = RULES[name].value(server)
        return own

    def applies(self, key: str, asynchronous: bool) -> bool:
        """Whether a setting applies to that loop of the scheduler."""
        loop = LOOPS[asynchronous]
        return ({**_HAS_NO_MEANING_ELSEWHERE, **self.loops}).get(key, loop) == loop


def names() -> list[str]:
    """The bundled presets."""
    return sorted(path.stem for path in (root("profiles") / "engines").glob("*.yaml"))


def load_engine(name: str) -> EnginePreset:
    """A preset by its name or that of a release (`vllm-0.12`, `sglang-0.5.14`), or from a file like the
    bundled ones.

    Raises:
        InputError: no such preset, an unknown key, or a value without a source.
    """
    preset = _preset_of(name)
    path = root("profiles") / "engines" / f"{preset}.yaml"
    is_bundled = preset in names()
    if not is_bundled:
        path = expanded(name, key="--engine")
        if not is_file(path):
            raise InputError("no such engine", key="--engine", value=name, fix=did_you_mean(name, names()))
    return _read(path, read_text(path), name if is_bundled else "")


@lru_cache(maxsize=64)
def _read(path: Path, text: str, bundled_as: str) -> EnginePreset:
    """The preset in a text, and the name of a bundled one; a study loads the same one three times a run."""
    values = mapping_of(text, path)
    title, entries = values.pop("title", None), values.pop("settings", None)
    releases = tuple(map(str, values.pop("releases", ())))
    not_priced = dict(values.pop("not_priced", {}))
    compared = tuple(map(str, values.pop("compared", ())))
    if values or not isinstance(title, str) or not isinstance(entries, dict):
        problem = "must have the keys title and settings, may have releases, compared and not_priced"
        raise InputError(problem, file=path, fix="drop all others")
    for key, entry in entries.items():
        _check(path, str(key), entry)
    named = _RELEASE.fullmatch(bundled_as)
    release = _release(named[2]) if named else _release(compared[-1]) if compared else ()
    holding = {str(key): entry for key, entry in entries.items() if _holds(entry, release)}
    forms: dict[str, dict[str, Any]] = {
        form: {key: entry[form] for key, entry in holding.items() if form in entry}
        for form in ("value", "rule", "source", "loop")
    }
    sources = {key: str(source) for key, source in forms["source"].items()}
    if named:
        title = f"{title.split()[0]} {bundled_as.partition('-')[2]}"
    left_out = not_priced.get(".".join(map(str, release[:2])), "")
    return EnginePreset(
        path,
        title,
        forms["value"],
        forms["rule"],
        sources,
        forms["loop"],
        releases,
        left_out,
        release,
        _not_compared(title, release, compared),
        int(named[3]) if named and named[3] else None,
    )


def _holds(entry: Mapping[str, Any], release: Release) -> bool:
    """Whether an entry is of a release; without one it is of the newest."""
    since, until = (_release(str(entry[key])) if key in entry else () for key in ("since", "until"))
    if not release:
        return not until
    return release >= since[: len(release)] and (not until or release[: len(until)] <= until)


def _not_compared(title: str, release: Release, compared: Sequence[str]) -> str:
    """A note on a release that is not among those compared; empty if it is, or none were."""
    known = [_release(each) for each in compared]
    if not known or any(release[: len(each)] == each for each in known):
        return ""
    text = f"batches of {title} were not compared with those of its own scheduler"
    if release > known[-1]:
        return f"{text}: it is simulated as {title.split()[0]} {compared[-1]}, the newest that was"
    return f"{text}; those of {', '.join(compared)} were"


def _check(path: Path, key: str, entry: Any) -> None:
    if not isinstance(entry, dict) or entry.keys() - _LIMITS not in _FORMS:
        fix = "write {value: …, source: …}, or {rule: …, source: …} where the engine derives it"
        raise InputError("does not say a value and where it is from", file=path, key=key, fix=fix)
    if entry.get("loop", LOOPS[0]) not in LOOPS:
        problem, fix = "no such loop of the scheduler", f"use {' or '.join(LOOPS)}, or drop it"
        raise InputError(problem, file=path, key=f"{key}.loop", value=entry["loop"], fix=fix)
    for limit in ("since", "until"):
        if not _NUMBER.fullmatch(str(entry.get(limit, "0"))):
            raise InputError(
                "is no release", file=path, key=f"{key}.{limit}", value=entry[limit], fix='write "0.24"'
            )
    if "rule" in entry and entry["rule"] not in RULES:
        fix = did_you_mean(str(entry["rule"]), RULES)
        raise InputError("no such rule", file=path, key=key, value=entry["rule"], fix=fix)


def _preset_of(name: str) -> str:
    """The preset of a release; of anything else, its name."""
    named = _RELEASE.fullmatch(name)
    if named is None or name in names():
        return name
    release = _release(named[2])
    for preset in names():
        if preset.partition("-")[0] == named[1] and _is_among(release, _releases_of(preset)):
            return preset
    return named[1] if _is_newer(release, named[1]) else name


def _is_newer(release: Release, engine: str) -> bool:
    """Whether a release is newer than those of an engine's newest preset, which says what was compared."""
    if engine not in names() or not _values_of(engine).get("compared"):
        return False
    last = _release(_releases_of(engine)[1])
    return release[: len(last)] > last


def _is_among(release: Release, first_last: tuple[str, ...]) -> bool:
    """Whether a release is from the first to the last, as far as both tell numbers."""
    if not first_last:
        return False
    first, last = map(_release, first_last)
    return first[: len(release)] <= release[: len(first)] and release[: len(last)] <= last[: len(release)]


def _releases_of(preset: str) -> tuple[str, ...]:
    return tuple(map(str, _values_of(preset).get("releases", ())))


@cache
def _values_of(preset: str) -> Mapping[str, Any]:
    return load_mapping(root("profiles") / "engines" / f"{preset}.yaml")


def _release(text: str) -> Release:
    return tuple(map(int, text.split(".")))


def usual_settings() -> dict[str, Any]:
    """Settings of the default engine on the default GPU, by configuration key."""
    return load_engine(DEFAULT_ENGINE).on({})
