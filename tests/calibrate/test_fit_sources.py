"""Where measured steps come from: folders, samples, step logs, and what others measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fit_cases import made_up

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.imports import import_steps
from blis_py.calibrate.fit.sources import difference, read_all, read_steps, with_model_config
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.latency.fitted import Fitted
from blis_py.models.model_shape import load_model
from blis_py.traces.samples import write_samples

VLLM_HEAD = (
    "experiment,prefill_reqs,decode_reqs,prefill_tokens,kv_used_blocks,next_sampled_gap_steps,cycle_us_mean\n"
)


def test_a_folder_its_samples_and_both_together_are_read(tmp_path: Path) -> None:
    write_samples(made_up(20), tmp_path / "samples.csv.gz")
    assert len(read_steps(tmp_path)) == len(read_steps(tmp_path / "samples.csv.gz")) == 20
    both = read_all([tmp_path, tmp_path / "samples.csv.gz"])
    assert sorted(set(both["source"].tolist())) == ["grid", "grid#2"]


def test_measurements_of_different_devices_are_not_mixed(tmp_path: Path) -> None:
    for name, device in (("a", "NVIDIA H100"), ("b", "NVIDIA H200")):
        write_samples(made_up(20, device=device, device_kind="cuda"), tmp_path / f"{name}.csv.gz")
    with pytest.raises(InputError, match="measured with device NVIDIA H200"):
        read_all([tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"])


def test_of_cpus_and_models_only_what_matters_must_agree() -> None:
    cpu = {"device": "cpu", "device_kind": "cpu", "model": "a", "dtype": "float32"}
    assert difference(cpu, cpu | {"device": "Some CPU", "model": "b"}) is None
    assert difference(cpu, cpu | {"device_kind": "cuda"}) == "device_kind"
    assert difference(cpu, cpu | {"clock": "wall"}) is None
    assert difference(cpu | {"clock": "cpu"}, cpu | {"clock": "wall"}) == "clock"
    assert difference(cpu | {"model_config": {}}, cpu | {"model_config": {"layers": 1}}) == "model_config"


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no measured steps"):
        read_steps(tmp_path)
    with pytest.raises(InputError, match="no measured steps given"):
        read_all([])


def test_the_configuration_of_the_model_is_kept_with_the_profile(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 7}), encoding="utf-8")
    assert with_model_config({"model": str(tmp_path)})["model_config"] == {"hidden_size": 7}
    assert with_model_config({"model": "Qwen/Qwen3-14B"})["model_config"]["num_hidden_layers"] == 40
    assert "model_config" not in with_model_config({"model": "nobody/knows"})
    assert with_model_config({"model_config": 1}) == {"model_config": 1}
    with pytest.raises(InputError, match=r"missing\.json: No such file"):
        with_model_config({}, tmp_path / "missing.json")


def vllm_csv(path: Path) -> Path:
    """Decode steps of 10 µs a sequence and 1 ns a cached token on 5 ms; with a prompt 0.2 ms more."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(200):
        seqs, blocks, prompts = (
            int(rng.integers(1, 64)),
            int(rng.integers(100, 4000)),
            int(rng.integers(0, 2)),
        )
        kv = blocks * 16 - (seqs + prompts) * 8 - 50 * prompts
        us = 5000 + 10 * seqs + kv / 1e3 + 200 * prompts
        lines.append(f"run-x,{prompts},{seqs},{50 * prompts},{blocks},1,{us}\n")
    lines.append("run-x,0,5,0,100,7,99999\n")  # not exact
    lines.append("run-y,0,5,0,100,1,99999\n")
    path.write_text(VLLM_HEAD + "".join(lines), encoding="utf-8")
    return path


def test_steps_of_vllm_become_samples(tmp_path: Path) -> None:
    samples = import_steps(vllm_csv(tmp_path / "steps.csv"), model="llama-2-70b", tp=4, run="run-x")
    assert len(samples) == 200
    assert samples.meta["tp"] == 4
    found = fit(samples, bootstrap=0).regimes["eager"]
    assert found.gpu["step"] == pytest.approx(5e6, rel=0.01)
    assert found.gpu["decode_kv_tokens"] == pytest.approx(1.0, rel=0.05)
    assert found.cross_validated is not None
    assert found.cross_validated.mape < 0.005
    assert "max_context" not in found.domain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "--model: no model given"),
        ({"run": None}, "2 runs fit; choose one with --run: run-x, run-y"),
        ({"run": "z"}, "0 runs fit"),
        ({"host_step_us": 1.0}, "contain the host's time already"),
    ],
)
def test_an_import_that_is_not_clear_is_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    path = vllm_csv(tmp_path / "steps.csv")
    settings = {"model": "llama-2-70b", "run": "run-x", **options}
    with pytest.raises(InputError) as error:
        import_steps(path, **settings)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_csv_without_the_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="experiment: missing column"):
        import_steps(tmp_path / "x.csv", model="llama-2-70b")


@pytest.mark.slow
def test_kernel_tables_become_a_profile_that_agrees_with_them(shared_data: Path) -> None:
    folder = shared_data / "kernels_h200_h100" / "h100_sxm_vllm_0.24.0"
    samples = import_steps(folder, model="llama-3.1-8b", host_step_us=100.0, host_seq_us=2.0)
    profile = fit(samples, bootstrap=0)
    error = profile.regimes["eager"].cross_validated
    assert error is not None
    assert error.mape < 0.06
    shape, gpu = load_model("llama-3.1-8b"), load_gpu("h100")
    tables = build("kernel-tables", shape=shape, gpu=gpu, kernel_profile=folder)
    model = Fitted(profile, shape)
    from blis_py.core.features import StepFeatures

    step = StepFeatures(decode_seqs=20, decode_kv_tokens=20 * 700, max_context=700, emitted_rows=20)
    assert model.step(step).gpu_ns == pytest.approx(tables.step_ns(step), rel=0.1)
    assert model.step(step).host_ns == pytest.approx(140_000, rel=0.01)


def test_real_steps_of_vllm_are_fitted_within_a_few_percent(shared_data: Path) -> None:
    path = shared_data / "vllm_steps_h100" / "steps_2runs.csv.gz"
    samples = import_steps(path, model="codellama-34b", tp=2, run="codellama")
    error = fit(samples, bootstrap=0).regimes["eager"].cross_validated
    assert error is not None
    assert error.steps > 500
    assert error.mape < 0.04
