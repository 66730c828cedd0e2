"""BLIS policy bundles: the supported part, parsed strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_py.config.effects import SETTINGS_OF
from blis_py.config.layers import did_you_mean
from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping

_SETS: dict[str, str] = {
    "scheduler": "scheduler.policy",
    "preemption.policy": "scheduler.preemption_policy",
    "routing.policy": "routing.policy",
    "routing.scorers": "routing.scorers",
    "admission.policy": "admission.policy",
    **{
        f"admission.{name}": f"admission.{name}"
        for name in (
            "slo_priorities",
            "token_bucket_capacity",
            "token_bucket_refill_rate",
            "tier_shed_threshold",
            "tier_shed_min_priority",
            "gaie_qd_threshold",
            "gaie_kv_threshold",
        )
    },
    "admission.slo_targets": "gateway.slo_targets_us",
    "tenant_budgets": "admission.tenant_budgets",
}
"""Key of the bundle -> key of the configuration."""

KEYS = {own: theirs for theirs, own in _SETS.items()}
"""Names of configuration keys in a bundle."""

_NOT_YET: dict[str, tuple[str, ...]] = {
    "": ("node_pools", "autoscaler", "instance_lifecycle"),
    "admission.": (),
    "routing.": (),
    "preemption.": (),
}
"""Keys of BLIS without an equivalent, by section."""

_TIER_SHED_MIN_PRIORITY = 3
"""Priority that BLIS uses for `tier-shed` without one: that of standard requests."""
_SECTIONS = ("admission", "routing", "preemption")
_WITHOUT_EFFECT = "priority"
"""A section of every BLIS bundle that BLIS ignores, whatever policy it names."""


def read_bundle(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of a bundle by configuration key: explicit ones, and defaults under everything else.

    Raises:
        InputError: a key not in BLIS bundles, or one that is not supported yet.
    """
    values = load_mapping(Path(path))
    _check_ignored(values.pop(_WITHOUT_EFFECT, None), path)
    leaves = _read(values, "", path)
    sheds = leaves.get("admission.policy") == "tier-shed"
    return leaves, {"admission.tier_shed_min_priority": _TIER_SHED_MIN_PRIORITY} if sheds else {}


def bundle_notes(path: str | Path, policy: str, admission: str, by_target: bool) -> list[str]:
    """Notes on bundle settings without effect under these policies of routing and admission.

    Args:
        by_target: whether the gateway dispatches by SLO targets.
    """
    bundle, notes = load_mapping(Path(path)), []
    if bundle.get(_WITHOUT_EFFECT) is not None:
        instead = "SLO classes have priorities, and schedulers heed them"
        notes.append(f"{path}: {_WITHOUT_EFFECT} is ignored, as in BLIS: {instead}")
    if (bundle.get("routing") or {}).get("scorers") and policy != "weighted":
        notes.append(f"{path}: routing.scorers have no effect on {policy} routing")
    if (bundle.get("admission") or {}).get("slo_targets") and not by_target:
        order = "--flow-control with --dispatch-order slo-deadline"
        notes.append(f"{path}: admission.slo_targets have no effect without {order}")
    for other, prefix in SETTINGS_OF.items():
        for key in bundle.get("admission") or {}:
            if key.startswith(prefix) and other != admission:
                notes.append(f"{path}: admission.{key} has no effect on {admission}")
    return notes


def _check_ignored(section: Any, path: str | Path) -> None:
    if section is None:
        return
    if not isinstance(section, Mapping):
        raise InputError("must be a section", file=path, key=_WITHOUT_EFFECT, value=section)
    for key in section:
        if key != "policy":
            raise InputError("unknown key", file=path, key=f"{_WITHOUT_EFFECT}.{key}", fix="use policy")


def _scorers(value: Any, key: str, path: str | Path) -> dict[str, Any]:
    """A list of names and weights."""
    fix = "write a list of {name: queue-depth, weight: 1}"
    if not isinstance(value, list):
        raise InputError("must be a list", file=path, key=key, value=value, fix=fix)
    weights: dict[str, Any] = {}
    for item in value:
        if not isinstance(item, Mapping) or set(item) != {"name", "weight"}:
            raise InputError("must be a name and a weight", file=path, key=key, value=item, fix=fix)
        if not isinstance(item["name"], str):
            raise InputError("must be the name of a scorer", file=path, key=key, value=item["name"], fix=fix)
        if item["name"] in weights:
            raise InputError("the scorer is given twice", file=path, key=key, value=item["name"])
        weights[item["name"]] = item["weight"]
    return weights


def _read(values: Mapping[Any, Any], prefix: str, path: str | Path) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        full = f"{prefix}{key}"
        if not prefix and key in _SECTIONS:
            if not isinstance(value, Mapping | None):
                raise InputError("must be a section", file=path, key=full, value=value)
            leaves |= _read(value or {}, f"{key}.", path)
        elif full == "routing.scorers":
            leaves[_SETS[full]] = _scorers(value, full, path)
        elif full in _SETS:
            leaves[_SETS[full]] = value
        elif key in _NOT_YET[prefix]:
            raise InputError(
                "a setting of BLIS that is not supported yet", file=path, key=full, fix="drop it"
            )
        else:
            own = [name.rpartition(".")[2] for name in _SETS if name.startswith(prefix)]
            raise InputError("unknown key", file=path, key=full, fix=did_you_mean(str(key), own))
    return leaves
