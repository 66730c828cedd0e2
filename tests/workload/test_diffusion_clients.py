"""Denoise rounds per block: distributions, measured sequences, and what a workload spec says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.requests.streams import stream
from blis_py.workload.diffusion import diffusion_client, draw_rounds
from blis_py.workload.diffusion_steps import (
    DenoiseSteps,
    Histogram,
    MeanAndSpread,
    Mixture,
    Sequences,
    steps_from_mapping,
)
from blis_py.workload.spec import WorkloadSpec


def drawn(steps: DenoiseSteps, count: int = 20_000) -> Any:
    return steps.draw(stream(1, "test"), count)


def test_distributions_have_the_moments_they_are_given() -> None:
    counts = drawn(steps_from_mapping({"mean": 12.5, "cv": 0.28}))
    assert counts.mean() == pytest.approx(12.5, rel=0.01)
    assert counts.std() / counts.mean() == pytest.approx(0.28, rel=0.03)
    assert 1 <= counts.min() <= counts.max() <= 32
    histogram = drawn(steps_from_mapping({"histogram": {4: 3, 9: 1}}))
    assert set(histogram.tolist()) == {4, 9}
    assert (histogram == 4).mean() == pytest.approx(0.75, abs=0.01)
    bimodal = {
        "mixture": [
            {"weight": 4, "steps": {"histogram": {10: 1}}},
            {"weight": 1, "steps": {"mean": 32, "cv": 0}},
        ]
    }
    assert (drawn(steps_from_mapping(bimodal)) == 32).mean() == pytest.approx(0.2, abs=0.01)


def test_descriptions_become_the_distributions_they_describe() -> None:
    assert steps_from_mapping({"mean": 8, "cv": 0.5, "cap": 16}) == MeanAndSpread(8.0, 0.5, 16)
    mixture = steps_from_mapping({"mixture": [{"weight": 1, "steps": {"histogram": {"3": 2}}}]})
    assert mixture == Mixture([(1.0, Histogram({3: 2.0}))])


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({}, "steps"),
        ({"mean": 8}, "steps.cv"),
        ({"mean": 40, "cv": 0.2}, "steps.mean"),
        ({"mean": 8, "cv": -1}, "steps.cv"),
        ({"mean": 8, "cv": 0.2, "cap": 9.5}, "steps.cap"),
        ({"mean": 8, "cv": 0.2, "std": 1}, "steps.std"),
        ({"histogram": {"x": 1}}, "steps.histogram.x"),
        ({"histogram": {0: 1}}, "steps.histogram.0"),
        ({"histogram": {4: 0}}, "steps.histogram"),
        ({"mixture": []}, "steps.mixture"),
        ({"sequences": []}, "steps.sequences"),
        ({"sequences": [[1], []]}, "steps.sequences[1]"),
        ({"sequences": [[1, 0]]}, "steps.sequences[0]"),
        ({"sequences": 3}, "steps.sequences"),
        ({"sequences": "no-such.csv"}, "steps.sequences"),
        ({"mixture": [{"weight": 1, "steps": {"sequences": [[1]]}}]}, "steps.mixture[0].steps"),
        ({"mixture": [{"weight": 1, "steps": {"mean": 1}}]}, "steps.mixture[0].steps.cv"),
    ],
)
def test_bad_descriptions_are_refused_by_key(values: Any, key: str) -> None:
    with pytest.raises(InputError) as refusal:
        steps_from_mapping(values)
    assert refusal.value.key == key


def request(prompt: int = 0, output: int = 32) -> Request:
    return Request("", 0, prompt, output)


@pytest.mark.parametrize("steps", [MeanAndSpread(12.5, 0.3), Sequences([[3, 4, 5], [6, 7, 8]])])
def test_step_counts_depend_on_requests_and_seed_alone(steps: Any) -> None:
    few = draw_rounds([request(5, 60)], steps, block_tokens=32, seed=9)
    more = draw_rounds([request(5, 60), request()], steps, block_tokens=32, seed=9)
    assert more[0] == few[0]
    assert len(few[0]) == 3
    others = [draw_rounds([request(5, 60)], steps, block_tokens=32, seed=seed) for seed in range(20)]
    assert others != [few] * 20


# -- whole requests ------------------------------------------------------------------------------------


@given(
    measured=st.lists(st.lists(st.integers(1, 32), min_size=1, max_size=6), min_size=1, max_size=12),
    counts=st.lists(st.integers(1, 20), max_size=20),
)
def test_a_request_takes_the_rounds_of_a_measured_one(measured: list[list[int]], counts: list[int]) -> None:
    drawn = Sequences(measured).draw_requests(stream(0, "test"), counts).tolist()
    assert len(drawn) == sum(counts)
    longest, start = max(map(len, measured)), 0
    for count in counts:
        own = drawn[start : start + count]
        start += count
        for begin in range(0, count, longest):
            part = own[begin : begin + longest]
            exact = [rounds for rounds in measured if len(rounds) == len(part)]
            longer = [rounds[: len(part)] for rounds in measured if len(rounds) > len(part)]
            assert part in (exact or longer)


def test_all_requests_of_the_right_length_are_drawn_and_equally_often() -> None:
    drawn = Sequences([[1], [2], [3, 9], [4, 9]]).draw_requests(stream(0, "test"), [1] * 4000)
    assert np.bincount(drawn).tolist() == pytest.approx([0, 2000, 2000], abs=150)


def test_sequences_come_from_a_file_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "measured.csv").write_text("# rounds of two requests\n4, 5\n\n6\n")
    read = steps_from_mapping({"sequences": "measured.csv"}, file=tmp_path / "spec.yaml")
    assert read == Sequences(((4, 5), (6,)))
    (tmp_path / "measured.csv").write_text("4\nfour\n")
    with pytest.raises(InputError, match="must be a number of rounds") as refusal:
        steps_from_mapping({"sequences": "measured.csv"}, file=tmp_path / "spec.yaml")
    assert str(refusal.value.file).endswith("measured.csv:2")


# -- clients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"kind": "ar", "steps": {"mean": 2, "cv": 0}}, "x.kind"),
        ({"kind": "diffusion", "step": {}}, "x.step"),
        ({"kind": "diffusion", "block_size": 0, "steps": {}}, "x.block_size"),
        ({"kind": "diffusion"}, "x.steps"),
        ({"kind": "diffusion", "commit_rounds": 2, "steps": {}}, "x.commit_rounds"),
        ({"kind": "diffusion", "steps": []}, "x.steps"),
        ({"kind": "diffusion", "steps": [{"mean": 2, "cv": 0}]}, "x.steps[0].algorithm"),
        ({"kind": "diffusion", "steps": {"algorithm": 3, "mean": 2, "cv": 0}}, "x.steps.algorithm"),
        (
            {"kind": "diffusion", "steps": {"parameters": 3, "mean": 2, "cv": 0}},
            "x.steps.parameters",
        ),
    ],
)
def test_bad_diffusion_clients_are_refused_by_key(values: Any, key: str) -> None:
    with pytest.raises(InputError) as refusal:
        diffusion_client(values, key="x")
    assert refusal.value.key == key


def test_algorithm_and_parameters_choose_among_the_measured_steps() -> None:
    client = diffusion_client(
        {
            "kind": "diffusion",
            "steps": [
                {"algorithm": "A", "parameters": {"t": 0.9}, "mean": 3, "cv": 0},
                {"algorithm": "A", "parameters": {"t": 0.5}, "mean": 2, "cv": 0},
                {"algorithm": "B", "commit_rounds": 0, "mean": 8, "cv": 0},
            ],
        }
    )
    assert client.choose(None, {}).steps == MeanAndSpread(3, 0)
    assert client.choose("A", {"t": 0.5}).steps == MeanAndSpread(2, 0)
    assert client.choose(None, {"t": 0.5}).steps == MeanAndSpread(2, 0)
    assert client.choose("B", {}).commit_rounds == 0
    with pytest.raises(InputError, match=r"no step counts of C; it has those of A \(t 0.9\), A \(t 0.5\), B"):
        client.choose("C", {})
    with pytest.raises(InputError, match=r"no step counts of A \(t 0.7\)"):
        client.choose("A", {"t": 0.7})


STEPS = {"mean": 4, "cv": 0}
DIFFUSION = {"kind": "diffusion", "steps": STEPS}
CLIENT = {
    "rate_fraction": 1.0,
    "arrival": {"process": "poisson"},
    "input_distribution": {"type": "constant", "params": {"value": 9}},
    "output_distribution": {"type": "constant", "params": {"value": 9}},
}


def clients(top: dict[str, Any], *own: dict[str, Any]) -> list[Any]:
    each = [CLIENT | {"id": f"c{index}"} | values for index, values in enumerate(own)]
    spec = WorkloadSpec.model_validate({"aggregate_rate": 1.0, "num_requests": 9, "clients": each} | top)
    return [client.kind for client in spec.resolved()]


def test_a_spec_states_it_for_all_clients_and_a_client_for_itself() -> None:
    common, own = clients({"kind": "diffusion", "steps": STEPS}, {}, {"block_size": 64, "commit_rounds": 0})
    assert (common.block_tokens, common.measured[0].commit_rounds) == (32, 1)
    assert (own.block_tokens, own.measured[0].commit_rounds) == (64, 0)
    assert clients({}, {}, {"kind": "diffusion", "steps": STEPS})[0] is None
    assert clients({"kind": "diffusion", "steps": STEPS}, {"kind": "autoregressive"}) == [None]


@pytest.mark.parametrize(
    ("top", "own", "key"),
    [
        ({}, {"steps": STEPS}, "clients[0].steps"),
        ({"block_size": 32}, {}, "block_size"),
        (
            DIFFUSION,
            {"kind": "autoregressive", "block_size": 64},
            "clients[0].block_size",
        ),
        ({"kind": "diffusion"}, {"block_size": 64}, "clients[0].steps"),
    ],
)
def test_settings_of_diffusion_without_diffusion_are_refused(
    top: dict[str, Any], own: dict[str, Any], key: str
) -> None:
    with pytest.raises(InputError) as refusal:
        clients(top, own)
    assert refusal.value.key == key
