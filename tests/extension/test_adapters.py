"""Adapters as a column of the requests, see `adapters`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from adapters import ByAdapter, run
from small_runs import US, requests, spec

from blis_py.cluster.routing.policies import ROUTING_POLICIES
from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster, Ingress, Pool
from blis_py.metrics.invariants import check
from blis_py.requests.table import RequestTable
from blis_py.traces.compose import merged
from blis_py.traces.reading import Reading
from blis_py.traces.tracev2 import read
from blis_py.traces.tracev2_write import write


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_adapters_share_no_prefix(cache: str) -> None:
    record = run(["x", "y", "x", "", "y", ""], "round-robin", cache, count=1)
    check(record)
    assert record.cached_tokens.tolist() == [0, 0, 16, 0, 16, 16]
    # A prompt takes 10 + 20 us, or 10 + 4 behind 16 cached tokens.
    assert ((record.first_token_ns - record.table.arrival_ns) // US).tolist() == [30, 30, 14, 30, 14, 14]


def test_a_policy_keeps_each_adapter_on_its_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTING_POLICIES, "by-adapter", ByAdapter)
    record = run(["x", "x", "y", "y", "x", "y"], "by-adapter")
    check(record)
    assert record.instance.tolist() == [0, 0, 1, 1, 0, 1]
    assert record.cached_tokens.tolist() == [0, 16, 0, 16, 16, 16]
    elsewhere = run(["x", "x", "y", "y", "x", "y"], "round-robin")
    assert elsewhere.cached_tokens.tolist() == [0, 0, 0, 0, 16, 16], "in turn each instance computes both"


@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("scorer", ["precise-prefix-cache", "prefix-affinity"])
def test_scorers_of_prefixes_distinguish_adapters(scorer: str, cache: str) -> None:
    """Long after the first ones, both adapters go where their own prefix is."""
    table = requests([0, 5, 500, 600, 700], [20] * 5, [9] * 5, [("s", 16)] * 5, ["x", "y", "y", "x", "y"])
    ingress = Ingress(
        routing_policy="weighted",
        routing_scorers={scorer: 1.0, "queue-depth": 0.5},
        snapshot_refresh_ns=0,
        cache_delay_ns=0,
    )
    record = simulate(table, Cluster(pools=(Pool(spec=spec(prefix_cache=cache), count=2),), ingress=ingress))
    x, y = record.instance[:2].tolist()
    assert x != y
    assert record.instance.tolist() == [x, y, y, x, y]
    assert record.cached_tokens.tolist() == [0, 0, 16, 16, 16]


def test_the_column_is_kept_in_parts_mixtures_and_files(tmp_path: Path) -> None:
    adapters = ["x", "", "y, or z", "x"]
    table = requests([0, 1, 2, 3], [20] * 4, [2] * 4, extra_key=adapters)

    def column(of: RequestTable) -> list[str]:
        assert of.extra_key is not None
        return of.extra_key.to_list()

    assert column(table.take(slice(1, 3))) == ["", "y, or z"]
    plain = replace(table, extra_key=None)
    assert plain.take(slice(1, 3)).extra_key is None
    assert column(merged([table, plain], ["a", "b"])) == ["x", "", "", "", "y, or z", "", "x", ""]
    path = tmp_path / "trace.csv"
    write(table, path.with_suffix(".yaml"), path)
    assert column(read(path, Reading())) == adapters
