"""`blis profile`, and runs that take their step times from a profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from blis_py.api import build, run
from blis_py.cli import main
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.latency.fitted_profile import read_meta
from blis_py.models.model_shape import load_model
from blis_py.outputs.profile_file import write_meta
from blis_py.traces.samples import read_samples, samples_from, write_samples

Blis = Callable[..., tuple[int, str, str]]
META = {
    "device": "cpu",
    "device_kind": "cpu",
    "clock": "cpu",
    "model": "checkpoints/tiny",
    "block_size": 16,
    "num_kv_blocks": 500,
}
SMALL = ("--num-requests", "10", "--rate", "5", "--prompt-tokens", "40", "--prompt-tokens-stdev", "0")
SMALL += ("--output-tokens", "12", "--output-tokens-stdev", "0")


def measure(path: Path, source: str, seed: int, slower: float = 1.0, **meta: Any) -> Path:
    """Steps of 4 ms, 30 µs a token and 1 µs a cached one."""
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(120):
        seqs, context, chunk = (int(rng.integers(low, high)) for low, high in ((0, 9), (1, 90), (0, 60)))
        chunk = chunk if seqs else chunk + 1
        prefill = {"prefill_seqs": 1, "prefill_tokens": chunk, "prefill_pairs": chunk * (chunk + 1) // 2}
        steps.append(
            StepFeatures(
                decode_seqs=seqs,
                decode_kv_tokens=seqs * context,
                max_context=context if seqs else 0,
                emitted_rows=seqs + (chunk > 0),
                **(prefill if chunk else {}),
            )
        )
    tokens = np.array([step.tokens for step in steps])
    kv = np.array([step.decode_kv_tokens for step in steps])
    gpu = slower * (4e6 + 3e4 * tokens + 1e3 * kv) * np.exp(0.02 * rng.standard_normal(len(steps)))
    columns: dict[str, Any] = {
        "source": [source] * len(steps),
        "shape": np.arange(len(steps)),
        "regime": ["eager"] * len(steps),
        "gpu_ns": np.rint(gpu),
        "total_ns": np.rint(gpu) + 200_000,
        **{f.name: [getattr(step, f.name) for step in steps] for f in fields(StepFeatures)},
    }
    config = asdict(load_model("qwen3-8b")) | {"name": "tiny"}
    write_samples(samples_from({**META, "model_config": config, **meta}, columns, len(steps)), path)
    return path


@pytest.fixture
def folder(tmp_path: Path, blis: Blis) -> Path:
    """A fitted profile."""
    target = tmp_path / "profile"
    target.mkdir()
    measure(target / "samples.csv.gz", "grid", 1)
    code, _, err = blis("profile", "fit", target, "--bootstrap", 4)
    assert (code, err) == (0, f"wrote {target / 'profile.yaml'}\n")
    return target


def test_fit_writes_a_profile_and_keeps_what_its_yaml_said(tmp_path: Path, blis: Blis) -> None:
    samples = measure(tmp_path / "samples.csv.gz", "grid", 1)
    (tmp_path / "profile.yaml").write_text("engine_commit: abc\n", encoding="utf-8")
    code, out, _ = blis("profile", "fit", tmp_path, "--bootstrap", 4, "--format", "json")
    assert code == 0
    assert json.loads(out)["regimes"]["eager"]["cross_validated"]["mape"] < 0.03
    written = yaml.safe_load((tmp_path / "profile.yaml").read_text(encoding="utf-8"))
    assert written["engine_commit"] == "abc"
    assert written["num_kv_blocks"] == 500
    assert "MAPE" in written["fit"]["provenance"]
    assert samples.is_file()


def test_measuring_on_keeps_the_fit_until_there_is_another(folder: Path) -> None:
    fit = read_meta(folder)[1]["fit"]
    write_meta(folder, {"device": "cpu", "rounds": 2})
    assert read_meta(folder)[1] == {"device": "cpu", "rounds": 2, "fit": fit}
    (folder / "profile.yaml").write_text("[")
    write_meta(folder, {"rounds": 3})
    assert read_meta(folder)[1] == {"rounds": 3}


def test_fit_of_several_files_requires_an_output(tmp_path: Path, blis: Blis) -> None:
    paths = [measure(tmp_path / f"{name}.csv.gz", name, seed) for seed, name in enumerate("ab")]
    code, _, err = blis("profile", "fit", *paths)
    assert code == 2
    assert "--out: where to write the profile is not clear" in err
    code, out, _ = blis("profile", "fit", *paths, "--out", tmp_path / "new", "--bootstrap", 2)
    assert code == 0
    assert json.loads(out)["sources"] == {"a": 120, "b": 120}


def test_show_states_prices_errors_and_domain(folder: Path, blis: Blis) -> None:
    code, out, _ = blis("profile", "show", folder, "--format", "table")
    assert code == 0
    for text in (
        "90% interval",
        "decode_kv_tokens",
        "cross-validated",
        "measured: prefill_seqs to 1",
        "cpu time",
    ):
        assert text in out


def test_validate_scores_runs_that_were_not_fitted(folder: Path, tmp_path: Path, blis: Blis) -> None:
    logs = [measure(tmp_path / f"{name}.csv.gz", name, 5 + i, 1 + i / 4) for i, name in enumerate("pq")]
    code, out, err = blis("profile", "validate", folder, "--step-log", *logs)
    assert (code, err) == (0, "")
    rows = {row["source"]: row for row in json.loads(out)["runs"] if row["kind"] == "all"}
    assert rows["p"]["synchronous"]["mape"] < 0.03
    assert rows["q"]["pace"] == pytest.approx(0.24, abs=0.02)
    code, out, _ = blis("profile", "validate", folder, "--step-log", *logs, "--format", "table")
    assert {"decode", "mixed", "prefill", "all"} <= set(out.split())


def test_validate_states_when_it_scores_what_was_fitted(folder: Path, blis: Blis) -> None:
    _, _, err = blis("profile", "validate", folder, "--step-log", folder / "samples.csv.gz")
    assert err == "note: the profile was fitted to a run of this name: grid\n"


@pytest.mark.slow
def test_compare_shows_what_became_slower(folder: Path, tmp_path: Path, blis: Blis) -> None:
    measure(tmp_path / "slow.csv.gz", "grid", 1, slower=1.5)
    blis("profile", "fit", tmp_path / "slow.csv.gz", "--out", tmp_path / "slow", "--bootstrap", 4)
    code, out, _ = blis("profile", "compare", folder, tmp_path / "slow", "--format", "json")
    assert code == 0
    assert json.loads(out)["steps"][0]["change"] == pytest.approx(0.48, abs=0.03)
    assert blis("profile", "compare", folder, tmp_path / "slow", "--format", "table")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fitt",), "blis profile: no such command"),
        (("show", "/nowhere"), "--profile: no profile here"),
        (("fit",), "no measured steps given"),
        (("show",), "needs the profile"),
        (("import", "x", "--model", "qwen3-8b"), "--out: needs a folder"),
        (("fit", "x", "--bootstrap", "-1"), "x: "),
    ],
)
def test_bad_input_is_reported_in_one_line(blis: Blis, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = blis("profile", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_validate_refuses_runs_of_something_else(folder: Path, tmp_path: Path, blis: Blis) -> None:
    log = measure(tmp_path / "wall.csv.gz", "run", 2, clock="wall")
    code, _, err = blis("profile", "validate", folder, "--step-log", log)
    assert code == 2
    assert "the profile was measured with clock cpu, the run with wall" in err


def test_validate_without_runs_is_refused(folder: Path, blis: Blis) -> None:
    code, _, err = blis("profile", "validate", folder)
    assert code == 2
    assert "--step-log: needs measured runs" in err


# -- runs ----------------------------------------------------------------------------------------------


def test_a_profile_suffices_for_a_run(folder: Path, blis: Blis) -> None:
    code, out, err = blis("run", "--profile", folder, *SMALL)
    assert code == 0
    summary = json.loads(out)
    assert summary["capacity"].startswith("KV capacity: 500 blocks of 16 = 8,000 tokens (of the engine")
    assert "tiny on cpu TP1" in summary["capacity"]
    assert "step times: fitted: 120 steps of checkpoints/tiny measured on cpu" in summary["models"]
    assert summary["notes"] == []
    assert "note:" not in err


def test_steps_outside_the_measured_domain_are_reported_on_stderr_and_in_the_summary(
    folder: Path, blis: Blis
) -> None:
    code, out, err = blis("run", "--profile", folder, *SMALL[:-8], "--prompt-tokens", 300, "--rate", 5)
    assert code == 0
    (note,) = json.loads(out)["notes"]
    assert "of the steps lie outside the measured domain" in note
    measured = read_samples(folder / "samples.csv.gz")["prefill_tokens"].max()
    assert "prefill_tokens up to " in note
    assert f", measured up to {measured}," in note
    assert f"note: {note}" in err


def test_the_notes_of_a_run_are_its_own(folder: Path) -> None:
    simulation = build(profile=folder, num_requests=8, prompt_tokens=300, seed=3)
    first, again = simulation.run(), simulation.run()
    assert first.notes == again.notes != ()


def test_the_configuration_of_such_a_run_gives_the_same_run(folder: Path, tmp_path: Path, blis: Blis) -> None:
    blis("run", "--profile", folder, *SMALL, "--out", tmp_path / "one", "--no-plots")
    code, _, err = blis(
        "run", "--config", tmp_path / "one" / "config.yaml", "--out", tmp_path / "two", "--no-plots"
    )
    assert (code, err.count("error")) == (0, 0)
    for name in ("requests.csv", "summary.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "qwen3-14b"}, "was measured on tiny (layers 36), not on qwen3-14b (layers 40)"),
        ({"tp": 2}, "--tp: was measured at TP 1 (found 2); give --tp 1"),
        ({"gpu": "b200"}, "--gpu: was measured on cpu"),
        ({"latency_model": "roofline"}, "goes with the fitted model"),
    ],
)
def test_a_run_that_does_not_fit_its_profile_is_refused(
    folder: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        run(profile=folder, num_requests=2, **settings)
    assert message in str(error.value)


def test_tp_and_block_size_are_the_profiles_unless_given(tmp_path: Path) -> None:
    measure(tmp_path / "x.csv.gz", "grid", 1, tp=2, block_size=32)
    main(["profile", "fit", str(tmp_path / "x.csv.gz"), "--out", str(tmp_path / "p"), "--bootstrap", "0"])
    settings = {"profile": tmp_path / "p", "num_requests": 2, "prompt_tokens": 20, "output_tokens": 5}
    as_measured = build(**settings)
    assert (as_measured.config.tp, as_measured.scheduler.block_size) == (2, 32)
    assert as_measured.scheduler.num_kv_blocks == 500
    given = build(**settings, block_size=16)
    assert (given.scheduler.block_size, given.scheduler.num_kv_blocks) == (16, 1000)
    with pytest.raises(InputError, match="--tp: was measured at TP 2"):
        build(**settings, tp=1)


def test_the_model_may_be_named_if_it_is_the_profiles(folder: Path) -> None:
    for model in ("tiny", "checkpoints/tiny", "qwen3-8b"):
        settings = {"num_requests": 2, "prompt_tokens": 20, "output_tokens": 5}
        assert (
            run(
                profile=folder, model=model, prompt_tokens_stdev=0, output_tokens_stdev=0, **settings
            ).summary["notes"]
            == []
        )


def test_without_kv_blocks_in_the_profile_they_must_be_given(tmp_path: Path, blis: Blis) -> None:
    measure(tmp_path / "x.csv.gz", "grid", 1, num_kv_blocks=None)
    blis("profile", "fit", tmp_path / "x.csv.gz", "--out", tmp_path / "p", "--bootstrap", 0)
    code, _, err = blis("run", "--profile", tmp_path / "p", *SMALL)
    assert code == 2
    assert "num_kv_blocks: cpu has no datasheet" in err
    code, out, _ = blis("run", "--profile", tmp_path / "p", "--num-kv-blocks", 99, *SMALL)
    assert code == 0
    assert "KV capacity: 99 blocks of 16" in json.loads(out)["capacity"]


def test_the_fitted_model_without_a_profile_is_refused(blis: Blis) -> None:
    code, _, err = blis("run", "--latency-model", "fitted", "--model", "qwen3-8b", *SMALL)
    assert code == 2
    assert "give --profile DIR" in err


def test_a_file_that_is_not_there_is_named_before_its_kind_is_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "result.json"
    assert main(["profile", "fit", str(missing), "--model", "qwen3-14b"]) == 2
    assert f"{missing}: no such file or folder" in capsys.readouterr().err
