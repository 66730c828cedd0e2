"""A run in numbers: the content of summary.json and of the terminal table. Definitions: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from blis_py.metrics._network import client_latencies_ns
from blis_py.metrics.distribution import PERCENTILE_METHOD, Distribution, statistics
from blis_py.metrics.groups import Rows, rows_by_instance, rows_by_name, slo_classes, tenants
from blis_py.metrics.invariants import check
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.kinds import kind_of
from blis_py.metrics.latencies import latencies
from blis_py.metrics.load import load
from blis_py.metrics.priority_waits import priority_waits
from blis_py.metrics.record import InstanceRecord, Outcome, RunRecord
from blis_py.metrics.registry import METRICS, Metric
from blis_py.metrics.sessions import session_summary
from blis_py.metrics.slo import GoodputTargets, SloCheck, assess, require_known_classes, verdict
from blis_py.requests.table import Labels, RequestTable


def summarise(
    record: RunRecord, *, goodput: GoodputTargets | None = None, slo: Sequence[SloCheck] = ()
) -> dict[str, Any]:
    """The metrics of a run, as plain JSON-ready data with a stable order of keys.

    Latencies are in ms, rates per second of the window from the first arrival to the last completion, which
    is the cluster's for every group, so that the groups' rates add up. Undefined values are `None`.

    Args:
        record: the run.
        goodput: limits for every request; without any (and without targets in the workload itself) goodput is
            `None`.
        slo: limits on statistics of the run, evaluated under `slo`.

    Raises:
        InputError: a target names an SLO class that is neither in the workload nor a standard one.
        InternalError: the record contradicts itself.
    """
    check(record)
    return _Summary(record, goodput, slo).build()


def totals(
    record: RunRecord, *, goodput: GoodputTargets | None = None, slo: Sequence[SloCheck] = ()
) -> dict[str, Any]:
    """The same without instances and pools, at a cost that does not grow with their number."""
    check(record)
    return _Summary(record, goodput, slo, parts=False).build()


class _Summary:
    def __init__(
        self,
        record: RunRecord,
        goodput: GoodputTargets | None,
        slo: Sequence[SloCheck],
        parts: bool = True,
    ) -> None:
        self.record = record
        self.slo = slo
        self.columns = latencies(record)
        self.goodput = assess(record, self.columns, goodput)
        self.classes = rows_by_name(slo_classes(record))
        self.tenants = rows_by_name(tenants(record))
        self.parts = record.instances if parts else ()
        """Instances that are stated, alone and by pool."""
        self.instances = rows_by_instance(record) if self.parts and record.visits.single else []
        """Rows of each of them, unless a request can be on several."""
        self.pools = _pools(self.parts)
        self.all_rows: Rows = np.arange(len(record.table))
        self.itl = self._token_gaps()
        first_ns = int(record.table.arrival_ns[0]) if len(record.table) else 0
        finished_ns = record.finish_ns[self.columns.completed]
        self.first_arrival_ns = first_ns
        self.last_completion_ns = int(finished_ns.max()) if len(finished_ns) else first_ns
        self.duration_s = (self.last_completion_ns - first_ns) / 1e9
        self.known: dict[bytes, dict[str, Any]] = {}
        """Groups computed so far, by their rows."""

    def build(self) -> dict[str, Any]:
        cluster = self._group(self.all_rows)
        classes = {name: self._part(rows, cluster) for name, rows in self.classes.items()}
        tenants = {name: self._part(rows, cluster) for name, rows in self.tenants.items()}
        instances = [self._instance(index, cluster) for index in range(len(self.parts))]
        return {
            "percentile_method": PERCENTILE_METHOD,
            "window": {
                "first_arrival_s": self.first_arrival_ns / 1e9,
                "last_completion_s": self.last_completion_ns / 1e9,
                "duration_s": self.duration_s,
                "simulated_s": self.record.end_ns / 1e9,
            },
            "load": load(self.record),
            "cluster": {
                "num_instances": len(self.record.instances),
                **cluster,
                **self._per_unit(cluster["throughput"]),
                **engine(self.record.instances, self._lived_ns(self.record.instances)),
                **self._cost(),
                "prefix_hit_ceiling": _prefix_hit_ceiling(self.record),
                "jain_fairness": _jain([t["output_tokens"] for t in tenants.values()]),
                **self._of_kind(self.all_rows, self.record.instances),
                **self._at_clients(),
            },
            "classes": classes,
            "tenants": tenants,
            "instances": instances,
            "slo": self._verdicts(),
            **priority_waits(self.record),
            **self._admission(),
            **self._gateway(),
            **self._disaggregation(),
            **session_summary(self.record, self.columns),
            **self._routing(),
        }

    def _at_clients(self) -> dict[str, Any]:
        """Latencies including network time, for remote clients."""
        latencies = client_latencies_ns(self.record, self.columns)
        return {
            f"{name}_ms": statistics(Distribution.of(ns[~np.isnan(ns)])) for name, ns in latencies.items()
        }

    def _admission(self) -> dict[str, Any]:
        """Rejections by reason, class and tenant, if there are any."""
        why = self.record.rejection
        rejected = self.record.outcome == Outcome.REJECTED
        if why is None or not rejected.any():
            return {}
        groups = {"by_class": self.classes, "by_tenant": self.tenants}
        counted = {
            of: {name: whys for name, rows in parts.items() if (whys := counts(why, rows[rejected[rows]]))}
            for of, parts in groups.items()
        }
        by_reason = counts(why, np.flatnonzero(rejected))
        return {"admission": {"rejected": sum(by_reason.values()), "by_reason": by_reason, **counted}}

    def _disaggregation(self) -> dict[str, Any]:
        """Hand-overs between prefill and decode instances, and what each pool did, if there are pools."""
        parts: dict[str, Any] = {}
        if self.record.handovers is not None:
            parts["handovers"] = self.record.handovers.summary()
        if self.pools:
            parts["pools"] = {name: self._pool(indices) for name, indices in self.pools.items()}
        return parts

    def _pool(self, indices: Sequence[int]) -> dict[str, Any]:
        """The work of one pool's instances, and the latencies of the visits to them."""
        own = [self.record.instances[index] for index in indices]
        visits = self.record.visits
        there = np.isin(visits.instance, indices)
        group = self._group(self._rows_of(indices)) if visits.single else self._visits_to(indices)
        return {
            **group,
            "num_instances": len(own),
            "gpus": sum(one.gpus for one in own),
            "visits": int(there.sum()),
            "output_tokens": int(visits.emitted_tokens[there].sum()),
            **engine(own, self._lived_ns(own)),
        }

    def _rows_of(self, indices: Sequence[int]) -> Rows:
        """Rows of the requests of a pool, unless a request can be on several instances."""
        return np.sort(np.concatenate([self.instances[index] for index in indices]))

    def _gateway(self) -> dict[str, Any]:
        """Waiting times at the gateway, if there is a queue."""
        waits_ns = self.record.gateway_ns
        if waits_ns is None:
            return {}
        queued = waits_ns >= 0
        held = queued & (self.record.outcome == Outcome.QUEUED) & (self.record.instance < 0)
        stated = {
            "waited": int((waits_ns > 0).sum()),
            "wait_ms": statistics(Distribution.of(waits_ns[queued])),
            "still_waiting": int(held.sum()),
            "evicted": int((self.record.outcome == Outcome.EVICTED).sum()),
        }
        return {"gateway": stated}

    def _routing(self) -> dict[str, Any]:
        decisions = self.record.decisions
        return {} if decisions is None else {"routing": decisions.summary()}

    def _part(self, rows: Rows, cluster: Mapping[str, Any]) -> dict[str, Any]:
        """Summary of a group, cached: tenants often coincide with the classes, or with all requests."""
        if len(rows) == len(self.all_rows):
            return {**cluster}
        key = _digest(rows)
        if key not in self.known:
            self.known[key] = self._group(rows)
        return {**self.known[key]}

    def _instance(self, index: int, cluster: Mapping[str, Any]) -> dict[str, Any]:
        own = [self.record.instances[index]]
        if self.record.visits.single:
            rows = self.instances[index]
            group = cluster if len(rows) == len(self.all_rows) else self._group(rows, index)
            parts = {**group, **engine(own, self._lived_ns(own)), **self._of_kind(rows, own)}
        else:
            parts = self._visits_to([index]) | engine(own, self._lived_ns(own))
        return {"instance": index, **({"pool": own[0].pool} if self.pools else {}), **parts}

    def _visits_to(self, indices: Sequence[int]) -> dict[str, Any]:
        """Summary of the visits to instances; the goodput is that of the requests that made them."""
        part = _Summary(self.record.on(indices), None, (), parts=False)
        part.duration_s = self.duration_s
        visits = self.record.visits
        rows = np.unique(visits.request[np.isin(visits.instance, indices)])
        met = None if self.goodput is None else self.goodput.report(rows, self.duration_s)
        return {
            **part._group(part.all_rows),
            "goodput": met,
            **part._of_kind(part.all_rows, part.record.instances),
        }

    def _of_kind(self, rows: Rows, instances: Sequence[InstanceRecord]) -> dict[str, Any]:
        """The part of the kind of requests, under its name."""
        kind = kind_of(self.record)
        return {} if kind is None else {kind.NAME: kind.summary(self.record, rows, instances)}

    def _group(self, rows: Rows, instance: int | None = None) -> dict[str, Any]:
        done = rows[self.columns.completed[rows]]
        inputs = int(self.record.table.prompt_tokens[done].sum())
        outputs = int(self.record.emitted_tokens[done].sum())
        return {
            "requests": _outcomes(self.record, rows),
            "input_tokens": inputs,
            "output_tokens": outputs,
            "throughput": {
                "requests_per_s": self._rate(len(done)),
                "output_tokens_per_s": self._rate(outputs),
                "total_tokens_per_s": self._rate(inputs + outputs),
            },
            **{
                each.key: statistics(self._samples(each, rows, instance), each.unit.scale)
                for each in METRICS.values()
            },
            "preemptions": int(self.record.preemptions[rows].sum()),
            "preempted_requests": int(np.count_nonzero(self.record.preemptions[rows])),
            "goodput": None if self.goodput is None else self.goodput.report(rows, self.duration_s),
        }

    def _token_gaps(self) -> dict[tuple[int | None, bytes], Distribution]:
        """Token gaps of every group, in one pass over the steps."""
        groups = [self.all_rows, *self.classes.values(), *self.tenants.values()]
        if self.instances:
            groups += [self._rows_of(indices) for indices in self.pools.values()]
        rows_of: dict[tuple[int | None, bytes], Rows] = {(None, _digest(rows)): rows for rows in groups}
        rows_of |= {(index, _digest(rows)): rows for index, rows in enumerate(self.instances)}
        done = [rows[self.columns.completed[rows]] for rows in rows_of.values()]
        distributions = TokenGaps(self.record).distributions(done, [instance for instance, _ in rows_of])
        return dict(zip(rows_of, distributions, strict=True))

    def _samples(self, metric: Metric, rows: Rows, instance: int | None = None) -> Distribution:
        if metric.per_token:
            known = self.itl.get((instance, _digest(rows)))
            return known or Distribution.of(np.zeros(0, dtype=np.int64))  # no request has that class
        column = self.columns.column(metric.name)[rows]
        return Distribution.of(column[~np.isnan(column)])

    def _verdicts(self) -> list[dict[str, Any]]:
        require_known_classes((c.slo_class for c in self.slo if c.slo_class), self.classes)
        empty: Rows = np.zeros(0, dtype=np.intp)
        answers = []
        for target in self.slo:
            rows = self.classes.get(target.slo_class, empty) if target.slo_class else self.all_rows
            measured = self._samples(METRICS[target.metric], rows).stat(target.stat)
            answers.append(verdict(target, measured, len(rows)))
        return answers

    def _per_unit(self, throughput: Mapping[str, float]) -> dict[str, float]:
        """Output tokens per second of one instance and of one GPU, by their mean number over the window."""
        mean = self._mean_lived([1] * len(self.record.instances)) or 1
        gpus = self._mean_lived([one.gpus for one in self.record.instances]) or 1
        per_instance = throughput["output_tokens_per_s"] / mean
        return {
            "output_tokens_per_s_per_instance": per_instance,
            "output_tokens_per_s_per_gpu": per_instance / (gpus / mean),
        }

    def _mean_lived(self, weights: Sequence[int]) -> float:
        """Time average over the window of the total weight of living instances."""
        elapsed_ns = self._elapsed_ns()
        lived_ns = [self._lived_ns([one]) for one in self.record.instances]
        if not elapsed_ns or all(own_ns == elapsed_ns for own_ns in lived_ns):
            return sum(weights)
        return sum(w * own_ns for w, own_ns in zip(weights, lived_ns, strict=True)) / elapsed_ns

    def _cost(self) -> dict[str, float]:
        """Cost of the instances from their addition to their removal, if all have a price."""
        prices = [one.price_per_hour for one in self.record.instances]
        if not prices or None in prices:
            return {}
        hours = [one.lived_ns(0, self.record.end_ns) / 3.6e12 for one in self.record.instances]
        return {"cost": sum((price or 0.0) * own for price, own in zip(prices, hours, strict=True))}

    def _rate(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else 0.0

    def _elapsed_ns(self) -> int:
        return self.record.end_ns - self.first_arrival_ns

    def _lived_ns(self, instances: Sequence[InstanceRecord]) -> int:
        """Total lifetime of the instances since the first arrival."""
        if all(one.gone_ns is None and one.added_ns <= self.first_arrival_ns for one in instances):
            return self._elapsed_ns() * len(instances)
        return sum(one.lived_ns(self.first_arrival_ns, self.record.end_ns) for one in instances)


def _pools(instances: Sequence[InstanceRecord]) -> dict[str, list[int]]:
    """Indices of the instances of each pool; empty if there is one pool."""
    indices_of: dict[str, list[int]] = {}
    for index, one in enumerate(instances):
        indices_of.setdefault(one.pool, []).append(index)
    return indices_of if len(indices_of) > 1 else {}


def _digest(rows: Rows) -> bytes:
    """A hash of a group of requests."""
    return sha256(rows.tobytes()).digest()


def engine(instances: Sequence[InstanceRecord], lived_ns: int) -> dict[str, Any]:
    """Engine metrics over one or several instances with a total lifetime of `lived_ns`."""

    def total(name: str) -> int:
        return int(sum(getattr(instance, name) for instance in instances))

    steps = sum(instance.steps for instance in instances)
    tokens = total("prefill_tokens") + total("decode_tokens")
    block_steps = sum(instance.steps * instance.num_kv_blocks for instance in instances)
    peak = max((instance.peak_kv_blocks / instance.num_kv_blocks for instance in instances), default=None)
    return {
        "steps": steps,
        "busy_pct": _ratio(100 * total("busy_ns"), lived_ns),
        "prefill_tokens": total("prefill_tokens"),
        "decode_tokens": total("decode_tokens"),
        "mean_batch_tokens": _ratio(tokens, steps),
        "mean_decode_batch": _ratio(total("decode_tokens"), steps),
        **({"discarded_tokens": discarded} if (discarded := total("discarded_tokens")) else {}),
        "prefix_queried_tokens": total("prefix_queried_tokens"),
        "prefix_hit_tokens": total("prefix_hit_tokens"),
        "prefix_hit_rate": _ratio(total("prefix_hit_tokens"), total("prefix_queried_tokens")),
        "kv_blocks": total("num_kv_blocks"),
        "kv_peak_pct": None if peak is None else 100 * peak,
        "kv_mean_pct": _ratio(100 * total("kv_block_steps"), block_steps),
        "priority_inversions": total("priority_inversions"),
        "head_of_line_events": total("head_of_line_events"),
    }


def _prefix_hit_ceiling(record: RunRecord) -> float | None:
    """Hit rate of a prefix cache without eviction, for the requests that were served.

    `None` without a prefix cache, or if prompts have nothing in common.
    """
    settings = record.config.get("scheduler", {})
    cache_is_on = settings.get("enable_prefix_caching", True) and settings.get("prefix_cache") != "none"
    table, served = record.table, record.scheduled_ns >= 0
    if not cache_is_on or "block_size" not in settings or not np.any(table.content[served] >= 0):
        return None
    from blis_py.metrics.reuse import unlimited

    requests = RequestTable.build(
        table.arrival_ns[served],
        table.prompt_tokens[served],
        table.output_tokens[served],
        content=table.content[served],
        contents=table.contents,
    )
    return unlimited(requests, int(settings["block_size"])).hit_rate


def counts(labels: Labels, rows: Rows) -> dict[str, int]:
    """Number of rows per label, the most frequent first; unlabelled rows are left out."""
    numbers = np.bincount(labels.codes[rows], minlength=len(labels.names)).tolist()
    named = [(name, count) for name, count in zip(labels.names, numbers, strict=True) if name and count]
    return dict(sorted(named, key=lambda item: (-item[1], item[0])))


def _outcomes(record: RunRecord, rows: Rows) -> dict[str, int]:
    """Requests in each bucket; `completed` includes the length-capped, the others exclude each other."""
    count = np.bincount(record.outcome[rows], minlength=len(Outcome)).tolist()
    return {
        "injected": len(rows),
        "completed": count[Outcome.COMPLETED] + count[Outcome.LENGTH_CAPPED],
        "length_capped": count[Outcome.LENGTH_CAPPED],
        "rejected": count[Outcome.REJECTED],
        "unservable": count[Outcome.UNSERVABLE],
        "timed_out": count[Outcome.TIMED_OUT],
        "still_queued": count[Outcome.QUEUED],
        "still_running": count[Outcome.RUNNING],
        **({"evicted": count[Outcome.EVICTED]} if count[Outcome.EVICTED] else {}),
    }


def _jain(shares: Sequence[int]) -> float | None:
    """Jain's index (sum x)^2 / (n * sum x^2): 1 if all shares are equal, 1/n if one has everything."""
    return _ratio(sum(shares) ** 2, len(shares) * sum(x * x for x in shares)) if len(shares) > 1 else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
