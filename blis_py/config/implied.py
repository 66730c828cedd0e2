"""Settings that were not set, and follow from others: from the engine's preset, from a measured profile.

They lie under everything that is set. A configuration keeps which keys were set (`RunConfig.given`): where it
is taken over with another engine, GPU or profile these stay, and the others follow anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blis_py.config.derived import READ, READ_WHERE_GIVEN, settings_of
from blis_py.config.engine import EnginePreset, load_engine
from blis_py.config.layers import Layers
from blis_py.config.models import DEFAULT_ENGINE, PLAIN_ENGINE, RunConfig

_OF_AN_ENGINE = ("latency.profile", "latency.alpha_coeffs", "latency.beta_coeffs", "latency.linear")
_ASYNC = "scheduler.async_scheduling"
SIDES = ("prompt", "output")
_LENGTHS = tuple(f"workload.{side}_tokens" for side in SIDES)
_DECIDING = ("engine", "gpu", "latency.model", _ASYNC, *_OF_AN_ENGINE)


def from_preset(config: RunConfig, key: str, value: Any) -> bool:
    """Whether the value is from the engine's preset rather than from the user."""
    if config.given is not None and key in config.given:
        return False
    own = load_engine(config.engine).on(settings_of(config))
    return key in own and own[key] == (list(value) if isinstance(value, tuple) else value)


def deciding(layers: Layers) -> dict[str, Any]:
    """The settings from which implied ones are derived."""
    known = [*_DECIDING, *(key for key in (*READ, *READ_WHERE_GIVEN) if key in layers.given)]
    return {key: layers.values[key] for key in known if key in layers.values}


def drop_outdated(layers: Layers, before: dict[str, Any], defaults: Callable[[], Mapping[str, Any]]) -> None:
    """Drop implied settings derived from settings that have changed.

    A value that differs from the derived one was changed by hand, and stays.

    Args:
        before: the previous settings.
    """
    values = layers.values
    open_ = values.keys() - layers.given
    if not open_ or deciding(layers) == before:
        return
    old = _following(before, defaults())
    layers.forget(key for key in open_ if old.get(key, values[key]) == values[key])


def independent(leaves: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Keys of settings whose values do not follow from the others."""
    before = {key: leaves[key] for key in (*_DECIDING, *READ)}
    every = _following(before, defaults)
    alone = {key: _following({k: v for k, v in before.items() if k != key}, defaults) for key in before}
    return [key for key, value in leaves.items() if alone.get(key, every).get(key) != value]


def _following(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, given those from which others are derived."""
    layers = Layers()
    layers.add(settings, file=None)
    imply_fitted(layers, of_unknown_origin=False)
    imply_engine(layers)
    layers.imply(defaults)
    return layers.values


def imply_fitted(layers: Layers, of_unknown_origin: bool) -> None:
    """Settings implied by a profile of measured steps: the latency model, and the measured configuration."""
    key, values = "latency.model", layers.values
    profile = values.get("latency.profile")
    if not profile:
        return
    if of_unknown_origin and key in values and not layers.by_flag(key) and layers.by_flag("latency.profile"):
        layers.forget([key])
    layers.imply({key: "fitted"})
    if values[key] == "fitted":
        layers.imply(_measured(str(profile)))


def _measured(profile: str) -> dict[str, Any]:
    """The settings under which a profile was measured, by configuration key."""
    from blis_py.latency.fitted_profile import read_meta

    meta = read_meta(profile)[1]
    keys = {"tp": "tp", "block_size": "scheduler.block_size"}
    counts = {key: int(meta[name]) for name, key in keys.items() if meta.get(name)}
    return counts | ({"gpu": str(meta["device"])} if meta.get("device") else {})


def imply_lengths(layers: Layers) -> None:
    """The standard deviation of lengths that are given: none, unless it is given too, or BLIS is named."""
    if layers.given.isdisjoint(_LENGTHS):
        return
    if "engine" in layers.given and layers.values["engine"] == PLAIN_ENGINE:
        return
    open_ = [key for key in map("{}_stdev".format, _LENGTHS) if key not in layers.given]
    if any(map(layers.by_flag, _LENGTHS)):
        layers.forget(key for key in open_ if key in layers.values)  # of a file, for other lengths
    layers.imply(dict.fromkeys(open_, 0))


def imply_engine(layers: Layers) -> None:
    """Settings implied by the engine's preset, overridden by everything else.

    Its step times do not apply to measured profiles or given coefficients.
    """
    values = layers.values
    own = any(values.get(key) for key in _OF_AN_ENGINE) or values.get("latency.model") in ("fitted", "linear")
    layers.imply({"engine": PLAIN_ENGINE if own else DEFAULT_ENGINE})
    name = values["engine"]
    if isinstance(name, str):  # other types are refused later
        preset = load_engine(name)
        layers.imply(_of_its_loop(preset, preset.on(values), values.get(_ASYNC)))


def _of_its_loop(preset: EnginePreset, own: Mapping[str, Any], asynchronous: Any) -> dict[str, Any]:
    """A preset's settings without those limited to the loop that is not run.

    Args:
        own: the settings.
        asynchronous: as set; None = as the preset has it.
    """
    runs = bool(own.get(_ASYNC) if asynchronous is None else asynchronous)
    return {key: value for key, value in own.items() if preset.applies(key, runs)}
