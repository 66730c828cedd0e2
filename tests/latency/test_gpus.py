"""GPU profiles: names, sanity of the figures, strict reading."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.latency.hardware import GIB, GpuSpec, known_gpus, load_gpu

GPUS = [load_gpu(name) for name in known_gpus()]
every_gpu = pytest.mark.parametrize("gpu", GPUS, ids=[gpu.name for gpu in GPUS])


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100"),
        ("H100", "H100"),
        ("h100-sxm", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H200", "H200"),
        ("A100-SXM", "A100-80"),
        ("A100-80", "A100-80"),
        ("a100", "A100-80"),
        ("L40S", "L40S"),
        ("l4", "L4"),
        ("RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("RTXPRO6000", "RTX PRO 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("b200", "B200"),
    ],
)
def test_a_gpu_is_found_by_its_usual_spellings(spelling: str, name: str) -> None:
    assert load_gpu(spelling).name == name


def test_an_unknown_gpu_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"--gpu: unknown gpu.*TPUv5.*use one of a100-80, b200, h100"):
        load_gpu("TPUv5")


def test_the_constants_of_the_published_formula_are_the_datasheets() -> None:
    facts = {
        gpu.name: (gpu.fp16_flops / 1e12, gpu.hbm_bytes_per_s / 1e12, gpu.memory_bytes / GIB) for gpu in GPUS
    }
    assert facts["H100"] == (989.5, 3.35, 80)
    assert facts["A100-80"] == (312, 2.039, 80)
    assert facts["L40S"] == (362.05, 0.864, 48)


@every_gpu
def test_figures_are_plausible(gpu: GpuSpec) -> None:
    assert 20 * GIB < gpu.memory_bytes < 300 * GIB
    assert 1e14 < gpu.fp16_flops < 1e16
    assert gpu.fp8_flops in (0, pytest.approx(2 * gpu.fp16_flops, rel=0.02))
    assert gpu.int8_flops >= 1.9 * gpu.fp16_flops
    assert gpu.fp4_flops in (0, pytest.approx(4 * gpu.fp16_flops, rel=0.02))
    assert 2e11 < gpu.hbm_bytes_per_s < 1e13
    assert 3e10 < gpu.link_bytes_per_s < gpu.hbm_bytes_per_s
    assert gpu.source
    assert gpu.roofline_basis


def test_newer_and_larger_gpus_are_faster() -> None:
    by_name = {gpu.name: gpu for gpu in GPUS}
    order = ["L4", "L40S", "A100-80", "H100", "H200", "B200"]
    bandwidths = [by_name[name].hbm_bytes_per_s for name in order]
    assert bandwidths == sorted(bandwidths)
    assert by_name["H200"].fp16_flops == by_name["H100"].fp16_flops


def changed(tmp_path: Path, **changes: object) -> Path:
    """The H100 profile with some keys replaced; a value of None removes the key, dots go inside."""
    values = yaml.safe_load((bundled.root("profiles") / "gpus" / "h100.yaml").read_text())
    for key, value in changes.items():
        *outer, last = key.split("__")
        section = values[outer[0]] if outer else values
        section[last] = value
        if value is None:
            del section[last]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_a_path_to_a_profile_of_ones_own_works(tmp_path: Path) -> None:
    gpu = load_gpu(changed(tmp_path, name="Mine", memory_gib=64))
    assert (gpu.name, gpu.memory_bytes) == ("Mine", 64 * GIB)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_gib": None}, "mine.yaml: memory_gib: missing"),
        ({"bandwidth": 3}, "mine.yaml: bandwidth: unknown key"),
        ({"memory_gib": -80}, "memory_gib: must be above 0"),
        ({"hbm_gb_per_s": "fast"}, "hbm_gb_per_s: must be a number"),
        ({"hbm_gb_per_s": float("nan")}, "hbm_gb_per_s: must be above 0"),
        ({"dense_tflops": 989}, "dense_tflops: must be a mapping"),
        ({"dense_tflops__fp16": 0}, "dense_tflops.fp16: must be above 0"),
        ({"dense_tflops__bf16": 1}, "dense_tflops.bf16: unknown key"),
        ({"roofline__hbm_efficiency": 1.2}, "roofline.hbm_efficiency: must be above 0 and at most 1"),
        ({"roofline__hbm_efficiency": 1e-320}, "roofline.hbm_efficiency: is far too small"),
        ({"hbm_gb_per_s": 1e-9}, "hbm_gb_per_s: is far too small"),
        ({"roofline__basis": ""}, "roofline.basis: must be a string"),
    ],
)
def test_a_bad_profile_is_refused_by_file_and_key(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as error:
        load_gpu(changed(tmp_path, **changes))
    assert message in str(error.value)


def test_an_unreadable_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_gpu(tmp_path / "absent.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1,")
    with pytest.raises(InputError, match="not valid YAML"):
        load_gpu(tmp_path / "broken.yaml")
