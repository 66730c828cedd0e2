from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from blis_py.traces import read_trace
from blis_py.workload import Labels, RequestTable, generate
from blis_py.workload.presets import PRESETS, preset, synthesise
from blis_py.workload.spec import WorkloadSpec, load_spec

BUNDLED = sorted((Path(__file__).resolve().parents[2] / "workloads").glob("*.yaml"))
CLIENT = {
    "rate_fraction": 1.0,
    "arrival": {"process": "poisson"},
    "input_distribution": {"type": "exponential", "params": {"mean": 200}},
    "output_distribution": {"type": "exponential", "params": {"mean": 50}},
}


def spec(*clients: dict[str, object], **top: object) -> WorkloadSpec:
    values = {
        "aggregate_rate": 10.0,
        "num_requests": 2000,
        "clients": [CLIENT | each for each in clients],
    } | top
    return WorkloadSpec.model_validate(values)


def same(one: RequestTable, other: RequestTable) -> bool:
    for column in fields(RequestTable):
        a, b = getattr(one, column.name), getattr(other, column.name)
        if isinstance(a, Labels):
            a, b = a.to_list(), b.to_list()
        if not np.array_equal(a, b) if isinstance(a, np.ndarray) else a != b:
            return False
    return True


def of_client(table: RequestTable, name: str) -> np.ndarray:
    return np.flatnonzero(table.client.codes == table.client.names.index(name))


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    workload = spec({"id": "a"}, {"id": "b", "arrival": {"process": "gamma", "cv": 3.0}})
    assert same(generate(workload), generate(workload))
    assert not same(generate(workload), generate(workload, seed=43))


def test_requests_are_sorted_and_cut_at_the_number() -> None:
    table = generate(spec({"id": "a"}, {"id": "b"}))
    assert len(table) == 2000
    assert np.all(np.diff(table.arrival_ns) >= 0)
    assert np.all(table.prompt_tokens >= 1)
    assert np.array_equal(table.max_tokens, table.output_tokens)
    assert np.all(table.deadline_ns == -1)


def test_the_horizon_ends_the_workload() -> None:
    table = generate(spec({"id": "a"}, num_requests=0, horizon=60_000_000))
    assert table.arrival_ns[-1] < 60 * 10**9
    assert len(table) == pytest.approx(600, rel=0.15)


def test_whichever_of_number_and_horizon_comes_first_ends_the_workload() -> None:
    workload = spec({"id": "a"}, num_requests=100, horizon=60_000_000)
    assert len(generate(workload)) == 100
    assert generate(workload, horizon_ns=10**9).arrival_ns[-1] < 10**9


def test_rate_fractions_are_shares_of_the_aggregate_rate_whatever_their_sum() -> None:
    table = generate(
        spec({"id": "a", "rate_fraction": 3.0}, {"id": "b", "rate_fraction": 1.0}, num_requests=20_000)
    )
    assert len(of_client(table, "a")) / len(table) == pytest.approx(0.75, abs=0.02)
    assert 20_000 / (table.arrival_ns[-1] / 1e9) == pytest.approx(10.0, rel=0.03)


def test_adding_a_client_leaves_the_requests_of_the_others_as_they_were() -> None:
    alone = generate(spec({"id": "a", "rate_fraction": 1.0}, aggregate_rate=5.0, num_requests=500))
    joined = generate(
        spec({"id": "new", "rate_fraction": 1.0}, {"id": "a", "rate_fraction": 1.0}, num_requests=900)
    )
    rows = of_client(joined, "a")
    assert 300 < len(rows) < 600
    count = min(len(rows), 500)
    for column in ("arrival_ns", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(joined, column)[rows][:count], getattr(alone, column)[:count])


def test_asking_for_more_requests_continues_the_workload() -> None:
    workload = spec({"id": "a"}, {"id": "b", "arrival": {"process": "gamma", "cv": 5.0}})
    few, many = generate(workload, num_requests=300), generate(workload, num_requests=1500)
    assert np.array_equal(many.arrival_ns[:300], few.arrival_ns)
    assert np.array_equal(many.prompt_tokens[:300], few.prompt_tokens)
    assert np.array_equal(many.output_tokens[:300], few.output_tokens)


def test_another_rate_stretches_time_and_changes_nothing_else() -> None:
    workload = spec({"id": "a"})
    slow, fast = generate(workload), generate(workload, rate=20.0)
    assert np.allclose(fast.arrival_ns * 2, slow.arrival_ns, atol=2000)
    assert np.array_equal(fast.prompt_tokens, slow.prompt_tokens)


def test_ties_keep_the_order_of_the_clients() -> None:
    even = {"arrival": {"process": "constant"}}
    table = generate(spec({"id": "z", **even}, {"id": "a", **even}, num_requests=6))
    assert table.client.to_list() == ["z", "a"] * 3


def test_clients_of_a_prefix_group_share_its_prefix_as_content() -> None:
    table = generate(
        spec(
            {"id": "a", "prefix_group": "g", "prefix_length": 128},
            {"id": "b", "prefix_group": "g"},
            {"id": "c", "prefix_group": "default"},
            {"id": "d"},
        )
    )
    rows = {name: of_client(table, name) for name in "abcd"}
    assert table.contents == ((("g", 128),), (("default", 50),))
    assert np.all(table.content[rows["a"]] == 0)
    assert np.all(table.content[rows["b"]] == 0)
    assert np.all(table.content[rows["c"]] == 1)
    assert np.all(table.content[rows["d"]] == -1)
    assert np.all(table.prompt_tokens[rows["b"]] > 128)
    assert np.all(table.prefix_tokens[rows["c"]] == 50)


def test_timeouts_become_absolute_deadlines_and_other_fields_are_carried() -> None:
    table = generate(
        spec(
            {
                "id": "a",
                "tenant_id": "t",
                "slo_class": "critical",
                "model": "m",
                "streaming": True,
                "timeout": 5_000_000,
                "slo_target_us": 250_000,
            }
        )
    )
    assert np.all(table.deadline_ns - table.arrival_ns == 5 * 10**9)
    assert np.all(table.slo_target_ns == 250_000_000)
    assert (table.tenant[0], table.slo_class[0], table.model[0], bool(table.streaming[0])) == (
        *("t", "critical", "m"),
        True,
    )


def test_flags_make_one_client_with_poisson_arrivals_and_a_timeout() -> None:
    table = synthesise(rate=50.0, num_requests=20_000)
    gaps = np.diff(table.arrival_ns)
    assert gaps.mean() == pytest.approx(2e7, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert np.all(table.deadline_ns - table.arrival_ns == 300 * 10**9)
    assert (table.prompt_tokens.min(), table.output_tokens.min()) == (2, 2)


def test_constant_flag_arrivals_are_the_peers() -> None:
    table = synthesise(rate=10.001, num_requests=3, arrival="constant")
    assert table.arrival_ns.tolist() == [99_990_000, 199_980_000, 299_970_000]


def test_prefix_tokens_of_the_flags_come_on_top_of_the_prompt() -> None:
    plain, shared = synthesise(num_requests=50), synthesise(num_requests=50, prefix_tokens=100)
    assert np.array_equal(shared.prompt_tokens, plain.prompt_tokens + 100)
    assert shared.contents == ((("shared", 100),),)


def test_a_negative_timeout_means_none() -> None:
    assert np.all(synthesise(num_requests=5, timeout_s=-1).deadline_ns == -1)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_stay_in_their_range_around_their_mean(name: str) -> None:
    prompt, output = PRESETS[name]
    table = preset(name, rate=5.0, num_requests=5000)
    for column, sizes in ((table.prompt_tokens, prompt), (table.output_tokens, output)):
        assert sizes.min <= column.min() <= column.max() <= sizes.max
        assert column.mean() == pytest.approx(sizes.tokens, rel=0.02)


def test_flag_synthesis_needs_neither_pydantic_nor_block_diffusion() -> None:
    code = (
        "import sys; from blis_py.workload import presets; presets.synthesise();"
        "print({'pydantic', 'blis_py.workload.diffusion'} & {*sys.modules})"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert run.stdout == "set()\n"


@pytest.mark.slow
def test_a_million_requests_are_generated_by_columns_and_in_little_memory() -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls: list[str] = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    table = synthesise(rate=1600.0, num_requests=1_000_000)
    sys.setprofile(None)
    assert len(table) == 1_000_000
    assert len(calls) < 10_000, "calls for each request"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 300_000


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_bundled_workloads_are_valid_and_generate(path: Path) -> None:
    table = generate(load_spec(path))
    assert len(table) >= 4000
    assert table.prompt_tokens.max() < 65_536


def test_all_bundled_workloads_are_there() -> None:
    names = "batch bursty chat code diffusion-tiny hot-prefix mixed-slo multi-turn-chat rag rag-nested"
    assert {path.stem for path in BUNDLED} == set(names.split())


def test_the_mixed_slo_hour_has_every_class_and_about_10_600_requests() -> None:
    table = generate(load_spec(next(path for path in BUNDLED if path.stem == "mixed-slo")))
    assert set(table.slo_class.names) == {"critical", "standard", "batch", "background"}
    assert len(table) == pytest.approx(10_600, rel=0.01)
    assert 3590 < table.arrival_ns[-1] / 1e9 < 3600


def test_chat_and_code_have_the_lengths_of_the_azure_trace(shared_data: Path) -> None:
    for name, trace in (("chat", "conv"), ("code", "code")):
        path = next(path for path in BUNDLED if path.stem == name)
        made, real = generate(load_spec(path)), read_trace(shared_data / f"azure_2023/azure2023_{trace}.csv")
        assert made.prompt_tokens.mean() == pytest.approx(real.prompt_tokens.mean(), rel=0.03)
        assert made.output_tokens.mean() == pytest.approx(real.output_tokens.mean(), rel=0.04)
        assert np.median(made.prompt_tokens) == pytest.approx(np.median(real.prompt_tokens), rel=0.05)


def test_taking_rows_keeps_their_names() -> None:
    table = synthesise(num_requests=10)
    assert table.limited(4).request_id is None
    assert table.take(np.array([7, 2])).request_id == ["request_7", "request_2"]


def test_scaling_time_keeps_every_clients_patience() -> None:
    table = synthesise(num_requests=10)
    slow = table.scaled(2.0)
    assert np.array_equal(slow.arrival_ns, table.arrival_ns * 2)
    assert np.array_equal(slow.deadline_ns - slow.arrival_ns, table.deadline_ns - table.arrival_ns)
