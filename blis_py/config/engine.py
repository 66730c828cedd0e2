"""Engine presets: whose engine is simulated, as settings under everything that a user gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from blis_py.config.layers import did_you_mean
from blis_py.config.models import DEFAULT_ENGINE, RunConfig
from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.files.paths import expanded, is_file
from blis_py.files.yaml_files import load_mapping
from blis_py.latency.hardware import load_gpu

LARGE_GPU_BYTES = 70 << 30
"""From here on vLLM's defaults are those of large GPUs, but for A100."""

_KEYS = {"value", "small_gpu", "source"}


class Engine(NamedTuple):
    """A preset.

    Attributes:
        title: what reports call the engine.
        settings: value by configuration key, on a large GPU.
        small_gpu: the values that are others on a small one.
        sources: where each value is from.
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


def load_engine(name: str) -> Engine:
    """A preset by its name, or from a file like the bundled ones.

    Raises:
        InputError: there is none, a key is unknown, or a value does not say where it is from.
    """
    path = root("profiles") / "engines" / f"{name}.yaml"
    if name not in names():
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
    return Engine(path, title, settings, small, sources)


def usual_settings() -> dict[str, Any]:
    """What the default engine sets on the default GPU, by configuration key."""
    return load_engine(DEFAULT_ENGINE).on(RunConfig.gpu)


def _is_large(gpu: str) -> bool:
    try:
        spec = load_gpu(gpu)
    except InputError:
        return False  # a device without a datasheet; a wrong name is told where it is used
    return spec.memory_bytes >= LARGE_GPU_BYTES and "a100" not in spec.name.lower()
