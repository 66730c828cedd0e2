"""State of the screen as a configuration: the base, the settings that were moved, and derived files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from blis_py.config.disaggregation import ROLES
from blis_py.config.engine import names as engines
from blis_py.config.loader import as_dict, load_config
from blis_py.config.models import SECTIONS, RunConfig
from blis_py.core.settings import extended
from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.paths import is_file
from blis_py.files.profiles import known_names
from blis_py.files.yaml_files import dump_yaml, load_mapping
from blis_py.setup.from_config import DEFAULT_SEED
from blis_py.ui._traffic import SHAPES, derived, plain_spec

KEYS = (
    "model",
    "gpu",
    "tp",
    "engine",
    "num_instances",
    "scheduler.policy",
    "scheduler.max_num_batched_tokens",
    "scheduler.max_num_seqs",
    "scheduler.prefix_cache",
    "routing.policy",
    "workload.rate",
    "workload.num_requests",
    "workload.prompt_tokens",
    "workload.output_tokens",
    "slo",
)
"""Settings that the page may change."""
_NAMED: dict[str, Callable[[], list[str]]] = {
    "gpu": lambda: known_names("gpus"),
    "model": lambda: known_names("models"),
    "engine": engines,
}
"""Settings that may name a file elsewhere, and here only what is bundled or what the base has."""
_MAX_SLOS, _XPYD, _CONFIG = 20, "disaggregation.xpyd", "config.yaml"


@dataclass(frozen=True)
class State:
    """Changes to the base.

    Attributes:
        settings: by key, of `KEYS`.
        prompt, output: factors on the lengths of a workload spec.
        shape: of the rate, one of `SHAPES`.
        pools: number of instances by pool.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    prompt: float = 1.0
    output: float = 1.0
    shape: str = SHAPES[0]
    pools: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Any) -> State:
        """A state from JSON.

        Raises:
            InputError: an unknown key, a value of the wrong type or out of bounds.
        """
        if not isinstance(data, Mapping):
            raise InputError("must be an object", key="state", value=data)
        for key in data:
            if key not in ("settings", "prompt", "output", "shape", "pools"):
                raise InputError("unknown key", key=f"state.{key}")
        settings, pools = data.get("settings") or {}, data.get("pools") or {}
        for name, value in (("settings", settings), ("pools", pools)):
            if not isinstance(value, Mapping):
                raise InputError("must be an object", key=f"state.{name}", value=value)
        for key in settings:
            if key not in KEYS:
                raise InputError("is not for the page to change", key=key)
        slo = settings.get("slo", [])
        if not isinstance(slo, list) or len(slo) > _MAX_SLOS:
            raise InputError(f"must be a list of at most {_MAX_SLOS} targets", key="slo", value=slo)
        shape = data.get("shape", SHAPES[0])
        if shape not in SHAPES:
            raise InputError("no such shape", key="state.shape", value=shape)
        factors = {name: _factor(data.get(name, 1.0), name) for name in ("prompt", "output")}
        return cls(dict(settings), factors["prompt"], factors["output"], shape, dict(pools))

    @property
    def derives(self) -> bool:
        """Whether the workload is a derived spec."""
        return (self.prompt, self.output, self.shape) != (1.0, 1.0, SHAPES[0])


def _factor(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.05 <= value <= 20:
        raise InputError("must be a factor from 0.05 to 20", key=f"state.{name}", value=value)
    return float(value)


@dataclass(frozen=True)
class Shown:
    """The configuration on the screen.

    Attributes:
        files: content of derived files by name, in `folder`.
    """

    config: RunConfig
    folder: Path
    files: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> str:
        """A shell command with the same numbers; it writes derived files, and a configuration with pools."""
        given = sorted(self._settings()["given"] or ())
        files = dict(self.files) | ({_CONFIG: self.yaml()} if "pools" in given else {})
        lines = [f"cat > {name} <<'END'\n{text.rstrip()}\nEND" for name, text in files.items()]
        flags = [f"--config {_CONFIG}"] if _CONFIG in files else self._flags(given)
        return "\n".join([*lines, " ".join(["blis run", *flags])])

    def yaml(self) -> str:
        """The settings that differ from the defaults, for `--config`."""
        from blis_py.pages.commands import short_configuration

        return short_configuration(self._settings())

    def _settings(self) -> dict[str, Any]:
        """The configuration with derived files in the current folder."""
        settings = as_dict(self.config)
        if self.files:
            settings["workload"]["spec"] = "workload.yaml"
        return settings

    def _flags(self, keys: Sequence[str]) -> list[str]:
        settings, flags = self._settings(), []
        for key in keys:
            value: Any = settings
            for name in key.split("."):
                value = value[name]
            flags.append(_flag(key, value))
        return flags


@cache
def _spellings() -> dict[str, str]:
    """The flag of each setting that takes a number, a word or several."""
    sections: dict[str, type[Any]] = {
        "": RunConfig,
        **{f"{key}.": section for key, section in SECTIONS.items()},
    }
    spellings = {}
    for prefix, model in sections.items():
        for each in fields(extended(model)):
            spelling = each.metadata.get("spelling")
            if spelling is not None and spelling.null is None:
                spellings[f"{prefix}{each.name}"] = spelling.flag
    return spellings


def _flag(key: str, value: Any) -> str:
    name = _spellings().get(key)
    if name is not None and isinstance(value, str | int | float) and not isinstance(value, bool):
        return f"{name} {shlex.quote(str(value))}"
    if key in ("slo", "goodput") and value:
        return f"--{key} {' '.join(shlex.quote(str(each)) for each in value)}"
    return f"--set {shlex.quote(f'{key}={dump_yaml([value]).strip()[2:]}')}"


def shown(base: RunConfig, state: State, folder: Path) -> Shown:
    """The configuration of a state.

    Args:
        folder: for derived files; a state has a part of its own.

    Raises:
        InputError: settings that are invalid or contradict each other.
    """
    for key, known in _NAMED.items():
        value = state.settings.get(key, getattr(base, key))
        if value != getattr(base, key) and value not in known():
            raise InputError("is not one of the choices", key=key, value=value)
    overrides = [(key, key, value) for key, value in state.settings.items()]
    config = load_config(overrides=overrides, base=base) if overrides else base
    if state.pools:
        config = with_counts(config, state.pools)
    if not state.derives:
        return Shown(config, folder)
    return _derived(config, state, folder)


def with_counts(config: RunConfig, counts: Mapping[str, Any]) -> RunConfig:
    """The configuration with other numbers of instances, by pool.

    Raises:
        InputError: no such pool, or no such number.
    """
    known = {pool.name for pool in config.all_pools}
    for name, count in counts.items():
        if (
            name not in known
            or isinstance(count, bool)
            or not isinstance(count, int)
            or not 0 <= count <= 1024
        ):
            raise InputError("must be the number of instances of a pool", key=f"pools.{name}", value=count)
    if not config.pools:
        return _with_sides(config, counts)
    pools = tuple(replace(pool, count=counts.get(pool.name, pool.count)) for pool in config.pools)
    return replace(config, pools=pools)


def _with_sides(config: RunConfig, counts: Mapping[str, int]) -> RunConfig:
    """Other numbers of the instances that settings of `disaggregation` come to."""
    section = config.disaggregation
    given = None if config.given is None else tuple(key for key in config.given if key != _XPYD)
    base = replace(config, disaggregation=replace(section, xpyd=None), given=given)
    both = {pool.name: pool.count for pool in config.all_pools} | dict(counts)
    keys = {f"disaggregation.{ROLES[name]}": count for name, count in both.items()}
    return load_config(overrides=[(key, key, count) for key, count in keys.items()], base=base)


def _derived(config: RunConfig, state: State, folder: Path) -> Shown:
    load = config.workload
    if load.trace is not None or load.preset is not None:
        raise InputError("lengths and rates of a trace or preset are as they are", key="workload")
    seed = DEFAULT_SEED if config.seed is None else config.seed
    spec = plain_spec(as_dict(config)["workload"], seed) if load.spec is None else spec_of(load.spec)
    made, rates = derived(spec, state.prompt, state.output, state.shape, load.rate)
    files = {"workload.yaml": dump_yaml(made)} | ({} if rates is None else {"rates.csv": rates})
    place = folder / sha256(repr(files).encode()).hexdigest()[:16]
    if not place.exists():
        place.mkdir(parents=True)
        for name, text in files.items():
            (place / name).write_text(text, encoding="utf-8")
    changes: dict[str, Any] = {"workload.spec": str(place / "workload.yaml"), "workload.rate": None}
    if load.spec is None:
        changes["workload.num_requests"] = None
    base = replace(config, workload=replace(type(load)(), limit=load.limit)) if load.spec is None else config
    if base.given is not None:
        kept = (key for key in base.given if not key.startswith("workload.") or load.spec is not None)
        base = replace(base, given=tuple(key for key in kept if key not in changes))
    changed = load_config(overrides=[(key, key, value) for key, value in changes.items()], base=base)
    given = None if changed.given is None else tuple(key for key in changed.given if _is_set(key, changes))
    return Shown(replace(changed, given=given), place, files)


def _is_set(key: str, changes: Mapping[str, Any]) -> bool:
    return changes.get(key, "") is not None


def spec_of(name: str) -> dict[str, Any]:
    """The content of a workload spec, by its path or bundled name."""
    path = Path(name)
    if not is_file(path):
        path = bundled.root("workloads") / f"{name}.yaml"
    return load_mapping(path)
