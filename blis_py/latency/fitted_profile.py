"""A fitted profile: coefficients of measured step times, and the file they lie in.

`profile.yaml` says at its top level what was measured, on what and how (the `meta` of the samples), and under
`fit` what was made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from blis_py import data
from blis_py.errors import InputError
from blis_py.files.paths import expanded, is_file
from blis_py.files.yaml_files import dump_yaml, load_mapping
from blis_py.latency.fitted_terms import TERMS

SCHEMA = 1
"""Of the `fit` section; raised whenever a key changes its meaning."""
FILE = "profile.yaml"
REGIMES = ("graph", "eager")

Prices = dict[str, float]
"""ns per unit of a term of `fitted_terms.TERMS`."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far predictions are from measured steps: shares, 0.05 = 5 %."""

    steps: int
    mape: float
    """Mean of the absolute relative error."""
    bias: float
    """Mean of the relative error: positive = predicted too slow."""
    p95: float
    """95th percentile of the absolute relative error."""
    total: float
    """Sum of the predictions over the sum of the measured times, minus one."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A table over (tokens, decode KV) of what the surface terms are multiplied with."""

    tokens: tuple[float, ...]
    kv_tokens: tuple[float, ...]
    ratio: tuple[tuple[float, ...], ...]
    """`[tokens][kv_tokens]`, around 1."""


@dataclass(frozen=True, slots=True)
class RegimeFit:
    """Step times of one regime."""

    gpu: Prices
    host: Prices
    knee: int = 0
    correction: Correction | None = None
    domain: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Feature -> least and largest value measured."""
    gpu_draws: tuple[tuple[float, ...], ...] = ()
    """Bootstrap: prices in the order of `gpu`, one row per draw."""
    host_draws: tuple[tuple[float, ...], ...] = ()
    shapes: int = 0
    """Compositions measured; in a run every step is one."""
    excluded: int = 0
    """Of them, left out as interruptions: more than three times, or less than a third, of what the others
    say."""
    in_sample: Accuracy | None = None
    cross_validated: Accuracy | None = None
    """Over groups of shapes left out; of the synchronous step time."""
    without_correction: Accuracy | None = None
    """The same with no table."""

    def draw(self, index: int) -> tuple[Prices, Prices]:
        """GPU and host prices of one bootstrap draw."""
        return tuple(  # type: ignore[return-value]
            dict(zip(prices, draws[index], strict=True))
            for prices, draws in ((self.gpu, self.gpu_draws), (self.host, self.host_draws))
        )


@dataclass(frozen=True, slots=True)
class FittedProfile:
    """Everything that prices a step, and where it comes from."""

    meta: dict[str, Any]
    """As in `StepSamples.meta`."""
    regimes: dict[str, RegimeFit]
    experts_in_use: float = 0.0
    """Experts among which tokens seem to be routed evenly: fewer than there are where routing is skewed;
    0 = all of them."""
    sources: dict[str, int] = field(default_factory=dict)
    """Measured steps by the source of their samples."""
    file: str | None = None
    """Where it was read from."""

    @property
    def draws(self) -> int:
        """Bootstrap sets of coefficients."""
        return min((len(fit.gpu_draws) for fit in self.regimes.values()), default=0)

    @property
    def steps(self) -> int:
        """Measured steps it rests on, repetitions included."""
        return sum(self.sources.values())

    @property
    def graph_buckets(self) -> tuple[int, ...]:
        """Captured batch sizes, ascending."""
        return tuple(sorted(int(size) for size in self.meta.get("graph_buckets") or ()))

    @property
    def tp(self) -> int:
        return int(self.meta.get("tp") or 1)

    def require_tp(self, tp: int) -> None:
        """
        Raises:
            InputError: it was measured at another degree.
        """
        if tp != self.tp:
            problem = f"was measured at TP {self.tp}"
            raise InputError(problem, file=self.file, key="--tp", value=tp, fix=f"give --tp {self.tp}")

    def describe(self) -> str:
        """One line for reports."""
        device = self.meta.get("device", "an unnamed device")
        clock = f" ({self.meta['clock']} time)" if self.meta.get("clock") else ""
        model = self.meta.get("model")
        line = f"fitted: {self.steps:,} steps{f' of {model}' if model else ''} measured on {device}{clock}"
        errors = [fit.cross_validated for fit in self.regimes.values() if fit.cross_validated is not None]
        if not errors:
            return line
        mape = sum(error.steps * error.mape for error in errors) / sum(error.steps for error in errors)
        return f"{line}, MAPE {mape:.1%} cross-validated"


# -- the file ------------------------------------------------------------------------------------------


def profile_path(name: str | Path, flag: str = "--profile") -> Path:
    """The `profile.yaml` of a folder, of a file, or of a bundled fit such as `cpu/tiny-ar`.

    Raises:
        InputError: there is none.
    """
    path = expanded(name, key=flag)
    places = (path, path / FILE, data.root("profiles") / "fits" / str(name) / FILE)
    for place in places:
        if is_file(place):
            return place
    bundled = sorted(
        str(found.parent.relative_to(data.root("profiles") / "fits"))
        for found in (data.root("profiles") / "fits").glob(f"*/*/{FILE}")
    )
    fix = "give a folder with a profile.yaml" + (f", or one of {', '.join(bundled)}" if bundled else "")
    raise InputError("no profile here", key=flag, value=str(name), fix=fix)


def read_meta(name: str | Path, flag: str = "--profile") -> tuple[Path, dict[str, Any]]:
    """The file of a profile and all it says. `flag` is what an error calls the name."""
    path = profile_path(name, flag)
    return path, load_mapping(path)


def read_profile(name: str | Path) -> FittedProfile:
    """A fitted profile from its folder.

    Raises:
        InputError: there is none, nothing has been fitted yet, or the file is damaged.
    """
    path, values = read_meta(name)
    fit = values.pop("fit", None)
    if not isinstance(fit, Mapping) or "regimes" not in fit:
        fix = f"run `blis profile fit {path.parent}` first"
        raise InputError("nothing has been fitted here", file=path, key="fit", fix=fix)
    if fit.get("schema") != SCHEMA:
        raise InputError("fit of another schema", file=path, key="fit.schema", value=fit.get("schema"))
    try:
        regimes = {name: _regime(entry) for name, entry in fit["regimes"].items()}
        profile = FittedProfile(
            values, regimes, float(fit["experts_in_use"]), dict(fit["sources"]), str(path)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"a damaged fit: {type(error).__name__} {error}"
        raise InputError(reason, file=path, key="fit", fix="fit again") from None
    _check(profile, path)
    return profile


def write_profile(folder: str | Path, meta: Mapping[str, Any], profile: FittedProfile) -> Path:
    """Writes `profile.yaml` into the folder, which is made where it does not exist; returns its path."""
    fit = {
        "schema": SCHEMA,
        "provenance": replace(profile, meta=dict(meta)).describe(),
        "experts_in_use": profile.experts_in_use,
        "sources": profile.sources,
        "regimes": {name: _plain(asdict(entry)) for name, entry in profile.regimes.items()},
    }
    target = Path(folder) / FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in meta.items() if key != "fit"}
    target.write_text(dump_yaml({**kept, "fit": fit}), encoding="utf-8")
    return target


def _plain(value: Any) -> Any:
    """Lists for tuples, seven digits for numbers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _regime(entry: Mapping[str, Any]) -> RegimeFit:
    values = {f.name: entry[f.name] for f in fields(RegimeFit)}
    correction = values["correction"]
    if correction is not None:
        ratio = tuple(tuple(map(float, row)) for row in correction["ratio"])
        tokens, kv_tokens = (tuple(map(float, correction[axis])) for axis in ("tokens", "kv_tokens"))
        values["correction"] = Correction(tokens, kv_tokens, ratio)
    for name in ("in_sample", "cross_validated", "without_correction"):
        values[name] = None if values[name] is None else Accuracy(**values[name])
    for name in ("gpu_draws", "host_draws"):
        values[name] = tuple(tuple(map(float, row)) for row in values[name])
    values["domain"] = {name: (int(low), int(high)) for name, (low, high) in values["domain"].items()}
    return RegimeFit(**values)


def _check(profile: FittedProfile, path: Path) -> None:
    if "eager" not in profile.regimes:
        problem = "no eager steps: prefills cannot be priced"
        raise InputError(problem, file=path, key="fit.regimes", fix="measure prefills as well")
    for regime, fit in profile.regimes.items():
        key = f"fit.regimes.{regime}"
        if regime not in REGIMES:
            raise InputError("unknown regime", file=path, key=key, fix=f"use {', '.join(REGIMES)}")
        for part, prices in (("gpu", fit.gpu), ("host", fit.host)):
            for term, price in prices.items():
                if term not in TERMS:
                    raise InputError("unknown term", file=path, key=f"{key}.{part}.{term}")
                if not price >= 0:
                    problem = "must be a number of at least 0"
                    raise InputError(problem, file=path, key=f"{key}.{part}.{term}", value=price)
        for prices, draws in ((fit.gpu, fit.gpu_draws), (fit.host, fit.host_draws)):
            if any(len(row) != len(prices) or min(row) < 0 for row in draws):
                raise InputError("a draw does not fit its coefficients", file=path, key=key, fix="fit again")
        table = fit.correction
        if table is not None and (
            len(table.tokens) != len(table.ratio)
            or any(len(row) != len(table.kv_tokens) for row in table.ratio)
        ):
            raise InputError("not a table over its axes", file=path, key=f"{key}.correction", fix="fit again")
