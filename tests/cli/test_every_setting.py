"""Every value of every setting, set in any way under any preset, is what the run has; or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.config.engine import load_engine, names
from blis_py.config.layers import flatten
from blis_py.config.loader import as_dict, load_config
from blis_py.config.models import RunConfig
from blis_py.core.checks import choices_of
from blis_py.core.settings import extended
from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml

SMALL: dict[str, Any] = {"model": "llama-3.1-8b", "seed": 1, "workload.rate": 30, "workload.num_requests": 12}
NOT_SCALAR = {"given", "pools", "links"}
OTHERS: dict[str, Any] = {
    "engine": "trtllm",
    "gpu": "l40s",
    "model": "qwen3-14b",
    "horizon": "30s",
    "latency.model": "roofline",
    "latency.alpha_coeffs": [9000.0, 0.0, 0.0],
    "latency.linear": {"gpu": {"step": 1e6}},
    "latency.expert_load": "steep",
    "routing.policy": "least-loaded",
    "admission.policy": "token-bucket",
    "gateway.saturation_detector": "utilization",
    "gateway.dispatch_order": "slo-deadline",
    "gateway.fairness_policy": "round-robin",
    "disaggregation.handoff": "nixl-pull",
    "disaggregation.decider": "always",
    "slo": ["ttft.p99=1s"],
    "goodput": ["ttft:500"],
}


def settings_of(model: type, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    for f in fields(extended(model)):
        if isinstance(f.type, type) and is_dataclass(f.type):
            yield from settings_of(f.type, f"{prefix}{f.name}.")
        elif f.name not in NOT_SCALAR:
            yield prefix + f.name, f


SETTINGS = dict(settings_of(RunConfig))
OF_PRESETS = sorted({key for name in names() for key in load_engine(name).on({"gpu": "h100"})})


def another(key: str, now: Any) -> Any:
    """A value of a setting that it does not have now."""
    if key in OTHERS:
        return OTHERS[key]
    spec = SETTINGS[key]
    kind, choices = str(spec.type), choices_of(spec.metadata)
    if choices:
        return next(each for each in choices if each != now)
    if spec.type is bool:
        return not now
    if "tuple[float" in kind:
        return [7.5]
    if "dict[str, float" in kind:
        return {"standard": 0.5}
    if "dict" in kind:
        return {"standard": 5}
    if "float" in kind:
        return (now or 1.0) / 2
    return (now or 2) + 1 if "int" in kind else "/nosuch"


def value_of(config: RunConfig, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return list(value) if isinstance(value, tuple) else value


def by_sections(tmp_path: Path, settings: Mapping[str, Any]) -> RunConfig:
    return load_config(overrides=settings)


def by_flags(tmp_path: Path, settings: Mapping[str, Any]) -> RunConfig:
    return load_config(overrides=[(f"--{key}", key, value) for key, value in settings.items()])


def by_file(tmp_path: Path, settings: Mapping[str, Any]) -> RunConfig:
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = value
    (tmp_path / "run.yaml").write_text(dump_yaml(tree))
    return load_config(tmp_path / "run.yaml")


WAYS = (by_sections, by_flags, by_file)


def in_effect(way: Callable[..., RunConfig], folder: Path, settings: Mapping[str, Any], key: str) -> bool:
    """Whether it is what the configuration has, which is the alternative to an error."""
    try:
        config = way(folder, settings)
    except InputError:
        return False
    assert value_of(config, key) == settings[key], f"{key} under {settings.get('engine')}"
    return True


@pytest.mark.parametrize("way", WAYS)
def test_an_explicit_value_is_the_one_of_the_run_or_is_refused(
    way: Callable[..., RunConfig], tmp_path: Path
) -> None:
    now = load_config()
    taken = [
        key
        for key in SETTINGS
        if in_effect(way, tmp_path, SMALL | {key: another(key, value_of(now, key))}, key)
    ]
    assert len(taken) > 60


@pytest.mark.parametrize(
    ("engine", "way"), [*((name, by_sections) for name in names()), ("sglang", by_flags), ("vllm", by_file)]
)
def test_an_explicit_value_goes_before_that_of_every_preset(
    engine: str, way: Callable[..., RunConfig], tmp_path: Path
) -> None:
    own = load_config(overrides={"engine": engine})
    taken = [
        key
        for key in OF_PRESETS
        if in_effect(way, tmp_path, SMALL | {"engine": engine, key: another(key, value_of(own, key))}, key)
    ]
    assert len(taken) > len(OF_PRESETS) / 2


@pytest.mark.parametrize("engine", names())
def test_a_preset_is_its_settings_and_nothing_else(engine: str) -> None:
    """The same settings under the name of another engine: the same run."""
    own = load_config(overrides=SMALL | {"engine": engine})
    leaves = flatten(as_dict(own), RunConfig)
    del leaves["given"]
    known = blis.run(own).requests
    for other in ("blis", "sglang", "vllm-0.10"):
        config = load_config(overrides=leaves | {"engine": other})
        assert {key: value_of(config, key) for key in OF_PRESETS} == {
            key: value_of(own, key) for key in OF_PRESETS
        }
        assert blis.run(config).requests.equals(known), f"{engine} under {other}"


USELESS = [
    ({"latency.kernels": "sglang", "latency.model": "roofline"}, "latency.kernels", "roofline"),
    ({"graph_memory_gib": 2.0, "memory": "sglang"}, "graph_memory_gib", "memory of sglang"),
    ({"gateway.queue_shedding": True}, "gateway.queue_shedding", "without flow control"),
    ({"admission.gaie_qd_threshold": 3.0}, "admission.gaie_qd_threshold", "always-admit"),
]


@pytest.mark.parametrize(("settings", "key", "why"), USELESS, ids=[key for _, key, _ in USELESS])
def test_what_changes_nothing_is_refused_as_a_flag_and_noted_from_a_file(
    settings: dict[str, Any], key: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"{key}: has no effect .*{why}"):
        by_flags(tmp_path, settings)
    notes = blis.build(by_file(tmp_path, SMALL | settings)).notes
    assert any(note.startswith(f"{key} has no effect") and why in note for note in notes)


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"scheduler.receive_interval": 3}, "scheduler.receive_interval has no effect on running-first"),
        ({"scheduler.prompt_wait_steps": 3}, "scheduler.prompt_wait_steps has no effect on running-first"),
        ({"attention_dp_timeout_iters": 3}, "attention_dp_timeout_iters has no effect without attention DP"),
        (
            {"latency.fused_norms": True, "latency.model": "roofline"},
            "latency.fused_norms has no effect on roofline",
        ),
        ({"drain": True}, "drain has no effect without the horizon of a workload spec"),
        ({"link_gbps": 100.0}, "link_gbps has no effect on instances of one GPU"),
        ({"memory": "sglang", "scheduler.num_kv_blocks": 99}, "memory has no effect: num_kv_blocks is given"),
        ({"latency.moe_backend": "triton"}, "latency.moe_backend has no effect on a model without experts"),
    ],
)
def test_what_changes_nothing_in_common_commands_is_noted(
    settings: dict[str, Any], note: str, tmp_path: Path
) -> None:
    assert note in blis.build(by_flags(tmp_path, SMALL | settings)).notes
    assert note not in blis.build(by_flags(tmp_path, SMALL)).notes
