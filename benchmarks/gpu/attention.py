"""Paged attention against its floors: decode against measured bandwidth, prefill against measured GEMM rate.

    python benchmarks/gpu/attention.py [--only decode|prefill|sweep...] [--out DIR]

Each case runs beside torch's scaled-dot-product attention on the same keys laid out without pages. The sweep,
which has to be requested, times decode under other launch settings. A table goes to stdout, rows with all
samples to `--out`; what is there already is not measured again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from bandwidth import copy_bandwidth, gemm_flops
from rows import Row
from timing import Timing, begin, common_options, copies_beyond_cache, end, time_calls

from engine.kernels.attention import AttentionMetadata, paged_attention

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
MAX_KV_BYTES = 12 << 30
BYTES_PER_KV_TOKEN = 2 * KV_HEADS * HEAD_DIM * 2


@dataclass(frozen=True)
class Case:
    """Sequences of (query tokens, tokens in all) with a page size and a mask."""

    name: str
    lengths: tuple[tuple[int, int], ...]
    page_size: int = 64
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
    yield Case("decode 1x65536 + 63x1024 page 64", skewed)


def prefill_cases() -> Iterator[Case]:
    for batch, length in ((1, 2048), (1, 8192), (1, 16384), (8, 2048), (32, 512)):
        yield Case(f"prompts {batch}x{length}", ((length, length),) * batch)
    yield Case("prompts 1x8192 page 16", ((8192, 8192),), 16)
    yield Case("chunk 2048 over 14336", ((2048, 16384),))
    yield Case("chunk 512 + 64 decodes", (*((1, 4096),) * 64, (512, 8192)))
    for blocks, context in ((1, 4096), (16, 1024), (64, 1024), (64, 4096)):
        yield Case(f"diffusion blocks {blocks}x32 over {context}", ((32, context),) * blocks, mask_block=32)


def sweep_cases() -> Iterator[Case]:
    yield Case("decode 64x1024", ((1, 1024),) * 64)
    yield Case("decode 16x16384", ((1, 16384),) * 16)


FAMILIES = {"decode": decode_cases, "prefill": prefill_cases, "sweep": sweep_cases}
ON_CPU = {
    "decode": (Case("decode 2x64", ((1, 64),) * 2),),
    "prefill": (Case("prompts 1x64", ((64, 64),)),),
    "sweep": (Case("decode 1x64", ((1, 64),)),),
}


def cases_of(family: str, device: str) -> Iterable[Case]:
    return FAMILIES[family]() if device == "cuda" else ON_CPU[family]


def build(case: Case, seed: int, device: str) -> Inputs:
    """Random inputs on scattered pages."""
    generator = torch.Generator(device=device).manual_seed(seed)
    pages = [-(-total // case.page_size) for _, total in case.lengths]
    shape = (sum(pages), KV_HEADS, case.page_size, HEAD_DIM)
    k_cache, v_cache = (
        torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator) for _ in range(2)
    )
    scattered = torch.randperm(sum(pages), device=device, generator=generator).int().split(pages)
    tables = torch.nn.utils.rnn.pad_sequence(list(scattered), batch_first=True)
    news = [new for new, _ in case.lengths]
    meta = AttentionMetadata(
        query_start=torch.tensor([0, *itertools.accumulate(news)], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([total for _, total in case.lengths], dtype=torch.int32, device=device),
        block_tables=tables,
        max_query_len=max(news),
        max_seq_len=max(total for _, total in case.lengths),
        num_decodes=sum(1 for _ in itertools.takewhile(lambda new: new == 1, news)),
        mask_block=case.mask_block,
    )
    q = torch.randn(sum(news), HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device, generator=generator)
    return Inputs(q, k_cache, v_cache, meta)


def time_ours(case: Case, copies: int, device: str) -> Timing:
    scale = HEAD_DIM**-0.5
    sets = [build(case, seed, device) for seed in range(copies)]
    return time_calls([_call(inputs, scale) for inputs in sets], device=device)


def _call(inputs: Inputs, scale: float) -> Callable[[], object]:
    return lambda: paged_attention(inputs.q, inputs.k_cache, inputs.v_cache, inputs.meta, scale)


def time_torch(case: Case, copies: int, device: str) -> Timing | None:
    """Torch on contiguous keys, where one call with the same mask exists: equal lengths, no chunks."""
    new, total = case.lengths[0]
    if not case.uniform or (new not in (1, total) and case.mask_block != new):
        return None
    calls = []
    for _ in range(copies):
        q = torch.randn(len(case.lengths), HEADS, new, HEAD_DIM, dtype=torch.bfloat16, device=device)
        k, v = torch.randn(
            2, len(case.lengths), KV_HEADS, total, HEAD_DIM, dtype=torch.bfloat16, device=device
        )
        calls.append(_torch_call(q, k, v, causal=new == total and case.mask_block == 1))
    return time_calls(calls, device=device)


def _torch_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Callable[[], object]:
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def measure(case: Case, bandwidth: float, flops: float, device: str) -> Row:
    copies = copies_beyond_cache(case.least_bytes, device)
    ours = time_ours(case, copies, device)
    theirs = time_torch(case, copies, device)
    if device == "cuda":
        torch.cuda.empty_cache()
    floor_s = max(case.least_bytes / bandwidth, case.flops / flops)
    return {
        "page_size": case.page_size,
        "mask_block": case.mask_block,
        "lengths": _runs(case.lengths),
        "median_us": ours.median_s * 1e6,
        "floor_us": floor_s * 1e6,
        "bytes_per_s": bandwidth,
        "flop_per_s": flops,
        "fraction_of_bandwidth": case.least_bytes / ours.median_s / bandwidth,
        "teraflops": case.flops / ours.median_s / 1e12,
        "fraction_of_gemm": case.flops / ours.median_s / flops,
        "torch_median_us": theirs.median_s * 1e6 if theirs else None,
        "samples_s": ours.samples_s,
    }


def _runs(lengths: tuple[tuple[int, int], ...]) -> list[list[int]]:
    """Query tokens, tokens in all, and how many sequences in a row have these."""
    return [[*pair, len(list(same))] for pair, same in itertools.groupby(lengths)]


def sweep(case: Case, device: str) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Decode under other numbers of programs, warps and stages than the ones built in."""
    from engine.kernels.triton import decode_attention as kernel

    built_in = kernel.PROGRAMS_PER_SM, kernel.NUM_WARPS, kernel.NUM_STAGES

    def timed(programs: int, warps: int, stages: int) -> Row:
        kernel.PROGRAMS_PER_SM, kernel.NUM_WARPS, kernel.NUM_STAGES = programs, warps, stages
        try:
            timing = time_ours(case, copies_beyond_cache(case.least_bytes, device), device)
        finally:
            kernel.PROGRAMS_PER_SM, kernel.NUM_WARPS, kernel.NUM_STAGES = built_in
        return {
            "case": case.name,
            "programs_per_sm": programs,
            "num_warps": warps,
            "num_stages": stages,
            "built_in": (programs, warps, stages) == built_in,
            "median_us": timing.median_s * 1e6,
        }

    settings = itertools.product((1, 2, 3, 4), (4, 8), (3, 5, 7)) if device == "cuda" else [(1, 4, 3)]
    for setting in settings:
        yield (
            f"sweep {case.name}, {' '.join(map(str, setting))}",
            lambda setting=setting: timed(*setting),
        )


def main() -> None:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=("decode", "prefill"))
    options = parser.parse_args()
    rows, device = begin(options, "attention"), options.device
    torch.manual_seed(0)
    bandwidth, flops = copy_bandwidth(device), gemm_flops(device)
    print(f"measured: {bandwidth / 1e9:.0f} GB/s copied, {flops / 1e12:.0f} TFLOP/s bf16 GEMM\n")
    print("| case | µs | floor µs | of bandwidth | TFLOP/s | torch SDPA µs |\n|---|---|---|---|---|---|")
    families = [cases_of(name, device) for name in ("decode", "prefill") if name in options.only]
    for case in itertools.chain(*families):
        row = rows.once(case.name, lambda case=case: measure(case, bandwidth, flops, device))
        if row is None:
            continue
        theirs = f"{row['torch_median_us']:.1f}" if row["torch_median_us"] else ""
        print(
            f"| {case.name} | {row['median_us']:.1f} | {row['floor_us']:.1f} "
            f"| {row['fraction_of_bandwidth']:.0%} | {row['teraflops']:.0f} | {theirs} |",
            flush=True,
        )
    if "sweep" in options.only:
        for case in cases_of("sweep", device):
            for key, timed in sweep(case, device):
                row = rows.once(key, timed)
                print(f"{key}: {row['median_us']:.1f} µs" if row else f"{key}: failed", flush=True)
    end(options, rows)


if __name__ == "__main__":
    main()
