"""Load as inference-perf makes it, from its configuration file or from a workload spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.workload.generate import generate
from blis_py.workload.spec import load_spec

STAGES = [{"rate": 8.0, "duration": 30}, {"rate": 20.0, "duration": 10}]
SHARED = {
    "num_unique_system_prompts": 9,
    "num_users_per_system_prompt": 5,
    "system_prompt_len": 100,
    "question_len": 447,
    "output_len": 248,
}


def spec_of(folder: Path, **changes: Any) -> Path:
    values = {"stages": STAGES, "shared_prefix": SHARED} | changes
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({"version": "2", "inference_perf": values}))
    return path


def config_of(folder: Path, **changes: Any) -> Path:
    """As a user of inference-perf has it."""
    new = {"num_unique_system_prompts": "num_groups", "num_users_per_system_prompt": "num_prompts_per_group"}
    shared = {new.get(key, key): value for key, value in SHARED.items()}
    values = {
        "load": {"type": "constant", "stages": STAGES},
        "api": {"type": "completion", "streaming": True},
        "server": {"type": "vllm", "model_name": "any", "base_url": "http://0.0.0.0:8000"},
        "data": {"type": "shared_prefix", "shared_prefix": shared},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values | changes))
    return path


def requests(path: Path, **options: Any) -> RequestTable:
    return generate(load_spec(path), **options)


def test_every_stage_has_exactly_its_requests_at_random_times(tmp_path: Path) -> None:
    counts = set()
    for seed in range(5):
        seconds = requests(spec_of(tmp_path), seed=seed).arrival_ns / 1e9
        assert np.histogram(seconds, [0, 30, 40])[0].tolist() == [240, 200]
        counts.add((seconds < 15).sum())
    assert len(counts) > 2


def test_every_system_prompt_has_its_share_and_its_text(tmp_path: Path) -> None:
    table = requests(spec_of(tmp_path))
    assert sorted(np.bincount(table.tenant.codes)) == [48] * 3 + [49] * 4 + [50] * 2
    assert set(table.prompt_tokens.tolist()) == {547}
    assert set(table.output_tokens.tolist()) == {248}
    begins = [table.contents[number][0] for number in table.content.tolist()]
    assert [f"{tenant}/0" for tenant in table.tenant.to_list()] == [segment for segment, _ in begins]
    assert {tokens for _, tokens in begins} == {100}
    assert set(table.slo_class.to_list()) == {"standard"}


def test_a_configuration_and_the_spec_that_states_the_same_are_the_same_requests(tmp_path: Path) -> None:
    one, other = requests(config_of(tmp_path)), requests(spec_of(tmp_path))
    assert one.arrival_ns.tolist() == other.arrival_ns.tolist()
    assert one.prefix_group.to_list() == other.prefix_group.to_list()


@pytest.mark.parametrize("flag", ["--workload", "--workload-spec", "--trace"])
def test_a_configuration_is_known_for_what_it_is(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--model", "qwen3-14b", flag, str(config_of(tmp_path)), "--no-cross-check"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["cluster"]["requests"]["completed"] == 440
    assert "config.yaml is read as a configuration of inference-perf" in err


def test_lengths_drawn_at_random(tmp_path: Path) -> None:
    side = {"mean": 300, "std_dev": 50, "min": 10, "max": 400, "total_count": 10}
    path = config_of(
        tmp_path,
        data={"type": "random", "input_distribution": side, "output_distribution": side | {"mean": 60}},
    )
    table = requests(path)
    assert len(table) == 440
    assert table.prompt_tokens.mean() == pytest.approx(300, abs=15)
    assert table.prompt_tokens.max() <= 400
    assert table.output_tokens.mean() == pytest.approx(65, abs=15)


def test_the_converted_spec_has_as_many_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source in (config_of(tmp_path), spec_of(tmp_path)):
        assert main(["convert", "inference-perf", "--spec", str(source)]) == 0
        written = tmp_path / "written.yaml"
        written.write_text(capsys.readouterr().out)
        assert requests(written).arrival_ns.tolist() == requests(source).arrival_ns.tolist()


def test_stages_and_prompts_alone_are_converted_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"stages": STAGES, "shared_prefix": SHARED}))
    assert main(["convert", "inference-perf", "--spec", str(path)]) == 0
    assert len(yaml.safe_load(capsys.readouterr().out)["clients"]) == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"load": {"type": "concurrent", "stages": STAGES}}, "load.type: no such load here"),
        ({"load": {"type": "constant"}}, "load.stages: must be a list of stages"),
        ({"data": {"type": "shareGPT"}}, "data.type: its texts are not here"),
        ({"data": {"type": "shared_prefix"}}, "data.shared_prefix: missing key"),
        ({"data": {"type": "random"}}, "data.input_distribution: missing key"),
        ({"lod": {}}, "lod: unknown key of inference-perf"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        load_spec(config_of(tmp_path, **changes))
    assert message in str(error.value)


def test_an_exact_count_means_poisson_arrivals_in_a_time_that_ends(tmp_path: Path) -> None:
    client = {
        "id": "a",
        "rate_fraction": 1,
        "arrival": {"process": "poisson", "exact_count": True},
        "input_distribution": {"type": "constant", "params": {"value": 9}},
        "output_distribution": {"type": "constant", "params": {"value": 9}},
    }
    path = tmp_path / "spec.yaml"
    path.write_text(
        yaml.safe_dump({"version": "2", "aggregate_rate": 2, "num_requests": 9, "clients": [client]})
    )
    with pytest.raises(InputError, match="means a time that ends"):
        load_spec(path)
    client["lifecycle"] = {
        "windows": [{"start_us": 0, "end_us": 10**7, "arrival": {"process": "constant", "exact_count": True}}]
    }
    path.write_text(yaml.safe_dump({"version": "2", "aggregate_rate": 2, "clients": [client]}))
    with pytest.raises(InputError, match="has no meaning for constant"):
        load_spec(path)


def test_conversations_have_as_many_turns_as_their_stage_has_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One for each user and stage, whose turns wait for the answers before them."""
    path = spec_of(tmp_path, shared_prefix=SHARED | {"enable_multi_turn_chat": True, "output_len": 9})
    assert main(["run", "--model", "qwen3-14b", "--workload", str(path), "--no-cross-check"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cluster"]["requests"]["completed"] == 440
    assert report["sessions"]["sessions"] == 90
