"""Step times composed from tables of operators over their shapes."""

from __future__ import annotations

import gzip
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from test_kernel_tables import tables

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.latency import build
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import Weights

MODEL = "llama-3.1-8b"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDTH, LAYERS = 4096, 32, 8, 128, 14336, 32


def gemm_ms(m: float, n: float, k: float) -> float:
    return (5 + n * k / 3e6 + m * 0.05) / 1e3


def prompt_ms(tokens: float) -> float:
    return 0.01 + tokens * tokens * 1e-8


def decode_ms(sequences: float, cached: float) -> float:
    return 0.004 + sequences * cached * 4e-8


def write(folder: Path, tp: int = 1) -> Path:
    """Tables that hold this model's shapes and one more; gzipped where large ones are."""
    shapes = [
        ((HEADS + 2 * KV_HEADS) * HEAD_DIM // tp, HIDDEN),
        (HIDDEN, HEADS * HEAD_DIM // tp),
        (2 * WIDTH // tp, HIDDEN),
        (HIDDEN, WIDTH // tp),
        (128_256 // tp, HIDDEN),
    ]
    gemm = [f"bfloat16,{m},{n},{k},{gemm_ms(m, n, k)}" for m in (1, 64, 4096) for n, k in shapes]
    gemm += ["fp8,1,6144,4096,0.0001"]
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "gemm_perf.csv.gz", "wt") as file:
        file.write("\n".join(["gemm_dtype,m,n,k,latency", *gemm]))
    heads = f"{HEADS // tp},{KV_HEADS // tp}"
    context = [
        f"{batch},{isl},{heads},bfloat16,{prompt_ms(isl) * batch}"
        for batch in (1, 8)
        for isl in (16, 512, 4096)
    ]
    header = "num_heads,num_key_value_heads,kv_cache_dtype,latency"
    (folder / "context_attention_perf.csv").write_text("\n".join([f"batch_size,isl,{header}", *context]))
    grid = product((1, 8, 64), (1, 1023, 16383))
    decode = [f"{b},{step},{heads},bfloat16,{decode_ms(b, step)}" for b, step in grid if b * step < 600_000]
    (folder / "generation_attention_perf.csv").write_text("\n".join([f"batch_size,step,{header}", *decode]))
    reduce = ["num_gpus,message_size,backend,latency"]
    for backend, ms in (("x_graph", 0.01), ("x_eager", 9)):
        reduce += [f"2,{elements},{backend},{ms}" for elements in (1, 1 << 28)]
    (folder / "custom_allreduce_perf.csv").write_text("\n".join(reduce))
    return folder


def decode(seqs: int, context: int) -> StepFeatures:
    return StepFeatures(decode_seqs=seqs, decode_kv_tokens=seqs * context, emitted_rows=seqs)


def small_kernels_ms(tokens: int) -> tuple[float, float]:
    """Bounds of what is estimated: launches alone, and some memory traffic on top."""
    launches = LAYERS * 4 * 2.2e-3
    return launches, launches + LAYERS * tokens * 3e-4


def test_a_decode_step_adds_up_projections_attention_and_head(tmp_path: Path) -> None:
    seqs, context = 32, 700
    qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    layer = sum(
        gemm_ms(seqs, n, k)
        for n, k in ((qkv, HIDDEN), (HIDDEN, HEADS * HEAD_DIM), (2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))
    )
    known = LAYERS * (layer + decode_ms(seqs, context)) + gemm_ms(seqs, 128_256, HIDDEN)
    low, high = small_kernels_ms(seqs)
    assert known + low < tables(write(tmp_path)).step_ns(decode(seqs, context)) / 1e6 < known + high


def test_a_prompt_costs_its_attention_and_a_chunk_its_share_of_the_pairs(tmp_path: Path) -> None:
    model = tables(write(tmp_path))

    def step(tokens: int, past: int) -> int:
        pairs = tokens * past + tokens * (tokens + 1) // 2
        return model.step_ns(
            StepFeatures(prefill_seqs=1, prefill_tokens=tokens, prefill_pairs=pairs, emitted_rows=1)
        )

    extra_ms = (step(512, 3584) - step(512, 0)) / 1e6
    share = (512 * 3584 + 512 * 256) / (4096 * 2048)
    assert extra_ms == pytest.approx(LAYERS * (prompt_ms(4096) * share - prompt_ms(512)), rel=0.02)


def test_tensor_parallel_steps_pay_two_graph_all_reduces_a_layer(tmp_path: Path) -> None:
    with_reduce = tables(write(tmp_path / "tp2", tp=2), tp=2)
    free = (tmp_path / "tp2" / "custom_allreduce_perf.csv").read_text().replace(",0.01", ",0.0")
    (tmp_path / "tp2" / "custom_allreduce_perf.csv").write_text(free)
    without = tables(tmp_path / "tp2", tp=2)
    cost_ms = (with_reduce.step_ns(decode(8, 500)) - without.step_ns(decode(8, 500))) / 1e6
    assert cost_ms == pytest.approx(2 * LAYERS * 0.01, rel=1e-6)


def test_a_shape_between_measured_ones_is_priced_between_them(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with gzip.open(folder / "gemm_perf.csv.gz", "rt") as file:
        rows = [row for row in file.read().splitlines() if f",{HIDDEN},{WIDTH}," not in row]
    with gzip.open(folder / "gemm_perf.csv.gz", "wt") as file:
        file.write("\n".join(rows))
    holed = tables(folder).step_ns(decode(4, 100))
    full = tables(write(tmp_path / "full")).step_ns(decode(4, 100))
    assert holed == pytest.approx(full, rel=0.3)


def test_decodes_too_large_to_measure_go_on_along_the_context(tmp_path: Path) -> None:
    model = tables(write(tmp_path))
    grown_ms = (model.step_ns(decode(64, 16_000)) - model.step_ns(decode(64, 8_000))) / 1e6
    assert grown_ms == pytest.approx(LAYERS * 64 * 8_000 * 4e-8, rel=0.01)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "context_attention_perf.csv").unlink(), "context_attention_perf"),
        (lambda f: (f / "generation_attention_perf.csv").write_text("step,latency\n"), "batch_size"),
        (
            lambda f: (f / "generation_attention_perf.csv").write_text(
                "batch_size,step,num_heads,num_key_value_heads,kv_cache_dtype,latency\n1,1,32,8,bfloat16,fast\n"
            ),
            "must be numbers",
        ),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, spoil: object, message: str) -> None:
    folder = write(tmp_path)
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        tables(folder)


def fp8(model: str) -> ModelShape:
    return replace(load_model(model), weights=Weights.of(1.0, "fp8"), kv_dtype_bytes=1)


def test_fp8_models_have_products_and_kv_cache_of_their_own(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with gzip.open(folder / "gemm_perf.csv.gz", "rt") as file:
        rows = file.read().splitlines()
    halved = [
        f"fp8,{r.split(',', 1)[1].rsplit(',', 1)[0]},{float(r.rsplit(',', 1)[1]) / 2}" for r in rows[1:-1]
    ]
    with gzip.open(folder / "gemm_perf.csv.gz", "wt") as file:
        file.write("\n".join([*rows[:-1], *halved]))
    for name in ("context_attention_perf.csv", "generation_attention_perf.csv"):
        text = (folder / name).read_text()
        quantised = [row.replace("bfloat16", "fp8") for row in text.splitlines()[1:]]
        cheaper = [f"{row.rsplit(',', 1)[0]},{float(row.rsplit(',', 1)[1]) * 0.75}" for row in quantised]
        (folder / name).write_text("\n".join([text, *cheaper]))
    model = build("kernel-tables", shape=fp8(MODEL), gpu=load_gpu("h100"), kernel_profile=folder)
    seqs, context = 32, 700
    qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    layer = sum(
        gemm_ms(seqs, n, k)
        for n, k in ((qkv, HIDDEN), (HIDDEN, HEADS * HEAD_DIM), (2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))
    )
    head = gemm_ms(seqs, 128_256, HIDDEN)  # in 16 bits
    known = LAYERS * (layer / 2 + decode_ms(seqs, context) * 0.75) + head
    low, high = small_kernels_ms(seqs)
    assert known + 2 * low < model.step_ns(decode(seqs, context)) / 1e6 < known + 2 * high


def test_models_partly_in_8_bits_are_refused(tmp_path: Path) -> None:
    shape = replace(load_model(MODEL), weights=Weights(attention=2.0, dense=1.0, arithmetic="fp8"))
    with pytest.raises(InputError, match="dense models all of whose layers are FP8"):
        build("kernel-tables", shape=shape, gpu=load_gpu("h100"), kernel_profile=write(tmp_path))


def test_what_the_tables_do_not_cover_is_refused_with_a_way_out(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.raises(InputError, match=r"num_heads=40.*roofline"):
        tables(folder, model="qwen3-14b")
    with pytest.raises(InputError, match="moe_perf"):
        tables(folder, model="mixtral-8x7b")


def test_decodes_whose_shortest_context_was_not_measured_are_one_clear_error(tmp_path: Path) -> None:
    file = write(tmp_path) / "generation_attention_perf.csv"
    rows = file.read_text().splitlines()
    file.write_text("\n".join(row for row in rows if not row.startswith("8,1,")))
    with pytest.raises(InputError, match=r"generation_attention_perf: has too few points to fill its grid"):
        build("kernel-tables", shape=load_model(MODEL), gpu=load_gpu("h100"), kernel_profile=tmp_path)
