"""The settings that are varied: axes, and the points they span."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from blis_py.config.layers import did_you_mean
from blis_py.config.models import KIND_SECTIONS, NAMES, RunConfig
from blis_py.config.paths import from_folder
from blis_py.config.pools import PoolSection
from blis_py.core.flag_texts import decimal
from blis_py.errors import InputError
from blis_py.files.paths import check_text, full_path
from blis_py.files.yaml_files import load_mapping, parse_yaml
from blis_py.requests.streams import stream

MAX_POINTS = 100_000
Point = dict[str, Any]
"""A value for every axis, by the axis's name."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting and its values."""

    name: str
    """The user's name of the setting: a flag without dashes, or a dotted key."""
    key: str
    """Dotted key in the configuration."""
    values: tuple[Any, ...]


def parse_axis(text: str, key: str = "--vary") -> Axis:
    """An axis from `rate=10:100:10` (from, to, step), `scheduler=fcfs,lpm`, or `frontend_ms=[1,2]`.

    Raises:
        InputError: not NAME=VALUES, an unknown setting, or a malformed range.
    """
    name, equals, values = check_text(text, key=key).partition("=")
    name, values = name.strip(), values.strip()
    if not equals or not name or not values:
        fix = "write scheduler=fcfs,lpm or rate=10:100:10" if key == "--vary" else "write tp=8"
        raise InputError("not NAME=VALUE" + "S" * (key == "--vary"), key=key, value=text, fix=fix)
    parts = [_parsed(values, key, text)] if values.startswith("[") else [*_split(values, key, text)]
    return axis(name, parts, key=key)


def axis(name: str, values: Any, *, key: str = "vary", file: str | Path | None = None) -> Axis:
    """An axis from a list of values, a range in words, or a single value.

    Raises:
        InputError: unknown setting, no values, a duplicate value, or an infinite one.
    """
    plain = name.lstrip("-")
    plain = plain if plain.startswith("pools.") else plain.replace("-", "_")
    if plain in _NOT_SIMULATED:
        raise InputError("is not a setting", file=file, key=f"{key} {name}", fix=_NOT_SIMULATED[plain])
    plain = _ALSO_CALLED.get(plain, plain)
    own = NAMES.get(plain) or (plain if plain in NAMES.values() or _is_key(plain) else None)
    if own is None or own in _NOT_VARIED:
        problem = "cannot be varied" if own else "unknown setting"
        fix = "choose another" if own else did_you_mean(plain, NAMES)
        raise InputError(problem, file=file, key=f"{key} {name}", fix=fix)
    if isinstance(values, str):
        listed = [*_split(values, key, f"{name}={values}")]
    else:
        listed = list(values) if isinstance(values, list | tuple) else [values]
    if own == XPYD:
        listed = [layout for value in listed for layout in layouts(str(value))]
    if not listed:
        raise InputError("has no values", file=file, key=f"{key} {name}", fix="give at least one")
    spellings: set[str] = set()
    for value in listed:
        if not _is_finite(value):
            raise InputError("must be finite", file=file, key=f"{key} {name}", value=value, fix="drop it")
        if (text := _as_text(value)) in spellings:
            raise InputError("is given twice", file=file, key=f"{key} {name}", value=value, fix="drop one")
        spellings.add(text)
    return Axis(plain, own, tuple(listed))


def layouts(text: str) -> list[str]:
    """The layouts of `auto:4`: 4 instances that do both, 1p3d, 2p2d, 3p1d; of any other text, itself.

    Raises:
        InputError: `auto:` without a number of instances.
    """
    word, colon, number = text.partition(":")
    if word.strip() != "auto":
        return [text]
    if (
        not colon
        or not number.isascii()
        or not number.strip().isdecimal()
        or not 2 <= int(number) <= _MAX_LAYOUTS
    ):
        fix = f"write auto:4, with 2 to {_MAX_LAYOUTS} instances"
        raise InputError("needs a number of instances", key="xpyd", value=text, fix=fix)
    count = int(number)
    return [str(count), *(f"{prefill}p{count - prefill}d" for prefill in range(1, count))]


def _as_text(value: Any) -> str:
    """Canonical text of a value, equal for equal values of one type."""
    return repr(sorted(value.items(), key=repr)) if isinstance(value, Mapping) else repr(value)


def _is_finite(value: Any) -> bool:
    """Whether a value contains no infinity and no NaN."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Every combination; the last axis changes fastest.

    Raises:
        InputError: too many combinations.
    """
    count = math.prod(len(each.values) for each in axes)
    if count > MAX_POINTS:
        fix = "take fewer values, or a random part of them with --random N"
        raise InputError(f"{count:,} combinations are too many", key="--vary", fix=fix)
    names = [each.name for each in axes]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(a.values for a in axes))]


def drawn(axes: Sequence[Axis], count: int, seed: int) -> list[Point]:
    """Draw `count` combinations without repetition, in the order of drawing."""
    sizes = [len(each.values) for each in axes]
    total = math.prod(sizes)
    rng = stream(seed, "sweep", *(each.name for each in axes))
    if count >= total:
        return grid(axes)
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < count:
        chosen.setdefault(tuple(int(rng.integers(size)) for size in sizes))
    return [{a.name: a.values[i] for a, i in zip(axes, indices, strict=True)} for indices in chosen]


@dataclass(frozen=True, slots=True)
class SpaceFile:
    """Content of a space file: `vary`, a mapping of settings to values, or `runs`, a list of points."""

    axes: tuple[Axis, ...] = ()
    runs: tuple[Point, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other keys of the axis."""


def read_space(path: str | Path, known: Sequence[str] = ()) -> SpaceFile:
    """Read a space; relative paths in it are relative to its folder.

    Args:
        known: keys allowed besides `vary` and `runs`.

    Raises:
        InputError: a malformed file, or an unknown setting.
    """
    file = full_path(path)
    values = load_mapping(file)
    for key in values:
        if key not in ("vary", "runs", *known):
            fix = did_you_mean(str(key), ("vary", "runs", *known))
            raise InputError("unknown key", file=path, key=str(key), fix=fix)
    varied, runs = values.get("vary") or {}, values.get("runs") or []
    if not isinstance(varied, Mapping):
        raise InputError("must map settings to lists of values", file=path, key="vary", value=varied)
    if not isinstance(runs, list) or not all(isinstance(run, Mapping) and run for run in runs):
        raise InputError("must be a list of settings", file=path, key="runs", value=runs)
    if varied and runs:
        raise InputError("cannot be combined with vary", file=path, key="runs", fix="give one of the two")
    axes = tuple(_in_folder(axis(str(n), v, key="vary", file=path), file.parent) for n, v in varied.items())
    points = []
    for run in runs:
        own = [_in_folder(axis(str(n), [v], key="runs", file=path), file.parent) for n, v in run.items()]
        points.append({each.name: each.values[0] for each in own})
    more = {key: value for key, value in values.items() if key not in ("vary", "runs")}
    return SpaceFile(axes, tuple(points), more)


def _in_folder(given: Axis, folder: Path) -> Axis:
    moved = tuple(from_folder({given.key: value}, folder)[given.key] for value in given.values)
    return Axis(given.name, given.key, moved)


def _split(values: str, key: str, text: str) -> Iterator[Any]:
    for part in values.split(","):
        if part.count(":") in (1, 2) and all(map(_is_number, part.split(":"))):
            yield from _range(part, key, text)
        else:
            yield _parsed(part.strip(), key, text)


def _parsed(word: str, key: str, text: str) -> Any:
    if not word:
        raise InputError("has an empty value", key=key, value=text, fix="write NAME=A,B,C")
    try:
        return parse_yaml(word)
    except InputError as error:
        raise InputError(error.problem, key=key, value=text, fix="quote the value") from None


def _range(part: str, key: str, text: str) -> Iterator[int | float]:
    """`first:last:step`, the last one included; whole numbers stay whole."""
    first, last, step = (*map(_number, part.split(":")), 1)[:3]
    if step <= 0 or last < first or not math.isfinite((last - first) / step):
        fix = "write FIRST:LAST:STEP, upwards"
        raise InputError("is not a range", key=key, value=text, fix=fix)
    count = int((last - first) / step + 1e-9) + 1
    if count > MAX_POINTS:
        raise InputError("has too many values", key=key, value=text, fix="take a larger step")
    for index in range(count):
        value = first + index * step
        yield value if isinstance(value, int) else float(f"{value:.12g}")


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdecimal() else decimal(text)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(decimal(text))
    except ValueError:
        return False


def _is_key(path: str) -> bool:
    """Whether the configuration has this key; below a mapping, any key; below `pools`, those of a pool."""
    head, _, rest = path.partition(".")
    if head == "pools" and rest:
        return rest.partition(".")[2].partition(".")[0] in {f.name for f in fields(PoolSection)}
    field = {f.name: f for f in fields(RunConfig)}.get(head)
    if field is None:
        return False
    section = field.default_factory
    if not (isinstance(section, type) and is_dataclass(section)):
        return not rest
    return rest.partition(".")[0] in {f.name for f in fields(section)}


XPYD = "disaggregation.xpyd"
_MAX_LAYOUTS = 64
_ALSO_CALLED = {
    **{name: flag for kind in KIND_SECTIONS.values() for name, flag in kind.also_called.items()},
    "hardware": "gpu",
    "max_concurrency": "concurrency",
    "num_gpu_blocks_override": "num_kv_blocks",
    "num_prompts": "num_requests",
    "request_rate": "rate",
    "router": "routing_policy",
    "tensor_parallel_size": "tp",
}
"""Names by which users of vLLM and BLIS look for a setting."""
_INSTANCES = "each replica is an instance: vary num_instances"
_NOT_SIMULATED = {
    "data_parallel_size": _INSTANCES,
    "dp": _INSTANCES,
    "enable_expert_parallel": "give the number of GPUs that the experts are spread over: vary ep",
    "pipeline_parallel_size": "pipeline parallelism is not simulated",
    "pp": "pipeline parallelism is not simulated",
    "quantization": "quantised weights are a separate model: model=qwen3-32b,qwen3-32b-fp8",
}
"""Settings that users look for among the axes, and where they belong."""
_NOT_VARIED = {"slo", "goodput"}
"""Keys that cannot be varied: all runs are judged by the same targets."""
