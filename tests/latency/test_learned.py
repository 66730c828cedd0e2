"""A run whose model, GPU, precision, TP degree or lengths `trained` did not learn on says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blis_py import api
from blis_py.hardware.gpu import load_gpu
from blis_py.latency.learned import Learned, kind_of, learned_on, read_learned
from blis_py.latency.trained import Trained, bundled_training
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import Weights

DENSE, SPARSE = load_model("llama-3.1-8b"), load_model("qwen3-30b-a3b")
H100, B200, A100 = load_gpu("h100"), load_gpu("b200"), load_gpu("a100-80")
LEARNED = learned_on([(DENSE, H100, 1, 900), (DENSE, H100, 4, 5_000), (SPARSE, B200, 1, 700)])


def quantised(shape: ModelShape, size: float, arithmetic: str) -> ModelShape:
    return replace(shape, weights=Weights.of(size, arithmetic))


def test_what_was_learned_on_is_reported_by_kind_and_format() -> None:
    degrees = {"dense 16 bits": {"H100": (1, 4)}, "sparse 16 bits": {"B200": (1,)}}
    assert Learned(degrees, 5_000) == LEARNED
    assert read_learned({"tp": degrees, "longest_tokens": 5_000}) == LEARNED


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (DENSE, "dense 16 bits"),
        (quantised(DENSE, 1.0, "fp8"), "dense FP8"),
        (quantised(SPARSE, 1.0, "int8"), "sparse INT8"),
        (quantised(DENSE, 0.5, "fp16"), "dense 4 bits"),
        (quantised(SPARSE, 0.5, "fp4"), "sparse FP4"),
    ],
)
def test_the_format_is_that_in_which_the_feed_forward_is_multiplied(shape: ModelShape, named: str) -> None:
    assert kind_of(shape) == named


def test_within_it_there_is_nothing_to_tell() -> None:
    assert LEARNED.beyond(DENSE, H100, 4, 5_000) == ""
    assert Learned().beyond(SPARSE, A100, 16, 10**6) == "", "nothing is known of other coefficients"


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ((DENSE, A100, 1), "dense models in 16 bits on A100-80"),
        ((SPARSE, H100, 1), "mixtures of experts in 16 bits on H100"),
        ((quantised(DENSE, 1.0, "fp8"), H100, 1), "dense models in FP8 on H100"),
        ((DENSE, H100, 2), "dense models in 16 bits on H100 TP2"),
        ((SPARSE, B200, 4), "mixtures of experts in 16 bits on B200 TP4"),
        ((DENSE, H100, 1, 5_001), "contexts of 5,001 tokens"),
    ],
)
def test_whatever_is_new_is_named_in_a_line_with_what_was_learned_on(case: tuple, named: str) -> None:
    line = LEARNED.beyond(*case)
    assert f"did not learn on: {named} (it learned on dense models in 16 bits on H100; " in line
    assert "TP 1, 4; contexts of up to 5,000 tokens" in line
    assert "\n" not in line


def test_the_bundled_coefficients_say_what_they_were_learned_on() -> None:
    learned = bundled_training().learned
    assert "H100" in learned.tp["dense FP8"]
    assert "B200" not in learned.tp["dense 16 bits"]
    assert learned.tp["dense 16 bits"]["RTX 4090"] == (1,)
    assert learned.longest_tokens > 8_192
    assert Trained(DENSE, H100, 2).beyond() == ""


def test_a_run_has_the_line_among_its_notes_and_only_of_trained() -> None:
    def notes_of(**settings: object) -> list[str]:
        built = api.build(**{"model": "llama-3.1-8b", "num_requests": 10, **settings})
        return [note for note in built.notes if "did not learn on" in note]

    assert notes_of() == []
    assert len(notes_of(gpu="a100-80")) == 1
    long = notes_of(prompt_tokens=60_000, prompt_tokens_max=60_000, prompt_tokens_stdev=0, output_tokens=9)
    assert "did not learn on: contexts of 60,0" in long[0]
    assert notes_of(gpu="a100-80", latency_model="roofline") == []


def test_degrees_are_listed_in_order_however_they_were_measured() -> None:
    qwen, h100 = load_model("qwen3-14b"), load_gpu("h100")
    learned = learned_on((qwen, h100, tp, 1000 * tp) for tp in (8, 1, 4, 1))
    assert learned == Learned({kind_of(qwen): {h100.name: (1, 4, 8)}}, 8000)
