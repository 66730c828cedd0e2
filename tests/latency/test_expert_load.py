"""Load of experts: placement by hand, files, and the price of the busiest group."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from latency_cases import decode, prefill

import blis_py as blis
from blis_py.config.latency import EXPERT_LOADS
from blis_py.config.loader import as_dict, load_config
from blis_py.config.paths import named_files
from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency import build
from blis_py.latency.expert_load import (
    ROUTINGS,
    ExpertLoad,
    expert_load,
    nearest_routing,
    power_law,
    read_load,
    routing_variation,
)
from blis_py.latency.expert_placement import consecutive, imbalance, packed, shared_loads
from blis_py.latency.operator_list import KernelOptions, OperatorList
from blis_py.latency.operators import surfaces_for
from blis_py.models.model_shape import load_model

HEAVY_FIRST = [24.0, 15, 11, 9, 7, 6, 5, 3]
MIXTRAL = {"model": "mixtral-8x7b", "engine": "vllm", "gpu": "h100", "tp": 8, "ep": 4, "seed": 1}
SMALL = MIXTRAL | {"workload.rate": 5, "workload.num_requests": 8}


def written(folder: Path, text: str) -> Path:
    path = folder / "load.csv"
    path.write_text(text)
    return path


def of_loads(folder: Path, *layers: list[float]) -> Path:
    rows = [f"{layer},{i},{n}" for layer, tokens in enumerate(layers) for i, n in enumerate(tokens)]
    return written(folder, "\n".join(["layer,expert,tokens", *rows]))


# --- placement ---------------------------------------------------------------------------------------


def test_the_busiest_of_consecutive_groups_counts() -> None:
    assert consecutive(HEAVY_FIRST, 4) == [39, 20, 13, 8]
    assert imbalance(HEAVY_FIRST, 4) == 39 * 4 / 80
    assert imbalance(HEAVY_FIRST, 1) == 1.0


def test_copies_go_to_the_expert_with_the_largest_load_a_copy() -> None:
    """24 -> 12 + 12; then 15 -> 7.5 + 7.5; then 12 + 12 -> 8 + 8 + 8; then 11 -> 5.5 + 5.5."""
    assert shared_loads(HEAVY_FIRST, 4) == [8, 8, 8, 7.5, 7.5, 5.5, 5.5, 9, 7, 6, 5, 3]


def test_copies_are_packed_heaviest_first_onto_the_least_loaded_group_with_room() -> None:
    """9, 8, 8, 8; then 7.5 and 7.5 beside the first eights, 7 beside the third, 6 beside 9; then 5.5 and 5.5
    to the groups of 15, 5 and 3 to those of 15.5."""
    assert packed(shared_loads(HEAVY_FIRST, 4), 4) == [20.5, 20.5, 18.5, 20.5]
    assert imbalance(HEAVY_FIRST, 4, 4) == 20.5 * 4 / 80


def test_experts_that_no_number_of_groups_divides_are_placed_with_their_copies() -> None:
    """4 -> 2 + 2: 3 and 3 go to two groups, 2 and 2 fill the third, then 2 and 1 go to the others."""
    assert packed(shared_loads([4.0, 3, 3, 2, 1], 1), 3) == [3 + 2, 3 + 1, 2 + 2]
    assert imbalance([4.0, 3, 3, 2, 1], 3, 1) == 5 * 3 / 13


def test_copies_never_raise_the_imbalance_nor_is_it_below_1() -> None:
    draw = random.Random(7)
    for _ in range(300):
        groups = draw.choice((2, 4, 8))
        tokens = [draw.paretovariate(0.8) for _ in range(groups * draw.randint(1, 8))]
        copies = groups * draw.randint(1, 4)
        assert 1 - 1e-12 <= imbalance(tokens, groups, copies) <= imbalance(tokens, groups) + 1e-12
    assert imbalance([3.0, 3, 2, 4], 2, 2) == 1.0, "packed it would be 6.5 of 6"


# --- power laws --------------------------------------------------------------------------------------


def test_power_laws_are_quantiles_of_their_density() -> None:
    """Half of a density x^-a between 1 and 6,553.6 lies below the median of the formula."""
    for exponent in (1.01, 1.2):
        loads = power_law(exponent, 9)
        power = 1 - exponent
        below = (np.array(loads) ** power - 1) / (6553.6**power - 1)
        assert below == pytest.approx((np.arange(9) + 0.5) / 9)


@pytest.mark.parametrize(("exponent", "apart_ms", "packed_ms"), [(1.01, 1.197, 0.771), (1.2, 1.276, 0.785)])
def test_a_power_law_over_eight_groups_is_as_uneven_as_measured(
    exponent: float, apart_ms: float, packed_ms: float
) -> None:
    """Rows of TensorRT-LLM's table on B200 (wideep_moe, experts of DeepSeek, 16,384 tokens): experts where
    they are, and packed by EPLB, which makes groups even. No expert has more than an eighth of the tokens'
    choices, as each chooses eight."""
    draw, loads = random.Random(1), power_law(exponent, 256)
    tokens, found = [min(load, sum(loads) / 8) for load in loads], []
    for _ in range(40):
        draw.shuffle(tokens)
        found.append(imbalance(tokens, 8))
        assert max(packed(tokens, 8)) * 8 / sum(tokens) < 1.01
    assert np.mean(found) == pytest.approx(apart_ms / packed_ms, rel=0.1)


def test_the_nearest_routing_has_the_nearest_variation() -> None:
    assert routing_variation("balanced", 128) == 0
    for name in ("balanced", "skewed", "steep"):
        assert nearest_routing(routing_variation(name, 128), 128) == name
    between = (routing_variation("skewed", 128) + routing_variation("steep", 128)) / 2
    assert nearest_routing(between - 0.01, 128) == "skewed"
    assert nearest_routing(between + 0.01, 128) == "steep"


# --- files -------------------------------------------------------------------------------------------


def test_layers_have_an_imbalance_each_of_which_the_mean_counts(tmp_path: Path) -> None:
    """Two layers whose sum is even are not."""
    path = of_loads(tmp_path, [3, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 3])
    load = expert_load(str(path), load_model("mixtral-8x7b"), Layout(8, ep=2))
    assert load == ExpertLoad(
        "balanced", 1.2, "expert load of load.csv (the busiest of 2 groups has 1.20 times the mean)"
    )


def test_without_groups_the_nearest_routing_is_priced(tmp_path: Path) -> None:
    shape, layout = load_model("mixtral-8x7b"), Layout(2)
    even = expert_load(str(of_loads(tmp_path, [1.0] * 8)), shape, layout)
    assert even == ExpertLoad("balanced", 1.0, "expert load of load.csv (nearest to balanced)")
    skewed = expert_load(str(of_loads(tmp_path, [49, 48, 1, 0, 0, 0, 0, 0])), shape, layout)
    assert (skewed.routing, skewed.imbalance) == ("skewed", 1.0)


EIGHT = "".join(f"{i},1\n" for i in range(8))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("expert,tokens\n", "load.csv: has no rows"),
        ("expert,count\n0,1\n", "load.csv:1: tokens: missing column"),
        ("expert,tokens\n0,1\n1,1\n", "2 of the model's 8 experts.*expert 2 is missing"),
        ("expert,tokens\n" + EIGHT + "8,1\n", "load.csv:10: expert: no such expert.*0 to 7"),
        ("expert,tokens\n" + EIGHT + "0,1\n", "load.csv:10: expert given twice"),
        ("expert,tokens\n0,-1\n", "load.csv:2: tokens: no number of tokens.*'-1'"),
        ("expert,tokens\n0,nan\n", "load.csv:2: tokens: no number of tokens"),
        ("expert,tokens\n-1,5\n", "load.csv:2: expert: no such expert"),
        ("expert,tokens\n" + EIGHT.replace(",1", ",0"), "no expert has tokens"),
        ("expert,tokens\n" + EIGHT.replace("3,1", "3,8"), "expert 3 has more than 1/2 of the tokens"),
        ("layer,expert,tokens\n5,0,1\n", "1 of the model's 8 experts in layer 5"),
    ],
)
def test_a_file_that_is_no_load_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        read_load(written(tmp_path, text), 8, 2)


# --- prices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-r1", "gpt-oss-120b"])
def test_a_price_grows_with_the_imbalance(model: str) -> None:
    """From one decode to a long prompt, by every kernel."""
    shape, gpu, layout = load_model(model), load_gpu("h200"), Layout(8, 1, 8)
    learned, _ = surfaces_for(gpu, "vllm")
    tokens = np.array([1.0, 16, 256, 4096, 32768])
    for backend in ("auto", "marlin", "cutlass"):
        ns = [
            OperatorList(
                shape, gpu, layout, learned, KernelOptions(backend, load=ExpertLoad("balanced", times))
            ).of_computed(tokens)
            for times in (1.0, 1.2, 1.5, 2.0)
        ]
        assert (np.diff(ns, axis=0) >= 0).all()
        assert ns[-1][-1] > 1.3 * ns[0][-1], "bound by arithmetic"


def test_the_busiest_group_is_priced_as_if_all_had_its_tokens() -> None:
    """At twice the mean, experts take the pairs that twice the tokens bring to every group."""
    shape, gpu, layout = load_model("deepseek-r1"), load_gpu("h200"), Layout(8, 1, 8)
    learned, _ = surfaces_for(gpu, "vllm")
    even, twice = (
        OperatorList(shape, gpu, layout, learned, KernelOptions(load=ExpertLoad("balanced", times)))
        for times in (1.0, 2.0)
    )
    tokens = np.array([16384.0])
    assert twice._experts(tokens, True) == pytest.approx(even._experts(2 * tokens, True), rel=0.01)


def test_the_model_s_own_routing_by_name_is_the_default() -> None:
    shape, gpu, layout = load_model("mixtral-8x7b"), load_gpu("h100"), Layout(4, 1, 4)
    models = [
        build("trained", shape=shape, gpu=gpu, tp=4, layout=layout, load=load)
        for load in (None, ExpertLoad("skewed"), ExpertLoad("steep"))
    ]
    for step in (decode(32, 32_000), prefill(4096)):
        auto, skewed, steep = (model.step_ns(step) for model in models)
        assert auto == skewed != steep


# --- configuration -----------------------------------------------------------------------------------


def test_a_run_names_its_load_and_copies_lower_the_imbalance(tmp_path: Path) -> None:
    path = of_loads(tmp_path, HEAVY_FIRST)
    runs = {
        copies: blis.build(
            load_config(overrides=SMALL | {"latency.expert_load": str(path), "redundant_experts": copies})
        )
        for copies in (0, 4)
    }
    for copies, times in ((0, "1.95"), (4, "1.02")):
        line = f"expert load of load.csv (the busiest of 4 groups has {times} times the mean)"
        assert line in runs[copies].notes
        assert line in runs[copies].pools[0].latency.provenance


def test_a_file_is_found_from_the_folder_of_its_configuration(tmp_path: Path) -> None:
    path = of_loads(tmp_path, HEAVY_FIRST)
    tree = {"model": "mixtral-8x7b", "tp": 8, "ep": 4, "latency": {"expert_load": "load.csv"}}
    (tmp_path / "run.yaml").write_text(dump_yaml(tree))
    config = load_config(tmp_path / "run.yaml")
    assert config.latency.expert_load == str(path)
    assert named_files(config)["latency.expert_load"] == path
    (tmp_path / "again.yaml").write_text(dump_yaml(as_dict(config)))
    assert load_config(tmp_path / "again.yaml").latency == config.latency


def test_loads_that_cannot_be_are_refused(tmp_path: Path) -> None:
    def refused(settings: dict[str, object], problem: str) -> None:
        overrides = [(f"--{key}", key, value) for key, value in (SMALL | settings).items()]
        with pytest.raises(InputError, match=problem):
            blis.build(load_config(overrides=overrides))

    assert ("auto", *ROUTINGS) == EXPERT_LOADS
    refused({"latency.expert_load": "ballanced"}, "unknown value.*did you mean 'balanced'")
    refused({"latency.expert_load": "./nosuch.csv"}, "No such file")
    refused({"latency.expert_load": "steep", "latency.model": "roofline"}, "no effect on roofline")
    dense = {"model": "llama-3.1-8b", "ep": 1, "latency.expert_load": "steep"}
    refused(dense, "no effect on a model without experts")
