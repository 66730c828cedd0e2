"""What can be varied, and how it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_py.errors import InputError
from blis_py.planning.axes import (
    MAX_POINTS,
    Axis,
    _is_finite,
    _is_key,
    axis,
    drawn,
    grid,
    layouts,
    parse_axis,
    read_space,
)
from blis_py.planning.study import Study


def test_lists_ranges_and_values_that_are_lists() -> None:
    assert parse_axis("scheduler=fcfs,lpm").key == "scheduler.policy"
    assert parse_axis("scheduler=fcfs,lpm").values == ("fcfs", "lpm")
    assert parse_axis("rate=10:40:10").values == (10, 20, 30, 40)
    assert parse_axis("rate=0.1:0.5:0.2").values == (0.1, 0.3, 0.5)
    assert parse_axis("num_instances=1:3,8").values == (1, 2, 3, 8)
    assert parse_axis("--max-num-seqs=64,128").key == "scheduler.max_num_seqs"
    assert parse_axis("scheduler.block_size=16,32").key == "scheduler.block_size"
    assert parse_axis("frontend_ms=[1, 2]").values == ([1, 2],)
    assert parse_axis("tensor-parallel-size=1,2").key == "tp"
    assert parse_axis("router=weighted").key == "routing.policy"
    assert parse_axis("enable_prefix_caching=true,false").values == (True, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scheduler", "not NAME=VALUES"),
        ("schedular=fcfs", "unknown setting; did you mean 'scheduler'?"),
        ("scheduler.polcy=fcfs", "unknown setting"),
        ("rate=10:5", "is not a range"),
        ("rate=10:50:0", "is not a range"),
        ("rate=1:1e9:0.001", "too many values"),
        ("rate=5,5", "is given twice"),
        ("rate=5,,6", "has an empty value"),
        ("dp=1,2", "each replica is an instance: vary num_instances"),
        ("enable_expert_parallel=true", "vary ep"),
        ("quantization=fp8", "quantised weights are a separate model: model=qwen3-32b,qwen3-32b-fp8"),
        ("slo=ttft.p99=1s", "cannot be varied"),
    ],
)
def test_what_is_no_axis_is_an_error_that_states_what_to_write(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_axis(text)
    assert message in str(error.value)


def test_the_last_axis_changes_fastest() -> None:
    points = grid([parse_axis("scheduler=fcfs,sjf"), parse_axis("tp=1,2")])
    assert [tuple(point.values()) for point in points] == [("fcfs", 1), ("fcfs", 2), ("sjf", 1), ("sjf", 2)]


def test_too_many_combinations_are_refused_before_they_are_made() -> None:
    axes = [parse_axis(f"{name}=1:1000") for name in ("tp", "seed", "max_num_seqs")]
    with pytest.raises(InputError, match=r"1,000,000,000 combinations are too many.*--random N"):
        grid(axes)
    assert len(drawn(axes, 5, 1)) == 5


def test_random_points_are_different_ones_and_the_same_every_time() -> None:
    axes = [parse_axis("seed=1:40"), parse_axis("tp=1:40")]
    points = drawn(axes, 100, 7)
    assert points == drawn(axes, 100, 7) != drawn(axes, 100, 8)
    assert len({tuple(point.values()) for point in points}) == 100
    assert drawn(axes[:1], 100, 7) == grid(axes[:1])


def test_what_is_varied_and_given_is_refused() -> None:
    base = Study(overrides=(("--gpu", "gpu", "h100"),))
    with pytest.raises(InputError, match=r"gpu: is varied, and given by --gpu, too"):
        base.check([parse_axis("gpu=h100,l40s")])
    with pytest.raises(InputError, match="is varied, and given by --vary rate, too"):
        Study().check([parse_axis("rate=1,2"), parse_axis("workload.rate=3,4")])


def test_defaults_of_an_engine_follow_the_gpu_that_is_varied() -> None:
    axes = [parse_axis("gpu=h100,l4")]
    seqs = [Study().config(point, axes).scheduler.max_num_seqs for point in grid(axes)]
    assert seqs == [1024, 256]
    given = Study(overrides=(("--max-num-seqs", "scheduler.max_num_seqs", 1024),))
    assert given.config({"gpu": "l4"}, axes).scheduler.max_num_seqs == 1024


def test_a_space_in_a_file_has_its_paths_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("vary: {trace: [a.csv, b.csv], rate: '1:3'}\nprices: {h100: 2}\n")
    space = read_space(tmp_path / "space.yaml", ("prices",))
    assert space.axes[0].values == (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    assert space.axes[1].values == (1, 2, 3)
    assert space.more == {"prices": {"h100": 2}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vari: {}", "did you mean 'vary'?"),
        ("vary: [1]", "must map settings"),
        ("runs: {a: 1}", "must be a list"),
        ("runs: [3]", "must be a list of settings"),
        ("runs: [{tp: 1}, {}]", "must be a list of settings"),
        ("runs: text", "must be a list of settings"),
        ("vary: {tp: [1]}\nruns: [{tp: 2}]", "cannot be combined"),
        ("vary: {tpp: [1]}", "unknown setting"),
        ("vary: {tp: []}", "has no values"),
    ],
)
def test_a_space_that_is_none_is_reported_with_its_file(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        read_space(tmp_path / "space.yaml")
    assert "space.yaml" in str(error.value)
    assert message in str(error.value)


def test_equal_values_of_another_type_are_others() -> None:
    assert axis("latency_model", [1, 1.0, True, "1"]).values == (1, 1.0, True, "1")
    with pytest.raises(InputError, match="is given twice"):
        axis("routing_scorers", [{"a": 1, "b": 2}, {"b": 2, "a": 1}])


def test_text_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="--vary: is not valid UTF-8 text"):
        parse_axis("model=a\udcff")


@pytest.mark.parametrize("count", [2, 3, 64])
def test_the_layouts_of_instances_are_all_that_do_both_and_every_split(count: int) -> None:
    splits = [f"{prefill}p{count - prefill}d" for prefill in range(1, count)]
    assert layouts(f"auto:{count}") == [str(count), *splits]
    assert layouts(f" auto : {count} ") == layouts(f"auto:{count}")
    assert layouts("1p2d") == ["1p2d"]


@pytest.mark.parametrize("text", ["auto", "auto:", "auto:1", "auto:65", "auto:-2", "auto:2.0"])
def test_layouts_need_a_number_of_instances_that_can_be_split(text: str) -> None:
    with pytest.raises(InputError, match="write auto:4, with 2 to 64 instances"):
        layouts(text)


def test_as_many_values_as_a_study_may_have_are_an_axis() -> None:
    assert len(parse_axis(f"rate=1:{MAX_POINTS}:1").values) == MAX_POINTS
    with pytest.raises(InputError, match="too many values"):
        parse_axis(f"rate=1:{MAX_POINTS + 1}:1")


def test_layouts_are_all_divisions_of_the_instances() -> None:
    assert layouts("auto:4") == ["4", "1p3d", "2p2d", "3p1d"]
    assert layouts("1p1d") == ["1p1d"]
    assert len(layouts("auto:64")) == 64
    for text in ("auto", "auto:1", "auto:65", "auto:x", "auto:"):
        with pytest.raises(InputError, match="needs a number of instances"):
            layouts(text)


def test_values_are_finite_and_keys_known() -> None:
    inf = float("inf")
    values = (
        1,
        1.5,
        "inf",
        None,
        [1, inf],
        [inf, 1],
        {"a": 1, "b": inf},
        {"a": inf, "b": 1},
        inf,
        [1, 2],
        {"a": 1},
    )
    assert [_is_finite(value) for value in values] == [
        *(True, True, True, True, False, False, False, False, False, True, True)
    ]
    keys = (
        "tp",
        "tp.x",
        "nosuch",
        "scheduler.max_num_seqs",
        "scheduler.nosuch",
        "pools.a.count",
        "pools.a.no",
    )
    assert [_is_key(key) for key in keys] == [True, False, False, True, False, True, False]


@pytest.mark.parametrize("count", [1, 3, 5, 6, 9])
def test_points_are_drawn_without_repetition(count: int) -> None:
    axes = [Axis("a", "", (1, 2)), Axis("b", "", ("x", "y", "z"))]
    points = drawn(axes, count, 7)
    assert len(points) == min(count, 6)
    assert len({tuple(point.items()) for point in points}) == len(points)
    if count < 6:
        assert points == drawn(axes, count, 7)
