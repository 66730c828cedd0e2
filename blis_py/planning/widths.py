"""Widths of an instance that a plan tries where nothing says how it is laid out.

They are tensor parallelism, replicas of attention and groups of experts, within a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_py.config.models import PLAIN_ENGINE, RunConfig
from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.models.model_shape import load_model
from blis_py.planning.axes import Axis, Point, axis, parse_axis
from blis_py.planning.study import Study

WIDTHS = (1, 2, 4, 8)
"""GPUs of an instance: powers of two, up to a node of eight."""
TP, REPLICAS, EXPERTS = "tp", "attention_dp", "ep"
_LAYOUT = (TP, REPLICAS, EXPERTS, "redundant_experts", "pools", "disaggregation", "profile")
_OF_ONE_WIDTH = ("fitted", "linear")
"""Latency models whose coefficients are of one server."""
_LOAD = ("workload.rate", "workload.concurrency", "workload.spec", "workload.preset", "workload.trace")


def unasked(study: Study, axes: Sequence[Axis]) -> list[Axis]:
    """Axes of the widths to try; none where the layout of an instance, or of pools, is given or varied, and
    under BLIS's own engine, whose default of one GPU is the answer's frame there."""
    keys = _given(study, axes)
    if any(key in _LAYOUT or key.partition(".")[0] in _LAYOUT for key in keys):
        return []
    first = {each.name: each.values[0] for each in axes}
    for width in reversed(WIDTHS):
        try:
            config = study.config({**first, TP: width}, [*axes, axis(TP, [width])])
        except InputError:
            continue
        return [] if config.engine == PLAIN_ENGINE else _axes(config, [each.key for each in axes])
    return []


def _axes(config: RunConfig, varied: Sequence[str]) -> list[Axis]:
    if config.model is None or config.latency.model in _OF_ONE_WIDTH:
        return []
    widths = [axis(TP, list(WIDTHS))]
    several = any(key in ("model", "model_config") for key in varied)
    if several or load_model(config.model, config.model_config).moe_layers:
        widths += [axis(name, list(WIDTHS)) for name in (REPLICAS, EXPERTS)]
    return widths


def has_load(study: Study, axes: Sequence[Axis]) -> bool:
    """Whether something says how many requests come."""
    return bool({"workload", *_LOAD} & _given(study, axes))


def sensible(points: Sequence[Point]) -> list[Point]:
    """Points without layouts that are never run: attention is replicated, and experts are dealt out, over all
    GPUs of an instance or not at all."""
    return [
        point
        for point in points
        if all(point[name] in (1, point[TP]) for name in (REPLICAS, EXPERTS) if name in point)
    ]


def _given(study: Study, axes: Sequence[Axis]) -> set[str]:
    """Keys of all settings that a study or its axes give."""
    keys = {key for _, key, _ in study.overrides} | {each.key for each in axes}
    keys |= {text.partition("=")[0].strip() for text in study.sets}
    if study.start is not None:
        keys |= set(study.start.given or ())
    if study.path is not None:
        keys |= _flat(load_mapping(Path(study.path)))
    return keys


def _flat(mapping: Mapping[str, Any]) -> set[str]:
    """Dotted keys of the first two levels."""
    below = {
        f"{key}.{name}" for key, value in mapping.items() if isinstance(value, Mapping) for name in value
    }
    return {*map(str, mapping), *below}


def held(study: Study, texts: Sequence[str]) -> Study:
    """A study with settings that are not searched, from `tp=8`.

    Raises:
        InputError: not NAME=VALUE, or an unknown setting.
    """
    fixed = [parse_axis(text, key="--fix") for text in texts]
    for each, text in zip(fixed, texts, strict=True):
        if len(each.values) > 1:
            raise InputError("is one value", key="--fix", value=text, fix="vary it with --vary, or give one")
    return study.over({each.key: each.values[0] for each in fixed})
