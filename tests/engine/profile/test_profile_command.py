"""`blis engine profile` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from profile_cases import AR, DIFFUSION

from blis_py.cli import main
from blis_py.traces.samples import medians, read_samples
from engine import yardstick
from engine.profile.provenance import device_name, machine, model_facts, model_name
from engine.revision import revision

QUICK = ["engine", "profile", "--quick", "--no-fit", "--device", "cpu", "--max-num-seqs", "2"]
QUICK += ["--num-kv-blocks", "120"]


def test_a_profile_holds_samples_and_where_they_are_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, "--model", AR, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path)
    samples = read_samples(tmp_path / "samples.csv.gz")
    runs = {"served", "queued"}
    sources = {"decode", "skewed", "prefill", "mixed", "host", "shared", "sentinel"} | runs
    assert sources == set(samples["source"].tolist())
    still = ~np.isin(samples["source"], list(runs))
    assert (medians(samples.where(still))["repetition"] >= 2).all()
    assert (samples["total_ns"] >= samples["gpu_ns"]).all()
    meta = yaml.safe_load((tmp_path / "profile.yaml").read_text())
    assert meta == json.loads(json.dumps(samples.meta))
    assert (meta["model"], meta["device_kind"], meta["clock"], meta["threads"]) == (
        "tiny-ar",
        "cpu",
        "cpu",
        1,
    )
    assert (meta["block_size"], meta["num_kv_blocks"], meta["max_num_seqs"]) == (16, 120, 2)
    assert meta["model_config"]["hidden_size"] == 128
    assert meta["counts"]["steps"] == len(samples)
    assert "fit" not in meta
    arguments = [argument for argument in QUICK if argument != "--no-fit"]
    assert main([*arguments, "--model", AR, "--out", str(tmp_path)]) == 0  # nothing is left to measure
    fitted = yaml.safe_load((tmp_path / "profile.yaml").read_text())["fit"]
    assert "scan_ns" in fitted, "what looking a waiting request up takes is learned from the profile alone"
    assert {"dtype", "tp", "torch", "date", "drift", "max_model_len", "graph_buckets"} <= set(meta)


def test_the_same_command_goes_on_and_another_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [*QUICK, "--model", AR, "--out", str(tmp_path)]
    assert main([*common, "--rounds", "1"]) == 0
    assert main([*common, "--budget", "0.001"]) == 0
    meta = read_samples(tmp_path / "samples.csv.gz").meta
    assert (meta["rounds"], meta["visits"]) == (1, 1)
    assert main(common) == 0
    meta = read_samples(tmp_path / "samples.csv.gz").meta
    assert (meta["rounds"], meta["visits"]) == (2, 0)
    capsys.readouterr()
    assert main([*common, "--seed", "5"]) == 2
    assert "seed" in capsys.readouterr().err


@pytest.mark.long
def test_a_profile_and_runs_by_the_steady_clock_have_one_pace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yardstick, "_CYCLES", 2)
    profile, run = str(tmp_path / "profile"), str(tmp_path / "run")
    common = [*QUICK, "--model", AR, "--clock", "steady", "--out", profile]
    assert main([*common, "--rounds", "1"]) == 0
    first = read_samples(tmp_path / "profile" / "samples.csv.gz").meta
    without_prompts, with_prompts = first["yardstick_us"]
    assert first["clock"] == "steady"
    assert 0 < without_prompts < with_prompts
    assert main([word for word in common if word != "--no-fit"]) == 0  # goes on
    assert read_samples(tmp_path / "profile" / "samples.csv.gz").meta["yardstick_us"] == first["yardstick_us"]

    served = [
        "engine",
        "run",
        "--model",
        AR,
        "--device",
        "cpu",
        "--num-kv-blocks",
        "120",
        "--clock",
        "steady",
    ]
    served += ["--rate", "50", "--num-requests", "4", "--prompt-tokens", "20", "--output-tokens", "5"]
    assert main([*served, "--yardstick", profile, "--out", run]) == 0
    assert (
        yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["yardstick_us"] == first["yardstick_us"]
    )
    assert main(["profile", "validate", profile, "--step-log", run]) == 0
    other = str(tmp_path / "other")
    assert main([*served, "--yardstick", f"{2 * without_prompts},{with_prompts}", "--out", other]) == 0
    capsys.readouterr()
    assert main(["profile", "validate", profile, "--step-log", other]) == 2
    assert "yardstick_us" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("profile", "message"), [({"clock": "cpu"}, "--clock steady"), (None, "no profile here")]
)
def test_only_a_steady_profile_has_a_pace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], profile: dict[str, str] | None, message: str
) -> None:
    if profile is not None:
        (tmp_path / "profile.yaml").write_text(yaml.safe_dump(profile))
    flags = ["--clock", "steady", "--yardstick", str(tmp_path), "--num-requests", "1", "--rate", "1"]
    assert (
        main(["engine", "run", "--model", AR, "--device", "cpu", *flags, "--out", str(tmp_path / "run")]) == 2
    )
    error = capsys.readouterr().err
    assert message in error
    assert str(tmp_path) in error


def test_a_pace_is_two_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--clock", "steady", "--yardstick", "5000", "--num-requests", "1", "--rate", "1"]
    command = ["engine", "run", "--model", AR, "--device", "cpu", *flags, "--out", str(tmp_path / "run")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "--yardstick" in error
    assert "5000,20000" in error


def test_rounds_that_are_missing_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [*QUICK, "--model", AR, "--out", str(tmp_path), "--budget", "0.001"]
    assert main(common) == 0
    assert "0 of 2 rounds measured and 1 visits of the next" in capsys.readouterr().err


def test_a_diffusion_model_gets_rounds_instead_of_steps(tmp_path: Path) -> None:
    arguments = [argument for argument in QUICK if argument != "--no-fit"]
    assert main([*arguments, "--model", DIFFUSION, "--out", str(tmp_path), "--rounds", "1"]) == 0
    samples = read_samples(tmp_path / "samples.csv.gz")
    assert {"diffusion", "served", "sentinel"} == set(samples["source"].tolist())
    host = yaml.safe_load((tmp_path / "profile.yaml").read_text())["fit"]["regimes"]["eager"]["host"]
    assert "begins_batch" in host, "beginning a batch has a price, from the profile alone"
    assert (samples["denoise_blocks"] + samples["prefill_blocks"] > 0).all()
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 1 + 4 * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--model", AR, "--rounds", "0"], "--rounds"),
        (["--model", AR, "--budget", "-1"], "--budget"),
        (["--model", AR, "--device", "tpu"], "--device"),
        (["--model", AR, "--prefix-cache", "none"], "enable_prefix_caching"),
        (["--model", AR, "--max-model-len", "30"], "max_model_len"),
        (["--model", AR, "--max-model-len", "4000"], "4000"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([*QUICK, "--out", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_models_and_devices_have_names_that_make_paths() -> None:
    assert model_name(AR) == "tiny-ar"
    assert model_name("qwen3-30b-a3b") == "qwen3-30b-a3b"
    assert model_name("/models/Qwen3-8B/") == "qwen3-8b"
    assert device_name({"device_kind": "cpu", "device": "any"}) == "cpu"
    assert device_name({"device_kind": "cuda", "device": "NVIDIA H200"}) == "h200"
    assert (
        device_name({"device_kind": "cuda", "device": "NVIDIA GeForce GT 9 (x)"}) == "nvidia-geforce-gt-9-x"
    )


def test_the_hash_of_a_model_is_that_of_its_configuration() -> None:
    assert model_facts(AR)["model_hash"] != model_facts(DIFFUSION)["model_hash"]
    assert model_facts(AR) == model_facts(AR)


def test_nothing_unknown_is_reported_of_the_machine() -> None:
    import torch

    known = machine(torch.device("cpu"))
    assert known["device_kind"] == "cpu"
    assert "driver" not in known
    assert "" not in known.values()
    assert known.get("engine_commit", "") == revision()
