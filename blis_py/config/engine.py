"""Engine presets: settings of a simulated engine, as defaults under those of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from blis_py.config.layers import did_you_mean
from blis_py.config.models import DEFAULT_ENGINE, RunConfig
from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.files.paths import expanded, is_file
from blis_py.files.yaml_files import load_mapping
from blis_py.hardware.gpu import load_gpu

LARGE_GPU_BYTES = 70 << 30
"""GPU memory in bytes from which vLLM applies the defaults of large GPUs, except for A100."""

RELEASES = {"vllm-0.10": range(10, 14), "vllm-0.15": range(14, 34)}
"""Preset -> releases 0.N of vLLM that behave as it does: from 0.14 on batches are composed beside the running
one by default. Up to 0.33, the newest that was read, no other change of what is simulated is known."""

_KEYS = {"value", "small_gpu", "source"}


class EnginePreset(NamedTuple):
    """An engine preset.

    Attributes:
        title: display name of the engine.
        settings: value by configuration key, on a large GPU.
        small_gpu: values that differ on a small GPU.
        sources: source of each value.
    """

    file: Path
    title: str
    settings: dict[str, Any]
    small_gpu: dict[str, Any]
    sources: dict[str, str]

    def on(self, gpu: str) -> dict[str, Any]:
        """Settings by configuration key, on this GPU."""
        if not self.small_gpu or _is_large(gpu):
            return dict(self.settings)
        return self.settings | self.small_gpu


def names() -> list[str]:
    """The bundled presets."""
    return sorted(path.stem for path in (root("profiles") / "engines").glob("*.yaml"))


def load_engine(name: str) -> EnginePreset:
    """A preset by its name or a release of vLLM (`vllm-0.12`), or from a file like the bundled ones.

    Raises:
        InputError: no such preset, an unknown key, or a value without a source.
    """
    preset = _preset_of(name)
    path = root("profiles") / "engines" / f"{preset}.yaml"
    if preset not in names():
        path = expanded(name, key="--engine")
        if not is_file(path):
            raise InputError("no such engine", key="--engine", value=name, fix=did_you_mean(name, names()))
    values = load_mapping(path)
    title, entries = values.pop("title", None), values.pop("settings", None)
    if values or not isinstance(title, str) or not isinstance(entries, dict):
        raise InputError("must have the keys title and settings, and no others", file=path)
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
    if preset != name and preset in names():
        title = f"vLLM {name.removeprefix('vllm-')}"
    return EnginePreset(path, title, settings, small, sources)


def _preset_of(name: str) -> str:
    """The preset of a release of vLLM; of anything else, its name."""
    start, _, minor = name.partition("-0.")
    if start != "vllm" or not minor.isdecimal():
        return name
    return next((preset for preset, minors in RELEASES.items() if int(minor) in minors), name)


def usual_settings() -> dict[str, Any]:
    """Settings of the default engine on the default GPU, by configuration key."""
    return load_engine(DEFAULT_ENGINE).on(RunConfig.gpu)


def _is_large(gpu: str) -> bool:
    try:
        spec = load_gpu(gpu)
    except InputError:
        return False  # no datasheet; an unknown name is reported where it is used
    return spec.memory_bytes >= LARGE_GPU_BYTES and "a100" not in spec.name.lower()
