"""Engine presets: settings of a simulated engine, as defaults under those of the user."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from blis_py.config.layers import did_you_mean
from blis_py.config.models import DEFAULT_ENGINE, RunConfig
from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.files.opening import read_text
from blis_py.files.paths import expanded, is_file
from blis_py.files.yaml_files import load_mapping, mapping_of
from blis_py.hardware.gpu import load_gpu

LARGE_GPU_BYTES = 70 << 30
"""GPU memory in bytes from which vLLM applies the defaults of large GPUs, except for A100."""

_KEYS = {"value", "small_gpu", "source"}
_RELEASE = re.compile(r"([a-z]+)-(\d+)\.(\d+)(?:\.\w+)*")
Release = tuple[int, int]


class EnginePreset(NamedTuple):
    """An engine preset.

    Attributes:
        title: display name of the engine.
        settings: value by configuration key, on a large GPU.
        small_gpu: values that differ on a small GPU.
        sources: source of each value.
        releases: first and last release that behave alike in everything that is simulated; empty if it does
            not say.
        not_priced: what of a single release the preset leaves out.
    """

    file: Path
    title: str
    settings: dict[str, Any]
    small_gpu: dict[str, Any]
    sources: dict[str, str]
    releases: tuple[str, ...] = ()
    not_priced: str = ""

    def on(self, gpu: str) -> dict[str, Any]:
        """Settings by configuration key, on this GPU."""
        if not self.small_gpu or _is_large(gpu):
            return dict(self.settings)
        return self.settings | self.small_gpu


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
    if values or not isinstance(title, str) or not isinstance(entries, dict):
        problem = "must have the keys title and settings, may have releases and not_priced, and no others"
        raise InputError(problem, file=path)
    settings: dict[str, Any] = {}
    small: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, entry in entries.items():
        if not isinstance(entry, dict) or not {"value", "source"} <= entry.keys() <= _KEYS:
            fix = "write {value: …, source: …}, and small_gpu where it is another there"
            raise InputError("does not say a value and where it is from", file=path, key=str(key), fix=fix)
        settings[str(key)], sources[str(key)] = entry["value"], str(entry["source"])
        if "small_gpu" in entry:
            small[str(key)] = entry["small_gpu"]
    named = _RELEASE.fullmatch(bundled_as)
    if named is not None:
        title = f"{title.split()[0]} {bundled_as.partition('-')[2]}"
    left_out = "" if named is None else not_priced.get(f"{named[2]}.{named[3]}", "")
    return EnginePreset(path, title, settings, small, sources, releases, left_out)


def _preset_of(name: str) -> str:
    """The preset of a release; of anything else, its name."""
    named = _RELEASE.fullmatch(name)
    if named is None or name in names():
        return name
    release = int(named[2]), int(named[3])
    for preset in names():
        first_last = [_release(text) for text in _releases_of(preset)]
        if preset.partition("-")[0] == named[1] and first_last and first_last[0] <= release <= first_last[1]:
            return preset
    return name


@cache
def _releases_of(preset: str) -> tuple[str, ...]:
    path = root("profiles") / "engines" / f"{preset}.yaml"
    return tuple(map(str, load_mapping(path).get("releases", ())))


def _release(text: str) -> Release:
    major, minor = text.split(".")
    return int(major), int(minor)


def usual_settings() -> dict[str, Any]:
    """Settings of the default engine on the default GPU, by configuration key."""
    return load_engine(DEFAULT_ENGINE).on(RunConfig.gpu)


def _is_large(gpu: str) -> bool:
    try:
        spec = load_gpu(gpu)
    except InputError:
        return False  # no datasheet; an unknown name is reported where it is used
    return spec.memory_bytes >= LARGE_GPU_BYTES and "a100" not in spec.name.lower()
