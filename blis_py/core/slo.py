"""SLO classes and their priorities, on the cluster's side and on the instance's."""

from __future__ import annotations

from collections.abc import Mapping

from blis_py.errors import InputError

CLUSTER_PRIORITY: dict[str, int] = {
    "critical": 4,
    "standard": 3,
    "batch": -1,
    "sheddable": -2,
    "background": -3,
}
"""Admission and routing: larger is more urgent (llm-d's convention)."""

DEFAULT_CLASS = "standard"


def instance_priorities(overrides: Mapping[str, int] | None = None) -> dict[str, int]:
    """Priority of each class inside an instance: smaller is more urgent (vLLM's convention).

    Inverts the cluster's priorities against their largest: critical 0, standard 1, batch 5,
    sheddable 6, background 7. The unset class (empty string) counts as standard.

    Args:
        overrides: cluster-side priorities that replace or extend the defaults, each in [-100, 100].

    Raises:
        InputError: a priority out of bounds.
    """
    priorities = CLUSTER_PRIORITY | dict(overrides or {})
    for name, value in priorities.items():
        if not -100 <= value <= 100:
            raise InputError(
                "priority out of range",
                key=f"slo_priorities.{name}",
                value=value,
                fix="use a whole number from -100 to 100",
            )
    most_urgent = max(priorities.values())
    inverted = {name: most_urgent - value for name, value in priorities.items()}
    return inverted | {"": inverted[DEFAULT_CLASS]}
