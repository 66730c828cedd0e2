"""Gains and losses of requests by SLO class, by tenant, by length of the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.comparison.pairs import Pairs
from blis_py.metrics.bootstrap import Change, changes
from blis_py.metrics.groups import report_order
from blis_py.metrics.registry import E2E, TTFT, shown_in

NOTICED = 0.01
"""Relative change of a request's E2E from which it counts as better or worse."""
_MIN = 0.005
"""Relative change of a mean below which a group neither gained nor paid, however sure it is."""
_DECILES = 10


@dataclass(frozen=True, slots=True)
class Group:
    """A group of requests in both runs."""

    by: str
    """The criterion: class, tenant, or prompt."""
    name: str
    requests: int
    completed: tuple[int, int]
    """Completed requests in the first and the second run."""
    means: dict[str, Change]
    """Changes of the means that the registry shows, if any request has them in both."""
    better: float | None
    """Share of the requests completed in both with a lower E2E."""
    worse: float | None

    @property
    def verdict(self) -> str:
        """Verdict by the mean E2E, else by the mean TTFT, if it changed by a noticeable and sure amount."""
        for metric, of in ((E2E.key, ""), (TTFT.key, " in TTFT")):
            change = self.means.get(metric)
            if change is not None and change.sure and abs(change.relative or 0.0) >= _MIN:
                assert change.relative is not None
                return f"{'better' if change.relative < 0 else 'paid'}{of}"
        known = any(change.sure is not None for change in self.means.values())
        return "no sure difference" if known else "too few to tell"


def groups(paired: Pairs) -> list[Group]:
    """A group for every class, tenant and tenth of the prompt lengths.

    Uninformative ones are left out: a criterion with a single group, and tenants that coincide with the
    classes.
    """
    by = {
        "class": _labels(paired, "slo_class"),
        "tenant": _labels(paired, "tenant"),
        "prompt": _tenths(paired),
    }
    if {rows.tobytes() for _, rows in by["class"]} == {rows.tobytes() for _, rows in by["tenant"]}:
        del by["tenant"]
    stated = []
    for kind, parts in by.items():
        if len(parts) > 1:
            stated += [_group(paired, kind, name, rows) for name, rows in parts]
    return stated


def overall(paired: Pairs) -> Group:
    return _group(paired, "all", "all requests", np.ones(len(paired), dtype=np.bool_))


Part = tuple[str, NDArray[np.bool_]]


def _labels(paired: Pairs, column: str) -> list[Part]:
    labels = paired.first[column].astype(str).to_numpy(dtype=object)
    names = sorted(set(labels.tolist()), key=report_order)
    return [(name, labels == name) for name in names]


def _tenths(paired: Pairs) -> list[Part]:
    """Deciles of prompt length; equal lengths stay together, so there may be fewer than ten."""
    tokens = paired.first["prompt_tokens"].to_numpy()
    if not len(tokens):
        return []
    inner = np.percentile(tokens, np.linspace(0, 100, _DECILES + 1)[1:-1])
    place = np.searchsorted(np.unique(inner), tokens, side="left")
    return list(_named(tokens, place))


def _named(tokens: NDArray[np.int64], place: NDArray[np.intp]) -> Iterator[Part]:
    for index in np.unique(place):
        rows = place == index
        low, high = int(tokens[rows].min()), int(tokens[rows].max())
        yield (f"{low:,} tokens" if low == high else f"{low:,} to {high:,} tokens"), rows


def _group(paired: Pairs, by: str, name: str, rows: NDArray[np.bool_]) -> Group:
    done = paired.completed()
    means = {}
    for metric, statistic in shown_in("compared"):
        one, other = (values[rows] for values in paired.values(metric.key))
        there = ~(np.isnan(one) | np.isnan(other))
        if there.any():
            means[metric.key] = changes(one[there], other[there], (statistic,))[statistic]
    one, other = (values[rows] for values in paired.values(E2E.key))
    there = ~(np.isnan(one) | np.isnan(other)) & (one > 0)
    with np.errstate(over="ignore"):
        change = other[there] / one[there] - 1
    return Group(
        by,
        name,
        int(rows.sum()),
        (int(done[0][rows].sum()), int(done[1][rows].sum())),
        means,
        float((change < -NOTICED).mean()) if len(change) else None,
        float((change > NOTICED).mean()) if len(change) else None,
    )


def as_dict(group: Group) -> dict[str, Any]:
    """A group as plain data."""
    return {
        "by": group.by,
        "name": group.name,
        "requests": group.requests,
        "completed": list(group.completed),
        "verdict": group.verdict,
        "better": group.better,
        "worse": group.worse,
        **{metric: change_as_dict(change) for metric, change in group.means.items()},
    }


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def change_as_dict(change: Change) -> dict[str, Any]:
    return {
        "first": _known(change.first),
        "second": _known(change.second),
        "relative": change.relative,
        "interval": None if change.interval is None else list(change.interval),
        "sure": change.sure,
    }
