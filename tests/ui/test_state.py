"""What is on the screen is a configuration, and its command and YAML are that configuration."""

from __future__ import annotations

import random
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.api import configure
from blis_py.cli.flags.configure import configure as from_flags
from blis_py.cli.flags.parser import parse
from blis_py.cli.verbs.run import GROUPS
from blis_py.config.loader import as_dict, load_config
from blis_py.errors import InputError
from blis_py.pages.cost import cost_of
from blis_py.setup.setup import Setup
from blis_py.ui.base import opened
from blis_py.ui.controls import controls
from blis_py.ui.state import State, shown

PLAIN = {"model": "llama-3.1-8b", "rate": 20, "num_requests": 50}


def from_command(command: str, folder: Path) -> Any:
    """The configuration of a shell command, run in a folder."""
    for name, text in re.findall(r"cat > (\S+) <<'END'\n(.*?)\nEND\n", command, re.DOTALL):
        (folder / name).write_text(text + "\n")
    words = shlex.split(command.splitlines()[-1])
    assert words[:2] == ["blis", "run"]
    flags = parse(words[2:], GROUPS)
    assert flags is not None
    return from_flags(flags)


def same(one: Any, other: Any) -> bool:
    """Whether two configurations are equal, apart from where a derived file lies."""
    found = [as_dict(each) for each in (one, other)]
    for each in found:
        del each["given"]
        if each["workload"]["spec"]:
            each["workload"]["spec"] = Path(each["workload"]["spec"]).name
    return found[0] == found[1]


@pytest.mark.parametrize(
    "base", [PLAIN, {"workload": "mixed-slo", "model": "qwen3-14b", "slo": "ttft.p99=1s"}]
)
@pytest.mark.parametrize("seed", range(6))
def test_command_and_yaml_are_what_is_on_the_screen(
    base: dict[str, Any], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = configure(**base)
    rng, settings, rest = random.Random(seed), {}, {}
    for control in controls(config, Setup.of(config)):
        if control["why"] or control["kind"] == "targets" or rng.random() < 0.6:
            continue
        value = rng.choice(control["values"])
        if control["key"] in ("prompt", "output", "shape"):
            rest[control["key"]] = value
        else:
            settings[control["key"]] = value
    if settings.get("scheduler.prefix_cache") == "none" or settings.get("engine") == "vllm-0.10":
        settings["scheduler.policy"] = "sjf"  # models with states have no prefix cache there
    where = shown(config, State.read({"settings": settings, **rest}), tmp_path / "derived")
    for key, value in settings.items():
        if not (where.files and key.startswith("workload.")):
            found: Any = as_dict(where.config)
            for name in key.split("."):
                found = found[name]
            assert found == value
    assert same(from_command(where.command(), tmp_path), where.config)
    (tmp_path / "config.yaml").write_text(where.yaml())
    assert same(load_config(tmp_path / "config.yaml"), where.config)


@pytest.mark.parametrize("shape", ["steady", "a day", "a spike"])
@pytest.mark.parametrize(
    "base", [PLAIN | {"num_requests": 2000}, {"workload": "chat", "model": "llama-3.1-8b"}]
)
def test_a_shape_keeps_the_mean_rate(base: dict[str, Any], shape: str, tmp_path: Path) -> None:
    config = configure(**base)
    before, after = (
        len(Setup.of(shown(config, State(shape=each), tmp_path).config).table) for each in ("as given", shape)
    )
    assert after == pytest.approx(before, rel=0.1)


def test_a_spike_has_three_times_the_rate(tmp_path: Path) -> None:
    config = shown(configure(**PLAIN | {"num_requests": 5000}), State(shape="a spike"), tmp_path).config
    arrivals = Setup.of(config).table.arrival_ns / 1e9
    span = arrivals[-1]
    inside = ((arrivals > 0.47 * span) & (arrivals < 0.53 * span)).sum() / 0.06
    before = (arrivals < 0.4 * span).sum() / 0.4
    assert inside / before == pytest.approx(3, rel=0.2)


def test_lengths_are_scaled(tmp_path: Path) -> None:
    config = configure(workload="mixed-slo", model="qwen3-14b", num_requests=3000)
    one, two = (
        Setup.of(shown(config, State(prompt=factor, output=1 / factor), tmp_path).config).table
        for factor in (1.0, 2.0)
    )
    assert two.prompt_tokens.mean() / one.prompt_tokens.mean() == pytest.approx(2, rel=0.05)
    assert two.output_tokens.mean() / one.output_tokens.mean() == pytest.approx(0.5, rel=0.05)


def test_pools_have_sliders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [{"name": "fast", "count": 1}, {"name": "slow", "count": 2, "gpu": "l40s"}]
    config = load_config(overrides={"pools": pools, "model": "llama-3.1-8b"})
    keys = [control["key"] for control in controls(config, Setup.of(config))]
    assert {"pools.fast", "pools.slow"} < set(keys)
    assert "num_instances" not in keys
    where = shown(config, State.read({"pools": {"slow": 5}}), tmp_path / "derived")
    assert [pool.count for pool in where.config.pools] == [1, 5]
    (tmp_path / "config.yaml").write_text(where.yaml())
    assert same(load_config(tmp_path / "config.yaml"), where.config)
    monkeypatch.chdir(tmp_path)
    assert same(from_command(where.command(), tmp_path), where.config)


@pytest.mark.parametrize("given", [{"prefill_instances": 2, "decode_instances": 1}, {"xpyd": "2p1d"}])
def test_prefill_and_decode_have_sliders_of_their_own(given: dict[str, Any], tmp_path: Path) -> None:
    config = configure(**PLAIN, **given)
    found = {control["key"]: control["value"] for control in controls(config, Setup.of(config))}
    assert (found["pools.prefill"], found["pools.decode"]) == (2, 1)
    assert "num_instances" not in found
    own = configure(**PLAIN, **given, prefill_max_num_seqs=4, prefill_max_num_batched_tokens=8192)
    limits = {control["key"]: control["value"] for control in controls(own, Setup.of(own))}
    for key in ("scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"):
        assert limits[key] == found[key], "of the configuration, not of its first pool"
    where = shown(config, State.read({"pools": {"decode": 3}}), tmp_path)
    assert {pool.name: pool.count for pool in where.config.all_pools} == {"prefill": 2, "decode": 3}
    assert same(from_command(where.command(), tmp_path), where.config)
    assert cost_of(as_dict(where.config)).gpus == 5


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ([], "must be an object"),
        ({"x": 1}, "state.x: unknown key"),
        ({"settings": {"workload.trace": "/etc/passwd"}}, "workload.trace: is not for the page to change"),
        ({"settings": {"model_config": "/etc/passwd"}}, "model_config: is not for the page to change"),
        ({"settings": {"tp": "many"}}, "tp"),
        ({"settings": {"num_instances": -3}}, "num_instances"),
        ({"settings": {"gpu": "abacus"}}, "abacus"),
        ({"settings": {"slo": "ttft"}}, "slo: must be a list"),
        ({"settings": {"slo": ["nonsense"]}}, "nonsense"),
        ({"prompt": 1e9}, "state.prompt: must be a factor"),
        ({"prompt": True}, "state.prompt"),
        ({"shape": "a star"}, "no such shape"),
        ({"pools": {"none": 1}}, "pools.none"),
    ],
)
def test_nonsense_is_one_clear_error(state: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        Setup.of(shown(configure(**PLAIN), State.read(state), tmp_path).config)


@pytest.mark.parametrize("key", ["gpu", "engine", "model"])
def test_no_file_is_reachable_by_a_name(key: str, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("{}")
    with pytest.raises(InputError, match="not one of the choices"):
        shown(configure(**PLAIN), State.read({"settings": {key: str(own)}}), tmp_path)


def test_what_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = blis.run(**PLAIN)
    result.save(tmp_path / "run", plots=False)
    assert same(opened("run", None), result.config)
    assert opened("run/trace.csv", None).workload.trace == str(tmp_path / "run" / "trace.csv")
    assert same(opened("run/config.yaml", None), result.config)
    (tmp_path / "spec.yaml").write_text("aggregate_rate: 1\nclients: []\n")
    assert opened("spec.yaml", configure(model="qwen3-14b")).workload.spec == str(tmp_path / "spec.yaml")
    assert opened(None, None).workload.spec == "mixed-slo"
    for path in ("none", "."):
        with pytest.raises(InputError):
            opened(path, None)


def test_a_trace_has_a_rate_but_no_lengths(tmp_path: Path) -> None:
    blis.run(**PLAIN).save(tmp_path / "run", plots=False)
    config = opened(str(tmp_path / "run" / "trace.csv"), None)
    found = {control["key"]: control for control in controls(config, Setup.of(config))}
    assert found["workload.rate"]["why"] == ""
    assert "recorded trace" in found["prompt"]["why"]
    with pytest.raises(InputError, match="are as they are"):
        shown(config, State(prompt=2.0), tmp_path)
    faster = shown(config, State({"workload.rate": 40.0}), tmp_path)
    assert same(replace(faster.config, workload=config.workload), config)
