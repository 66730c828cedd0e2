"""GPU profiles: names, sanity of the figures, strict reading."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.hardware.gpu import GIB, GpuSpec, known_gpus, load_gpu
from blis_py.latency import build
from blis_py.latency.notes import model_notes
from blis_py.models.model_shape import load_model

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
        ("A100-40GB", "A100-40"),
        ("NVIDIA A100-PCIE-80GB", "A100 PCIe"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("H100-NVL", "H100 NVL"),
        ("NVIDIA GB200", "GB200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("RTX5090", "RTX 5090"),
    ],
)
def test_a_gpu_is_found_by_its_usual_spellings(spelling: str, name: str) -> None:
    assert load_gpu(spelling).name == name


def test_an_unknown_gpu_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"--gpu: unknown gpu.*TPUv5.*or one that blis gpus lists"):
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
    assert 0.91 * gpu.memory_bytes < gpu.visible_memory_bytes < gpu.memory_bytes
    assert 5e13 < gpu.fp16_flops < 1e16
    assert gpu.fp8_flops in (0, pytest.approx(2 * gpu.fp16_flops, rel=0.02))
    trades_int8_for_fp4 = gpu.name in ("B300", "GB300")
    assert gpu.int8_flops == 0 or trades_int8_for_fp4 or gpu.int8_flops >= 1.9 * gpu.fp16_flops
    assert gpu.fp4_flops == 0 or gpu.fp4_flops >= 3.9 * gpu.fp16_flops
    assert 2e11 < gpu.hbm_bytes_per_s < 1e13
    assert 3e10 < gpu.link_bytes_per_s < gpu.hbm_bytes_per_s
    assert gpu.source
    assert gpu.link_source
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


def datasheet(tmp_path: Path, **more: object) -> Path:
    """A file with what a datasheet says, and no more."""
    values = {"name": "Mine", "source": "a datasheet", "memory_gib": 64, "hbm_gb_per_s": 2000}
    path = tmp_path / "datasheet.yaml"
    path.write_text(yaml.safe_dump({**values, "dense_tflops": {"fp16": 500}, **more}))
    return path


def test_a_datasheet_is_all_that_trained_needs(tmp_path: Path) -> None:
    gpu, shape = load_gpu(datasheet(tmp_path)), load_model("llama-3.1-8b")
    assert (gpu.fp8_flops, gpu.int8_flops, gpu.fp4_flops) == (0, 0, 0)
    decode = StepFeatures(decode_seqs=8, emitted_rows=8, decode_kv_tokens=8000)
    slow = build("trained", shape=shape, gpu=gpu).step_ns(decode)
    fast = build("trained", shape=shape, gpu=load_gpu(datasheet(tmp_path, hbm_gb_per_s=4000))).step_ns(decode)
    assert 1.4 < slow / fast < 2


def test_a_datasheet_without_a_link_has_a_pcie_slot_and_reports_it(tmp_path: Path) -> None:
    gpu = load_gpu(datasheet(tmp_path))
    assert (gpu.link_bytes_per_s, gpu.link_gpus) == (32e9, 8)
    assert gpu.link_source == "assumed: PCIe 4 x16, no NVLink"
    assert gpu.all_reduce_overhead_ns == load_gpu("l40s").all_reduce_overhead_ns
    linked = load_gpu(datasheet(tmp_path, link_gb_per_s=450))
    assert linked.all_reduce_overhead_ns == load_gpu("h100").all_reduce_overhead_ns
    assert load_gpu(datasheet(tmp_path, link_latency_us=12)).all_reduce_overhead_ns == 12_000


def test_roofline_states_what_a_datasheet_lacks() -> None:
    message = r"roofline needs efficiencies, which are unknown for the MI300X.*--latency-model trained"
    with pytest.raises(InputError, match=message):
        build("roofline", shape=load_model("llama-3.1-8b"), gpu=load_gpu("mi300x"))


def test_what_is_assumed_of_a_gpu_known_by_its_datasheet_alone_is_reported() -> None:
    shape = load_model("llama-3.1-8b")
    assert "the MI300X is known by its datasheet alone" in " ".join(model_notes(shape, load_gpu("mi300x")))
    assert "datasheet alone" not in " ".join(model_notes(shape, load_gpu("h100")))


@pytest.mark.parametrize("model", ["trained", "roofline"])
def test_more_gpus_than_a_link_joins_are_refused_by_models_that_price_links(model: str) -> None:
    shape, gpu = load_model("llama-3.1-70b"), load_gpu("h100")
    network = "step times over a network between servers are not priced .found 16.; use --tp 8 at most"
    for linked, kind in ((gpu, "the link"), (gpu.linked_at(50), "PCIe"), (load_gpu("l40s"), "PCIe")):
        message = rf"--tp: {kind} joins 8 {linked.name}; 16 would need another link, and {network}"
        with pytest.raises(InputError, match=message):
            build(model, shape=shape, gpu=linked, tp=16)
    assert build(model, shape=shape, gpu=gpu.linked_at(450), tp=16)


@pytest.mark.parametrize("gb_per_s", [0.1, 1.25, 7])
def test_a_link_slower_than_any_slot_is_refused_as_a_network(gb_per_s: float) -> None:
    message = (
        "--link-gbps: is slower than any PCIe slot.*not priced.*describe what was measured in a GPU file"
    )
    with pytest.raises(InputError, match=message):
        load_gpu("h100").linked_at(gb_per_s)


@pytest.mark.parametrize("kernels", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_small_all_reduces_over_pcie_wait_for_its_latency(gpu: str, kernels: str) -> None:
    """A decode of a 70B has 160 all-reduces; over PCIe each takes 14 to 30 µs more than over NVLink."""
    shape, own = load_model("llama-3.1-70b"), load_gpu(gpu)
    decode = StepFeatures(decode_seqs=1, emitted_rows=1, decode_kv_tokens=300)
    fast, slow = (
        build("trained", shape=shape, gpu=each, tp=4, kernels=kernels).step_ns(decode)
        for each in (own, own.linked_at(64))
    )
    assert 160 * 14_000 < slow - fast < 160 * 32_000
    assert own.linked_at(64).all_reduce_overhead_ns == load_gpu("h100-pcie").all_reduce_overhead_ns


def test_the_link_of_a_gpu_file_is_priced_as_it_says(tmp_path: Path) -> None:
    """A network that was measured is described in a file."""
    datasheet = "name: H200\nsource: mine\nmemory_gib: 141\nhbm_gb_per_s: 4800\ndense_tflops: {fp16: 989}\n"
    decode, shape = StepFeatures(decode_seqs=1, emitted_rows=1), load_model("llama-3.1-70b")
    found = []
    for latency_us in (40, 90):
        path = tmp_path / "mine.yaml"
        path.write_text(f"{datasheet}link_gb_per_s: 50\nlink_latency_us: {latency_us}\nlink_gpus: 16\n")
        found.append(
            build("trained", shape=shape, gpu=load_gpu(path), tp=16, kernels="sglang").step_ns(decode)
        )
    assert found[1] - found[0] == pytest.approx(160 * 50_000, rel=0.3)


def test_the_gpus_of_a_rack_share_one_link() -> None:
    shape = load_model("llama-3.1-70b")
    assert build("trained", shape=shape, gpu=load_gpu("gb200"), tp=16).name == "trained"


def test_a_path_to_a_profile_of_ones_own_works(tmp_path: Path) -> None:
    gpu = load_gpu(changed(tmp_path, name="Mine", memory_gib=64, memory_visible_gib=63))
    assert (gpu.name, gpu.memory_bytes) == ("Mine", 64 * GIB)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_gib": None}, "mine.yaml: memory_gib: missing"),
        ({"bandwidth": 3}, "mine.yaml: bandwidth: unknown key"),
        ({"memory_gib": -80}, "memory_gib: must be above 0"),
        ({"memory_visible_gib": 81}, "memory_visible_gib: must be above 0 and at most 80"),
        (
            {"link_latency_us": 5},
            "link_latency_us: said twice (found 5); keep roofline.all_reduce_overhead_us",
        ),
        ({"link_gpus": 2.5}, "link_gpus: must be a whole number"),
        ({"link_gpus": 0}, "link_gpus: must be above 0 and at most 4096"),
        ({"link_source": 5}, "link_source: must be a string"),
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
