"""Every op of the engine but attention, timed against its physical floor on this GPU.

    python benchmarks/gpu/ops.py [--only OP...] [--repeat N] [--out DIR]

The floor of an op is the bytes it cannot avoid to move over the bandwidth that `bandwidth.py` measures on the
same device in the same run. Each repetition replays a CUDA graph of one call after the level-2 cache has been
flushed; the median counts, all samples are kept. A table goes to stdout, rows with all samples to `--out`;
what is there already is not measured again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from bandwidth import copy_bandwidth
from rows import Row
from timing import WARM_UPS, Timing, begin, capture, common_options, end, time_calls

from engine.kernels import (
    QkNorm,
    SamplingTensors,
    align_experts,
    copy_pages,
    fused_moe,
    qk_norm_rope_store,
    rms_norm,
    route_grouped_sigmoid,
    route_softmax,
    sample,
    swiglu,
)
from engine.kernels.prepare import DecodeInputs, DecodeState, prepare_decodes

Tensor = torch.Tensor
T = TypeVar("T")
FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Case:
    """One op at one shape: how to call it, and the bytes and floating-point operations it cannot avoid."""

    op: str
    shape: str
    run: Callable[[], object]
    floor_bytes: int
    flops: int = 0


def main() -> None:
    parser = common_options(__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="OP", help="names of ops, such as fused_moe")
    parser.add_argument("--repeat", type=int, default=30, help="timed repetitions of each case")
    options = parser.parse_args()
    rows, inputs = begin(options, "ops"), Inputs(options.device)
    torch.manual_seed(0)
    bandwidth = copy_bandwidth(options.device)
    print(f"measured bandwidth {bandwidth / 1e9:.0f} GB/s\n")
    print("| op | shape | median µs | floor µs | of the floor | TFLOP/s |\n|---|---|---|---|---|---|")
    for build in BUILDERS:
        for case in rows.guarded(build.__name__, build(inputs)):
            if options.only and case.op not in options.only:
                continue
            row = rows.once(f"{case.op}: {case.shape}", lambda case=case: measure(case, bandwidth, options))
            if row is not None:
                print(
                    f"| {row['op']} | {row['shape']} | {row['median_us']:.1f} | {row['floor_us']:.1f} "
                    f"| {row['fraction_of_floor']:.0%} | {row['teraflops']:.0f} |",
                    flush=True,
                )
    end(options, rows)


def measure(case: Case, bandwidth: float, options: argparse.Namespace) -> Row:
    """Time a case; bandwidth in bytes per second."""
    timing = (
        time_calls([case.run], device="cpu") if options.device == "cpu" else _flushed(case, options.repeat)
    )
    floor_us, median_us = case.floor_bytes / bandwidth * 1e6, timing.median_s * 1e6
    return {
        "op": case.op,
        "shape": case.shape,
        "median_us": median_us,
        "floor_us": floor_us,
        "bytes_per_s": bandwidth,
        "fraction_of_floor": floor_us / median_us,
        "teraflops": case.flops / median_us / 1e6,
        "samples_s": timing.samples_s,
    }


def _flushed(case: Case, repeat: int) -> Timing:
    """Of a captured call that finds nothing of its inputs in the cache."""
    graph = capture(case.run, WARM_UPS)
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeat + WARM_UPS)]
    for before, after in events:
        flush.max()  # reads fill the cache with lines that need no write-back
        before.record()
        graph.replay()
        after.record()
    torch.cuda.synchronize()
    return Timing.of([before.elapsed_time(after) / 1e3 for before, after in events[WARM_UPS:]])


class Inputs:
    """Makes inputs on a device; for a CPU few sizes, and small ones."""

    def __init__(self, device: str) -> None:
        self.device = device

    def randn(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16) * scale

    def sizes(self, *sizes: T, on_cpu: T) -> tuple[T, ...]:
        """What to measure."""
        return sizes if self.device == "cuda" else (on_cpu,)


# ---- cases ----


def norms(on: Inputs) -> Iterator[Case]:
    for tokens, d in on.sizes((64, 4096), (512, 2048), (8192, 4096), on_cpu=(4, 64)):
        x, residual, weight = on.randn(tokens, d), on.randn(tokens, d), on.randn(d)
        yield Case("rms_norm", f"{tokens} x {d}", lambda x=x, w=weight: rms_norm(x, w, 1e-6), 4 * tokens * d)
        yield Case(
            "rms_norm_residual",
            f"{tokens} x {d}",
            lambda x=x, w=weight, r=residual: rms_norm(x, w, 1e-6, r),
            8 * tokens * d,
        )


def activations(on: Inputs) -> Iterator[Case]:
    for tokens, f in on.sizes((64, 12288), (512, 5120), (8192, 14336), on_cpu=(4, 64)):
        x = on.randn(tokens, 2 * f)
        yield Case("swiglu", f"{tokens} x {f}", lambda x=x: swiglu(x), 6 * tokens * f)


def rotary_stores(on: Inputs) -> Iterator[Case]:
    heads, kv_heads, head_dim, page_size = 32, 8, 128, 64
    (pages,) = on.sizes(256, on_cpu=4)
    angles = torch.rand(40960, head_dim // 2, device=on.device)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    cache = on.randn(2, pages, kv_heads, page_size, head_dim)
    norm = QkNorm(on.randn(head_dim), on.randn(head_dim), 1e-6)
    for tokens in on.sizes(64, 512, 8192, on_cpu=4):
        qkv = on.randn(tokens, (heads + 2 * kv_heads) * head_dim)
        positions = torch.randint(0, 40960, (tokens,), device=on.device)
        slots = torch.randperm(pages * page_size, device=on.device)[:tokens]
        arguments = (qkv, cos_sin, positions, slots, cache[0], cache[1], norm)
        yield Case(
            "qk_norm_rope_store",
            f"{tokens} tokens of Qwen3-8B",
            lambda a=arguments: qk_norm_rope_store(*a),
            tokens * (4 * (heads + 2 * kv_heads) * head_dim + 4 * head_dim),
        )


def routings(on: Inputs) -> Iterator[Case]:
    bias = torch.randn(256, device=on.device) * 0.1
    for tokens in on.sizes(128, 512, 8192, on_cpu=4):
        softmax, sigmoid = on.randn(tokens, 128), on.randn(tokens, 256)
        ids = route_softmax(softmax, 8, True)[1]
        results = tokens * 8 * 8
        yield Case(
            "route_softmax",
            f"{tokens} tokens, 8 of 128",
            lambda x=softmax: route_softmax(x, 8, True),
            tokens * 128 * 2 + results,
        )
        yield Case(
            "route_grouped_sigmoid",
            f"{tokens} tokens, 8 of 256, 4 of 8 groups",
            lambda x=sigmoid: route_grouped_sigmoid(x, bias, 8, 8, 4, True, 2.5),
            tokens * 256 * 2 + results,
        )
        yield Case(
            "align_experts",
            f"{tokens} tokens, 8 of 128",
            lambda ids=ids: align_experts(ids, 128, 64),
            tokens * 8 * 8,
        )


def experts(on: Inputs) -> Iterator[Case]:
    models = (("Qwen3-30B-A3B", 128, 2048, 768), ("LLaDA2-mini", 256, 2048, 512))
    for name, count, d, f in on.sizes(*models, on_cpu=("small", 16, 64, 32)):
        w13, w2 = on.randn(count, 2 * f, d, scale=d**-0.5), on.randn(count, d, f, scale=f**-0.5)
        popularity = torch.randn(count, device=on.device) * 0.3  # routers are never even
        for tokens in on.sizes(1, 8, 32, 128, 256, 512, 4096, on_cpu=4):
            x = on.randn(tokens, d)
            weights, ids = route_softmax(torch.randn(tokens, count, device=on.device) + popularity, 8, True)
            active = int(ids.unique().numel())
            yield Case(
                "fused_moe",
                f"{name}, {tokens} tokens, {active} of {count} experts active",
                lambda x=x, w13=w13, w2=w2, weights=weights, ids=ids: fused_moe(x, w13, w2, weights, ids),
                active * 3 * d * f * 2 + 2 * tokens * d * 2,
                6 * tokens * 8 * d * f,
            )


def samplers(on: Inputs) -> Iterator[Case]:
    (vocabulary,) = on.sizes(151_936, on_cpu=512)
    settings = {
        "greedy": (0.0, 0, 1.0),
        "temperature": (0.8, 0, 1.0),
        "top-k 50": (0.8, 50, 1.0),
        "top-p 0.95": (0.8, 0, 0.95),
        "top-k 20, top-p 0.95": (0.6, 20, 0.95),
    }
    for rows in on.sizes(1, 16, 128, on_cpu=2):
        flat = torch.randn(rows, vocabulary, device=on.device) * 2
        peaked = flat.clone()
        peaked[:, :64] += torch.linspace(12, 4, 64, device=on.device)  # a few likely tokens, as a model has
        for name, (temperature, top_k, top_p) in settings.items():
            params = SamplingTensors(
                temperature=torch.full((rows,), temperature, device=on.device),
                top_k=torch.full((rows,), top_k, dtype=torch.int32, device=on.device),
                top_p=torch.full((rows,), top_p, device=on.device),
                min_p=torch.zeros(rows, device=on.device),
                seeds=torch.arange(rows, device=on.device),
                positions=torch.arange(rows, device=on.device),
            )
            for kind, logits in (("peaked", peaked), ("flat", flat)):
                yield Case(
                    "sample",
                    f"{rows} x {vocabulary} {kind}, {name}",
                    lambda logits=logits, params=params: sample(logits, params),
                    rows * vocabulary * 4,
                )


def decode_inputs(on: Inputs) -> Iterator[Case]:
    page_size, width = 64, 512
    for seqs, context in on.sizes((8, 4096), (64, 4096), (256, 16384), on_cpu=(2, 4096)):
        pages = context // page_size
        positions = torch.full((seqs + 1,), context - 200, device=on.device)  # every call moves on by one
        tables = torch.zeros((seqs + 1, width), dtype=torch.int32, device=on.device)
        state = DecodeState(torch.zeros_like(positions), positions, tables)
        wide = torch.zeros((3, seqs), dtype=torch.int64, device=on.device)
        lengths = torch.zeros(seqs, dtype=torch.int32, device=on.device)
        inputs = DecodeInputs(*wide, lengths, torch.zeros_like(tables[:seqs]))
        rows = torch.arange(seqs, device=on.device)
        yield Case(
            "prepare_decodes",
            f"{seqs} sequences of {context}",
            lambda r=rows, s=state, i=inputs: prepare_decodes(r, s, page_size, i),
            seqs * (2 * 4 * pages + 60),
        )


def page_copies(on: Inputs) -> Iterator[Case]:
    (all_pages,) = on.sizes(4096, on_cpu=16)
    cache = on.randn(2, all_pages, 8, 64, 128)
    page_bytes = cache[0, 0].numel() * 2
    for pages in on.sizes(1, 64, 1024, on_cpu=2):
        order = torch.randperm(all_pages, device=on.device)
        sources, targets = order[:pages], order[pages : 2 * pages]
        yield Case(
            "copy_pages",
            f"{pages} pages of {page_bytes >> 10} KiB in two caches",
            lambda s=sources, t=targets: copy_pages(cache[0], cache[1], s, t),
            4 * pages * page_bytes,
        )


BUILDERS: tuple[Callable[[Inputs], Iterator[Case]], ...] = (
    norms,
    activations,
    rotary_stores,
    routings,
    experts,
    samplers,
    page_copies,
    decode_inputs,
)

if __name__ == "__main__":
    main()
