"""profile.yaml: what is written is read back, and damage is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from latency_cases import fitted_profile

from blis_py.errors import InputError
from blis_py.latency import build
from blis_py.latency.fitted_profile import (
    Accuracy,
    FittedProfile,
    profile_path,
    read_profile,
    write_profile,
)
from blis_py.latency.fitted_shape import facts_of, shape_of
from blis_py.models.model_shape import load_model

META = {"device": "cpu", "device_kind": "cpu", "model": "somewhere/tiny", "graph_buckets": [1, 2]}


def test_a_written_profile_is_read_back(tmp_path: Path) -> None:
    profile = fitted_profile()
    error = Accuracy(steps=10, mape=0.031, bias=-0.002, p95=0.1, total=0.01)
    regimes = {name: replace(fit, cross_validated=error) for name, fit in profile.regimes.items()}
    profile = replace(profile, regimes=regimes, sources={"decode": 7, "mixed": 3})
    path = write_profile(tmp_path / "deep" / "folder", META, profile)
    found = read_profile(path.parent)
    assert found.meta == META
    assert found.sources == profile.sources
    assert found.steps == 10
    for name, fit in profile.regimes.items():
        again = found.regimes[name]
        assert again.gpu == pytest.approx(fit.gpu)
        assert again.correction == fit.correction
        assert again.domain == fit.domain
        assert again.cross_validated == error
        assert again.gpu_draws[1] == pytest.approx(fit.gpu_draws[1])
    assert found.describe() == "fitted: 10 steps of somewhere/tiny measured on cpu, MAPE 3.1% cross-validated"


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_profile(tmp_path / "a", META, fitted_profile()).read_bytes()
    again = write_profile(tmp_path / "b", META, read_profile(tmp_path / "a")).read_bytes()
    assert first == again


def with_launching() -> FittedProfile:
    profile = fitted_profile()
    launched = {
        name: replace(
            fit, launching={"step": 1e5, "seqs": 20.5}, launching_draws=((9e4, 20.0), (1.1e5, 21.0))
        )
        for name, fit in profile.regimes.items()
    }
    return replace(profile, regimes=launched, scan_ns=12.5, repeated_read_ns=0.25)


def test_prices_of_launching_and_of_masks_are_read_back(tmp_path: Path) -> None:
    path = write_profile(tmp_path, META, with_launching())
    found = read_profile(path.parent)
    assert found.regimes == read_profile(path).regimes
    for fit in found.regimes.values():
        assert fit.launching == {"step": 1e5, "seqs": 20.5}
        assert fit.launching_draws == ((9e4, 20.0), (1.1e5, 21.0))
    assert (found.scan_ns, found.repeated_read_ns) == (12.5, 0.25)
    values = yaml.safe_load(path.read_text())
    values["fit"]["regimes"]["eager"]["launching_draws"].pop()
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(InputError, match="launching_draws: as many draws as gpu_draws are needed"):
        read_profile(path.parent)


def damage(keys: tuple[str, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        *path, last = keys
        for key in path:
            values = values[key]
        if value is None:
            del values[last]
        else:
            values[last] = value

    return change


EAGER = ("fit", "regimes", "eager")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage(("fit",), None), "nothing has been fitted here; run `blis profile fit"),
        (damage(("fit", "schema"), 7), "fit of another schema"),
        (damage(EAGER, None), "no eager steps"),
        (damage((*EAGER, "gpu"), None), "fit.regimes.eager.gpu: missing key"),
        (damage((*EAGER, "gpu", "magic"), 1.0), "fit.regimes.eager.gpu.magic: unknown term"),
        (
            damage((*EAGER, "gpu", "step"), -1.0),
            "fit.regimes.eager.gpu.step: must be a number from 0 to 1e+15",
        ),
        (damage((*EAGER, "gpu_draws"), [[1.0]]), "a draw does not fit"),
        (damage((*EAGER, "correction", "tokens"), [1.0]), "not a table over its axes"),
        (
            damage((*EAGER, "correction", "ratio"), [[1.0] * 3, [1.0] * 3, [1.0] * 2]),
            "not a table over its axes",
        ),
        (
            damage((*EAGER, "correction", "tokens"), [1.0, 64.0, 1.5e15]),
            "must be a number from 0 to 1e+15",
        ),
        (damage(("fit", "regimes", "compiled"), {}), "fit.regimes.compiled: unknown regime"),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = write_profile(tmp_path, META, fitted_profile())
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_profile(tmp_path)
    assert message in str(error.value)
    assert "profile.yaml" in str(error.value)


def test_a_folder_without_a_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--profile: no profile here"):
        profile_path(tmp_path)


@pytest.mark.parametrize("as_shape", [True, False], ids=["fields of a shape", "HuggingFace config"])
def test_the_model_stands_in_the_profile(as_shape: bool) -> None:
    shape = load_model("qwen3-14b")
    config = {
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 17408,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    meta = {"model": "Qwen/qwen3-14b", "model_config": facts_of(shape) if as_shape else config}
    assert shape_of(meta) == shape
    assert shape_of({"model": "x"}) is None
    with pytest.raises(InputError, match="model_config: must be a mapping"):
        shape_of({"model_config": 3})


def test_a_quantised_shape_comes_back_from_a_profile_as_it_went_in() -> None:
    shape = load_model("gpt-oss-120b")
    text = yaml.safe_dump(facts_of(shape))
    assert shape_of({"model": "gpt-oss-120b", "model_config": yaml.safe_load(text)}) == shape
    with pytest.raises(InputError, match=r"model_config\.weight_bytes: unknown key"):
        shape_of({"model_config": {**facts_of(shape), "weight_bytes": 1.0}})


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "qwen3.5-27b"])
def test_latent_and_linear_attention_are_read_back(model: str) -> None:
    shape = load_model(model)
    facts = yaml.safe_load(yaml.safe_dump(facts_of(shape)))
    assert shape_of({"model": model, "model_config": facts}) == shape


def test_a_profile_of_another_model_is_refused() -> None:
    profile = replace(
        fitted_profile(), meta={"model": "a", "model_config": facts_of(load_model("qwen3-14b"))}
    )
    with pytest.raises(
        InputError, match=r"was measured on qwen3-14b \(layers 40\), not on qwen3-8b \(layers 36\)"
    ):
        build("fitted", shape=load_model("qwen3-8b"), gpu=None, profile=profile)
