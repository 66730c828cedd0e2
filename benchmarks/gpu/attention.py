"""Paged attention against its floors: decode against measured bandwidth, prefill against measured GEMM rate.

    python benchmarks/gpu/attention.py [--only decode|prefill] [--sweep] [--out DIR]

Each case runs beside torch's scaled-dot-product attention on the same keys laid out without pages. `--sweep`
times decode under other launch settings too. A table goes to stdout, rows with all samples to `--out`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bandwidth import copy_bandwidth, gemm_flops
from provenance import provenance
from timing import Timing, copies_beyond_cache, require_cuda, time_calls

from engine.kernels.attention import AttentionMetadata, paged_attention

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
MAX_KV_BYTES = 12 << 30
BYTES_PER_KV_TOKEN = 2 * KV_HEADS * HEAD_DIM * 2


@dataclass(frozen=True)
class Case:
    """Sequences of (query tokens, tokens in all) with a page size and a mask."""

    name: str
    lengths: tuple[tuple[int, int], ...]
    page_size: int = 16
    mask_block: int = 1

    @property
    def kv_tokens(self) -> int:
        return sum(total for _, total in self.lengths)

    @property
    def least_bytes(self) -> int:
        """Keys and values read once, queries read and outputs written."""
        return (
            self.kv_tokens * BYTES_PER_KV_TOKEN + sum(new for new, _ in self.lengths) * HEADS * HEAD_DIM * 4
        )

    @property
    def flops(self) -> int:
        """Two products over the (query, key) pairs the mask leaves."""
        return 4 * HEADS * HEAD_DIM * sum(self._pairs(new, total) for new, total in self.lengths)

    def _pairs(self, new: int, total: int) -> int:
        block = self.mask_block
        return sum(min((position // block + 1) * block, total) for position in range(total - new, total))

    @property
    def uniform(self) -> bool:
        return len(set(self.lengths)) == 1


@dataclass(frozen=True)
class Inputs:
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    meta: AttentionMetadata


def decode_cases() -> Iterator[Case]:
    for batch, context, page_size in itertools.product(
        (1, 4, 16, 64, 256), (1024, 4096, 16384, 65536), (16, 64)
    ):
        if batch * context * BYTES_PER_KV_TOKEN <= MAX_KV_BYTES:
            yield Case(f"decode {batch}x{context} page {page_size}", ((1, context),) * batch, page_size)
    skewed = ((1, 65536), *((1, 1024),) * 63)
    yield Case("decode 1x65536 + 63x1024 page 16", skewed)


def prefill_cases() -> Iterator[Case]:
    for batch, length in ((1, 2048), (1, 8192), (1, 16384), (8, 2048), (32, 512)):
        yield Case(f"prompts {batch}x{length}", ((length, length),) * batch)
    yield Case("prompts 1x8192 page 64", ((8192, 8192),), 64)
    yield Case("chunk 2048 over 14336", ((2048, 16384),))
    yield Case("chunk 512 + 64 decodes", (*((1, 4096),) * 64, (512, 8192)))
    for blocks, context in ((1, 4096), (16, 1024), (64, 1024), (64, 4096)):
        yield Case(f"diffusion blocks {blocks}x32 over {context}", ((32, context),) * blocks, 16, 32)


def build(case: Case, seed: int) -> Inputs:
    """Random inputs on scattered pages."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    pages = [-(-total // case.page_size) for _, total in case.lengths]
    shape = (sum(pages), KV_HEADS, case.page_size, HEAD_DIM)
    k_cache, v_cache = (
        torch.randn(shape, dtype=torch.bfloat16, device="cuda", generator=generator) for _ in range(2)
    )
    scattered = torch.randperm(sum(pages), device="cuda", generator=generator).int().split(pages)
    tables = torch.nn.utils.rnn.pad_sequence(list(scattered), batch_first=True)
    news = [new for new, _ in case.lengths]
    meta = AttentionMetadata(
        query_start=torch.tensor([0, *itertools.accumulate(news)], dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor([total for _, total in case.lengths], dtype=torch.int32, device="cuda"),
        block_tables=tables,
        max_query_len=max(news),
        max_seq_len=max(total for _, total in case.lengths),
        num_decodes=sum(1 for _ in itertools.takewhile(lambda new: new == 1, news)),
        mask_block=case.mask_block,
    )
    q = torch.randn(sum(news), HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda", generator=generator)
    return Inputs(q, k_cache, v_cache, meta)


def time_ours(case: Case, copies: int) -> Timing:
    scale = HEAD_DIM**-0.5
    sets = [build(case, seed) for seed in range(copies)]
    return time_calls([_call(inputs, scale) for inputs in sets])


def _call(inputs: Inputs, scale: float) -> Callable[[], object]:
    return lambda: paged_attention(inputs.q, inputs.k_cache, inputs.v_cache, inputs.meta, scale)


def time_torch(case: Case, copies: int) -> Timing | None:
    """Torch on contiguous keys, where one call with the same mask exists: equal lengths, no chunks."""
    new, total = case.lengths[0]
    if not case.uniform or (new not in (1, total) and case.mask_block != new):
        return None
    calls = []
    for _ in range(copies):
        q = torch.randn(len(case.lengths), HEADS, new, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        k, v = torch.randn(
            2, len(case.lengths), KV_HEADS, total, HEAD_DIM, dtype=torch.bfloat16, device="cuda"
        )
        calls.append(_torch_call(q, k, v, causal=new == total and case.mask_block == 1))
    return time_calls(calls)


def _torch_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Callable[[], object]:
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def measure(case: Case, bandwidth: float, flops: float) -> dict[str, Any]:
    copies = copies_beyond_cache(case.least_bytes)
    ours = time_ours(case, copies)
    theirs = time_torch(case, copies)
    torch.cuda.empty_cache()
    floor_s = max(case.least_bytes / bandwidth, case.flops / flops)
    return {
        "case": asdict(case) | {"lengths": [list(pair) for pair in case.lengths]},
        "median_us": ours.median_s * 1e6,
        "floor_us": floor_s * 1e6,
        "gigabytes_per_s": case.least_bytes / ours.median_s / 1e9,
        "fraction_of_bandwidth": case.least_bytes / ours.median_s / bandwidth,
        "teraflops": case.flops / ours.median_s / 1e12,
        "fraction_of_gemm": case.flops / ours.median_s / flops,
        "torch_median_us": theirs.median_s * 1e6 if theirs else None,
        "samples_s": ours.samples_s,
    }


def sweep(case: Case) -> list[dict[str, Any]]:
    """Decode under other numbers of programs, warps and stages than the ones built in."""
    from engine.kernels.triton import decode_attention as kernel

    chosen = kernel.PROGRAMS_PER_SM, kernel.NUM_WARPS, kernel.NUM_STAGES
    rows = []
    for programs, warps, stages in itertools.product((1, 2, 3, 4), (4, 8), (3, 5, 7)):
        kernel.PROGRAMS_PER_SM, kernel.NUM_WARPS, kernel.NUM_STAGES = programs, warps, stages
        median_s = time_ours(case, copies_beyond_cache(case.least_bytes)).median_s
        setting = {"programs_per_sm": programs, "num_warps": warps, "num_stages": stages}
        rows.append({"case": case.name, **setting, "median_us": median_s * 1e6})
        print(f"{case.name}: {setting} {median_s * 1e6:.1f} µs", flush=True)
    kernel.PROGRAMS_PER_SM, kernel.NUM_WARPS, kernel.NUM_STAGES = chosen
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("decode", "prefill"))
    parser.add_argument("--sweep", action="store_true", help="time decode under other launch settings too")
    parser.add_argument("--out", type=Path, help="folder for attention.json")
    options = parser.parse_args()
    require_cuda("benchmarks/gpu/attention.py")
    torch.manual_seed(0)
    bandwidth, flops = copy_bandwidth(), gemm_flops()
    cases = [*(decode_cases() if options.only != "prefill" else ())]
    cases += prefill_cases() if options.only != "decode" else ()
    print(f"measured: {bandwidth / 1e9:.0f} GB/s copied, {flops / 1e12:.0f} TFLOP/s bf16 GEMM\n")
    print("| case | µs | floor µs | of bandwidth | TFLOP/s | torch SDPA µs |\n|---|---|---|---|---|---|")
    rows = []
    for case in cases:
        row = measure(case, bandwidth, flops)
        rows.append(row)
        theirs = f"{row['torch_median_us']:.1f}" if row["torch_median_us"] else ""
        print(
            f"| {case.name} | {row['median_us']:.1f} | {row['floor_us']:.1f} "
            f"| {row['fraction_of_bandwidth']:.0%} | {row['teraflops']:.0f} | {theirs} |",
            flush=True,
        )
    swept = []
    if options.sweep:
        for case in (Case("decode 64x1024", ((1, 1024),) * 64), Case("decode 16x16384", ((1, 16384),) * 16)):
            swept += sweep(case)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        denominators = {"bytes_per_s": bandwidth, "flop_per_s": flops}
        record = {"provenance": provenance(), "denominators": denominators, "rows": rows, "sweep": swept}
        (options.out / "attention.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
