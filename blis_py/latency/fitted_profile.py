"""Fitted profiles: coefficients of measured step times, and their file format.

The top level of `profile.yaml` describes the measurement (the `meta` of the samples), and `fit` holds the
coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from blis_py.core.bounds import MAX_KV_BLOCKS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.parts import FilePart
from blis_py.files.paths import expanded, is_file
from blis_py.files.yaml_files import load_mapping
from blis_py.latency.fitted_terms import TERMS
from blis_py.latency.host_work import MaskPrices
from blis_py.outputs.profile_file import FILE, write_with_fit

SCHEMA = 1
"""Version of the `fit` section; raised whenever a key changes its meaning."""
REGIMES = ("graph", "eager")
_LARGEST = 1e15
"""Upper bound of a price, in ns: eleven days per token."""
_RATIOS = (1e-6, 1e6)
_WHOLE = {
    "tp": 4096,
    "block_size": MAX_TOKENS,
    "num_kv_blocks": MAX_KV_BLOCKS,
    "max_model_len": MAX_TOKENS,
    "mixed_prompts": MAX_TOKENS,
}
"""Integers at the top level of the file, with their upper bounds."""

Prices = dict[str, float]
"""ns per unit of a term of `fitted_terms.TERMS`."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Deviation of predictions from measured steps: shares, 0.05 = 5 %."""

    steps: int
    mape: float
    """Mean of the absolute relative error."""
    bias: float
    """Mean of the relative error: positive = predictions too slow."""
    p95: float
    """95th percentile of the absolute relative error."""
    total: float
    """Sum of the predictions over the sum of the measured times, minus one."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A table over (tokens, decode KV) of factors for the surface terms."""

    tokens: tuple[float, ...]
    kv_tokens: tuple[float, ...]
    ratio: tuple[tuple[float, ...], ...]
    """`[tokens][kv_tokens]`, around 1."""


@dataclass(frozen=True, slots=True)
class RegimeFit:
    """Step times of one regime."""

    gpu: Prices
    host: Prices
    """Host time before launching and behind the GPU's work."""
    knee: int = 0
    correction: Correction | None = None
    domain: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Feature -> smallest and largest measured value."""
    gpu_draws: tuple[tuple[float, ...], ...] = ()
    """Bootstrap: prices in the order of `gpu`, one row per draw."""
    host_draws: tuple[tuple[float, ...], ...] = ()
    launching: Prices = field(default_factory=dict)
    """Host time from the first launch to the last, beside the GPU's work; empty = not measured."""
    launching_draws: tuple[tuple[float, ...], ...] = ()
    shapes: int = 0
    """Number of measured compositions; in a run every step is one."""
    excluded: int = 0
    """Compositions excluded as interruptions: more than three times, or less than a third, of the
    consensus."""
    in_sample: Accuracy | None = None
    cross_validated: Accuracy | None = None
    """Accuracy over held-out groups of shapes, for the synchronous step time."""
    without_correction: Accuracy | None = None
    """The same without the table."""

    def parts(self) -> Iterator[tuple[str, Prices, tuple[tuple[float, ...], ...]]]:
        """The parts of a step that have prices: name, prices and bootstrap draws of each."""
        yield "gpu", self.gpu, self.gpu_draws
        yield "host", self.host, self.host_draws
        if self.launching:
            yield "launching", self.launching, self.launching_draws

    def draw(self, index: int) -> dict[str, Prices]:
        """Prices by part, of one bootstrap draw."""
        return {part: dict(zip(prices, draws[index], strict=True)) for part, prices, draws in self.parts()}

    def prices(self) -> dict[str, Prices]:
        """Prices by part, of the fit itself."""
        return {part: prices for part, prices, _ in self.parts()}


@dataclass(frozen=True, slots=True)
class FittedProfile:
    """All inputs of a step's price, and their origin."""

    meta: dict[str, Any]
    """As in `StepSamples.meta`."""
    regimes: dict[str, RegimeFit]
    experts_in_use: float = 0.0
    """Effective number of evenly routed experts: fewer than there are if routing is skewed; 0 = all of
    them."""
    masks: MaskPrices | None = None
    """Prices of structured outputs; None if no constrained row was measured."""
    sources: dict[str, int] = field(default_factory=dict)
    """Measured steps by the source of their samples."""
    repeated_read_ns: float = 0.0
    """Savings for a KV entry that another decode of the step has read."""
    scan_ns: float | None = None
    """Host time for each waiting request that a policy looks up in the cache; None if not measured."""
    file: str | None = None
    """The file it was read from."""

    @property
    def draws(self) -> int:
        """Number of bootstrap sets of coefficients."""
        return min((len(fit.gpu_draws) for fit in self.regimes.values()), default=0)

    @property
    def steps(self) -> int:
        """Number of measured steps, repetitions included."""
        return sum(self.sources.values())

    @property
    def graph_buckets(self) -> tuple[int, ...]:
        """Captured batch sizes, ascending."""
        return tuple(sorted(int(size) for size in self.meta.get("graph_buckets") or ()))

    @property
    def mixed_buckets(self) -> tuple[int, ...]:
        """Tokens of captured steps with prompts, ascending."""
        return tuple(sorted(int(size) for size in self.meta.get("mixed_buckets") or ()))

    @property
    def mixed_prompts(self) -> int:
        """Most prompts of such a step."""
        return int(self.meta.get("mixed_prompts") or 0)

    @property
    def tp(self) -> int:
        return int(self.meta.get("tp") or 1)

    def require_tp(self, tp: int) -> None:
        """Check the tensor-parallel degree.

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
        InputError: it does not exist.
    """
    path = expanded(name, key=flag)
    places = (path, path / FILE, bundled.root("profiles") / "fits" / str(name) / FILE)
    for place in places:
        if is_file(place):
            return place
    known = sorted(
        str(file.parent.relative_to(bundled.root("profiles") / "fits"))
        for file in (bundled.root("profiles") / "fits").glob(f"*/*/{FILE}")
    )
    fix = "give a folder with a profile.yaml" + (f", or one of {', '.join(known)}" if known else "")
    raise InputError("no profile here", key=flag, value=str(name), fix=fix)


def read_meta(name: str | Path, flag: str = "--profile") -> tuple[Path, dict[str, Any]]:
    """The file of a profile and its content. `flag` is the name used in error messages."""
    path = profile_path(name, flag)
    values = load_mapping(path)
    _check_meta(values, path)
    return path, values


def read_profile(name: str | Path) -> FittedProfile:
    """A fitted profile from its folder.

    Raises:
        InputError: it does not exist, nothing has been fitted yet, or the file is damaged.
    """
    path, values = read_meta(name)
    fit = values.pop("fit", None)
    if not isinstance(fit, Mapping) or "regimes" not in fit:
        fix = f"run `blis profile fit {path.parent}` first"
        raise InputError("nothing has been fitted here", file=path, key="fit", fix=fix)
    regimes, experts_in_use, masks, sources = _read_fit(fit, path)
    saved_ns = fit.get("repeated_read_ns", 0.0)
    saved = FilePart(saved_ns, path, "fit.repeated_read_ns", "fit again").number(0, _LARGEST)
    scan = None if "scan_ns" not in fit else FilePart(fit["scan_ns"], path, "fit.scan_ns", "fit again")
    scan_ns = None if scan is None else scan.number(0, _LARGEST)
    return FittedProfile(values, regimes, experts_in_use, masks, sources, saved, scan_ns, str(path))


def write_profile(folder: str | Path, meta: Mapping[str, Any], profile: FittedProfile) -> Path:
    """Write `profile.yaml` into the folder, creating it if needed; returns its path."""
    fit = {
        "schema": SCHEMA,
        "provenance": replace(profile, meta=dict(meta)).describe(),
        "experts_in_use": profile.experts_in_use,
        **({} if profile.masks is None else {"masks": _plain(asdict(profile.masks))}),
        **({} if profile.scan_ns is None else {"scan_ns": _plain(profile.scan_ns)}),
        **({"repeated_read_ns": _plain(profile.repeated_read_ns)} if profile.repeated_read_ns else {}),
        "sources": profile.sources,
        "regimes": {name: _plain(_written(entry)) for name, entry in profile.regimes.items()},
    }
    return write_with_fit(folder, meta, fit)


def _written(entry: RegimeFit) -> dict[str, Any]:
    """A regime without what was not measured."""
    optional = () if entry.launching else ("launching", "launching_draws")
    return {key: value for key, value in asdict(entry).items() if key not in optional}


def _plain(value: Any) -> Any:
    """Convert tuples to lists and numbers to seven digits."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _check_meta(values: Mapping[str, Any], path: Path) -> None:
    """Check the values that a run reads from the top level of a profile.

    Raises:
        InputError: one is not a number of the right kind.
    """
    FilePart(values, path, "").check_finite()
    for name, most in _WHOLE.items():
        if values.get(name) is not None:
            FilePart(values[name], path, name).whole(1, most)
    for name in ("graph_buckets", "mixed_buckets"):
        for bucket in FilePart(values.get(name) or [], path, name).items():
            bucket.whole(1, MAX_TOKENS)


def _read_fit(
    values: Any, path: Path
) -> tuple[dict[str, RegimeFit], float, MaskPrices | None, dict[str, int]]:
    """Regimes, experts in use, masks, and measured steps by source.

    Raises:
        InputError: names the missing or invalid key.
    """
    fit = FilePart(values, path, "fit", "fit again")
    if fit.of("schema").value != SCHEMA:
        raise fit.of("schema").error("fit of another schema")
    regimes = {}
    for name in fit.of("regimes").mapping():
        part = fit.of("regimes").of(name)
        if name not in REGIMES:
            fix = f"use {', '.join(REGIMES)}"
            raise InputError("unknown regime", file=path, key=part.key, fix=fix)
        regimes[name] = _regime(part)
    if "eager" not in regimes:
        problem = "no eager steps: prefills cannot be priced"
        raise InputError(problem, file=path, key="fit.regimes", fix="measure prefills as well")
    sources = fit.of("sources")
    steps = {name: sources.of(name).whole(0, 2**53) for name in sources.mapping()}
    return regimes, fit.of("experts_in_use").number(0, 1e6), _masks(fit), steps


def _masks(fit: FilePart) -> MaskPrices | None:
    """Prices of masks; absent in profiles without structured outputs."""
    if "masks" not in fit.mapping():
        return None
    masks = fit.of("masks")
    return MaskPrices(masks.of("row_ns").number(0, _LARGEST), masks.of("step_ns").number(0, _LARGEST))


def _regime(part: FilePart) -> RegimeFit:
    gpu, host = _prices(part.of("gpu")), _prices(part.of("host"))
    gpu_draws = _draws(part.of("gpu_draws"), len(gpu))
    host_draws = _draws(part.of("host_draws"), len(host))
    if len(gpu_draws) != len(host_draws):
        raise part.of("host_draws").error("as many draws as gpu_draws are needed")
    launching, launching_draws = _launching(part, len(gpu_draws))
    return RegimeFit(
        gpu=gpu,
        host=host,
        knee=part.of("knee").whole(0, MAX_TOKENS),
        correction=_correction(part.of("correction")),
        domain=_domain(part.of("domain")),
        gpu_draws=gpu_draws,
        host_draws=host_draws,
        launching=launching,
        launching_draws=launching_draws,
        shapes=part.of("shapes").whole(0, 2**53),
        excluded=part.of("excluded").whole(0, 2**53),
        in_sample=_accuracy(part.of("in_sample")),
        cross_validated=_accuracy(part.of("cross_validated")),
        without_correction=_accuracy(part.of("without_correction")),
    )


def _launching(part: FilePart, draws: int) -> tuple[Prices, tuple[tuple[float, ...], ...]]:
    """Prices of launching; absent in profiles of engines that launch nothing."""
    if "launching" not in part.mapping():
        return {}, ()
    prices = _prices(part.of("launching"))
    prices_drawn = _draws(part.of("launching_draws"), len(prices))
    if len(prices_drawn) != draws:
        raise part.of("launching_draws").error("as many draws as gpu_draws are needed")
    return prices, prices_drawn


def _prices(part: FilePart) -> Prices:
    for term in part.mapping():
        if term not in TERMS:
            raise InputError("unknown term", file=part.path, key=f"{part.key}.{term}", fix="fit again")
    return {term: part.of(term).number(0, _LARGEST) for term in part.mapping()}


def _correction(part: FilePart) -> Correction | None:
    if part.value is None:
        return None
    tokens, kv_tokens = (
        tuple(each.number(0, 1e15) for each in part.of(axis).items()) for axis in ("tokens", "kv_tokens")
    )
    ratio = tuple(tuple(each.number(*_RATIOS) for each in row.items()) for row in part.of("ratio").items())
    shaped = len(tokens) == len(ratio) and all(len(row) == len(kv_tokens) for row in ratio)
    rising = all(list(axis) == sorted(set(axis)) for axis in (tokens, kv_tokens))
    if not (tokens and kv_tokens and shaped and rising):
        raise InputError("not a table over its axes", file=part.path, key=part.key, fix="fit again")
    return Correction(tokens, kv_tokens, ratio)


def _domain(part: FilePart) -> dict[str, tuple[int, int]]:
    domain = {}
    for name in part.mapping():
        limits = [each.whole(-1, 2**62) for each in part.of(name).items()]
        if len(limits) != 2:
            raise part.of(name).error("must be the least and the largest value")
        domain[name] = (limits[0], limits[1])
    return domain


def _draws(part: FilePart, terms: int) -> tuple[tuple[float, ...], ...]:
    draws = tuple(tuple(each.number(0, _LARGEST) for each in row.items()) for row in part.items())
    if any(len(row) != terms for row in draws):
        problem = "a draw does not fit its coefficients"
        raise InputError(problem, file=part.path, key=part.key, fix="fit again")
    return draws


def _accuracy(part: FilePart) -> Accuracy | None:
    if part.value is None:
        return None
    stated = {field.name: part.of(field.name) for field in fields(Accuracy)}
    steps = stated.pop("steps").whole(0, 2**53)
    return Accuracy(steps, **{name: each.number(-1e9, 1e9) for name, each in stated.items()})
