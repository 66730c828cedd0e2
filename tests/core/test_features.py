"""The schema of step features and the classes that have them agree, and what is derived forgets none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from typing import Any

import numpy as np
import pytest

from blis_py.calibrate.fit.accuracy import features_as
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_features import ROUND_FEATURES, DiffusionFeatures
from blis_py.core.features import (
    FEATURE_NAMES,
    FEATURES,
    SELDOM,
    Feature,
    StepFeatures,
    features_from,
    further_names,
)
from blis_py.core.scheduler import Scheduler
from blis_py.errors import InputError
from blis_py.latency.fitted_beyond import inside
from blis_py.traces.samples import samples_from

KINDS: list[tuple[type[StepFeatures], Mapping[str, Feature]]] = [
    (StepFeatures, FEATURES),
    (DiffusionFeatures, FEATURES | ROUND_FEATURES),
]
GROWING = {"decode_kv_tokens": 3, "max_context": 1}
"""By how much a step of 3 decodes grows each; nothing else does."""


@pytest.fixture(autouse=True)
def _further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those of the package there is one from outside, which grows by the number of decodes."""
    entry = Feature("bytes", grows="decode_seqs", whole=False, compute=lambda step, scheduler: 0.5)
    monkeypatch.setitem(FEATURES, "spilled_bytes", entry)


def every(kind: type[StepFeatures]) -> dict[str, Any]:
    """Another value for each feature."""
    names = (*kind().names(), *further_names())
    return {name: 2 + place for place, name in enumerate(names)} | {"spilled_bytes": 0.5}


@pytest.mark.parametrize(("kind", "schema"), KINDS)
def test_every_attribute_has_an_entry_and_every_entry_an_attribute(
    kind: type[StepFeatures], schema: Mapping[str, Feature]
) -> None:
    declared = [field.name for field in fields(kind)]
    assert [name for name in declared if name != "further"] == list(kind().names())
    assert set(kind().names()) == set(schema) - set(further_names())
    kept = kind(**dict.fromkeys(kind().names(), 7))  # type: ignore[arg-type]
    assert kept.row(kind().names()) == [7] * len(kind().names())
    assert all(type(kind()[name]) is (int if schema[name].whole else float) for name in kind().names())
    assert all(entry.unit for entry in schema.values())


def test_the_constructor_takes_keywords_only() -> None:
    parameters = signature(StepFeatures.__init__).parameters
    assert list(parameters)[1:] == [*FEATURE_NAMES, *SELDOM, "further"]
    with pytest.raises(TypeError):
        StepFeatures(1)  # type: ignore[misc]
    with pytest.raises((TypeError, AttributeError)):
        DiffusionFeatures(wrong=1)


@pytest.mark.parametrize("kind", [StepFeatures, DiffusionFeatures])
def test_no_feature_is_lost_on_any_way(kind: type[StepFeatures]) -> None:
    """By name, with other values, with and without another step, and out of columns."""
    values = every(kind)
    step = features_from(kind, values)
    assert {name: step[name] for name in values} == values
    assert step.row(list(values)) == list(values.values())
    for name in values:
        assert step.but({name: 99})[name] == 99
        assert step.but({name: 99}) != step
    assert step.but({}) == step + kind() == step - kind() == step
    doubled = step + step
    assert {name: doubled[name] for name in values} == {
        name: value if name == "max_context" else 2 * value for name, value in values.items()
    }
    assert (doubled - step).but({"max_context": step.max_context}) == step
    columns = {name: np.array([value, 0]) for name, value in values.items()}
    samples = samples_from({}, columns, 2)  # type: ignore[arg-type]
    assert next(iter(features_as(kind, samples))) == step


def test_a_later_step_has_every_feature_grown_by_its_change() -> None:
    values = {name: value for name, value in every(StepFeatures).items() if not name.startswith("prefill_")}
    first = features_from(StepFeatures, values | {"decode_seqs": 3})
    growing = GROWING | {"spilled_bytes": 3}
    fourth = first.after(4)
    assert {name: fourth[name] - first[name] for name in values} == {
        name: 4 * growing.get(name, 0) for name in values
    }


def test_an_unknown_longest_context_stays_unknown() -> None:
    assert StepFeatures(decode_seqs=1, max_context=-1).after(9).max_context == -1


def test_a_step_cut_to_what_was_measured_keeps_what_has_no_limit() -> None:
    step = features_from(StepFeatures, every(StepFeatures))
    cut = inside(step, [("decode_kv_tokens", 1), ("spilled_bytes", 0)])
    assert cut == step.but({"decode_kv_tokens": 1})


def test_a_feature_of_every_step_cannot_be_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "decode_seqs", Feature("tokens", compute=lambda step, scheduler: 1))
    with pytest.raises(InputError, match="another name"):
        Scheduler(SchedulerConfig(num_kv_blocks=10, max_model_len=100))


def test_a_further_feature_needs_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "mine", Feature("tokens"))
    with pytest.raises(InputError, match="no function computes it"):
        Scheduler(SchedulerConfig(num_kv_blocks=10, max_model_len=100))
