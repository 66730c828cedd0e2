"""Every op of the engine but attention, timed against its physical floor on this GPU.

    python benchmarks/gpu/ops.py [--only OP...] [--repeat N] [--out DIR]

The floor of an op is the bytes it cannot avoid to move over the bandwidth that `bandwidth.py` measures on the
same device in the same run. Each repetition replays a CUDA graph of one call after the level-2 cache has been
flushed; the median counts, all samples are kept. A table goes to stdout, rows with provenance to `--out`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bandwidth import copy_bandwidth
from provenance import provenance
from timing import WARM_UPS, require_cuda

from engine.kernels import (
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
FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Case:
    """One op at one shape: how to call it, and the bytes and floating-point operations it cannot avoid."""

    op: str
    shape: str
    run: Callable[[], object]
    floor_bytes: int
    flops: int = 0


@dataclass(frozen=True)
class Row:
    """What was measured of a case."""

    op: str
    shape: str
    median_us: float
    floor_us: float
    fraction_of_floor: float
    gigabytes_per_s: float
    teraflops: float
    samples_us: list[float]


def main() -> None:
    options = _options()
    require_cuda("benchmarks/gpu/ops.py")
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    rows = []
    print(f"measured bandwidth {bandwidth / 1e9:.0f} GB/s\n")
    print("| op | shape | median µs | floor µs | of the floor | TFLOP/s |\n|---|---|---|---|---|---|")
    for build in BUILDERS:
        for case in build():
            if not options.only or case.op in options.only:
                row = measure(case, bandwidth, options.repeat)
                rows.append(row)
                print(
                    f"| {row.op} | {row.shape} | {row.median_us:.1f} | {row.floor_us:.1f} "
                    f"| {row.fraction_of_floor:.0%} | {row.teraflops:.0f} |",
                    flush=True,
                )
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        denominators = {"bytes_per_s": bandwidth}
        record = {
            "provenance": provenance(),
            "denominators": denominators,
            "rows": [asdict(row) for row in rows],
        }
        (options.out / "ops.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="OP", help="names of ops, such as fused_moe")
    parser.add_argument("--repeat", type=int, default=30, help="timed repetitions of each case")
    parser.add_argument("--out", type=Path, help="folder for ops.json")
    return parser.parse_args()


def measure(case: Case, bandwidth: float, repeat: int) -> Row:
    """Time a case; bandwidth in bytes per second."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            case.run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run()
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeat + WARM_UPS)]
    for start, end in events:
        flush.max()  # reads fill the cache with lines that need no write-back
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    samples = [start.elapsed_time(end) * 1e3 for start, end in events[WARM_UPS:]]
    median = statistics.median(samples)
    floor = case.floor_bytes / bandwidth * 1e6
    return Row(
        case.op,
        case.shape,
        median_us=median,
        floor_us=floor,
        fraction_of_floor=floor / median,
        gigabytes_per_s=case.floor_bytes / median / 1e3,
        teraflops=case.flops / median / 1e6,
        samples_us=samples,
    )


def randn(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * scale


# ---- cases ----


def norms() -> Iterator[Case]:
    for tokens, d in ((64, 4096), (512, 2048), (8192, 4096)):
        x, residual, weight = randn(tokens, d), randn(tokens, d), randn(d)
        yield Case("rms_norm", f"{tokens} x {d}", lambda x=x, w=weight: rms_norm(x, w, 1e-6), 4 * tokens * d)
        yield Case(
            "rms_norm_residual",
            f"{tokens} x {d}",
            lambda x=x, w=weight, r=residual: rms_norm(x, w, 1e-6, r),
            8 * tokens * d,
        )


def activations() -> Iterator[Case]:
    for tokens, f in ((64, 12288), (512, 5120), (8192, 14336)):
        x = randn(tokens, 2 * f)
        yield Case("swiglu", f"{tokens} x {f}", lambda x=x: swiglu(x), 6 * tokens * f)


def rotary_stores() -> Iterator[Case]:
    heads, kv_heads, head_dim, page_size, pages = 32, 8, 128, 64, 256
    angles = torch.rand(40960, head_dim // 2, device="cuda")
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    cache = randn(2, pages, kv_heads, page_size, head_dim)
    q_weight, k_weight = randn(head_dim), randn(head_dim)
    for tokens in (64, 512, 8192):
        qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim)
        positions = torch.randint(0, 40960, (tokens,), device="cuda")
        slots = torch.randperm(pages * page_size, device="cuda")[:tokens]
        arguments = (qkv, cos_sin, positions, slots, cache[0], cache[1])
        yield Case(
            "qk_norm_rope_store",
            f"{tokens} tokens of Qwen3-8B",
            lambda a=arguments: qk_norm_rope_store(*a, heads, kv_heads, head_dim, q_weight, k_weight, 1e-6),
            tokens * (4 * (heads + 2 * kv_heads) * head_dim + 4 * head_dim),
        )


def routings() -> Iterator[Case]:
    bias = torch.randn(256, device="cuda") * 0.1
    for tokens in (128, 512, 8192):
        softmax, sigmoid = randn(tokens, 128), randn(tokens, 256)
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


def experts() -> Iterator[Case]:
    for name, count, d, f in (("Qwen3-30B-A3B", 128, 2048, 768), ("LLaDA2-mini", 256, 2048, 512)):
        w13, w2 = randn(count, 2 * f, d, scale=d**-0.5), randn(count, d, f, scale=f**-0.5)
        popularity = torch.randn(count, device="cuda") * 0.3  # routers are never even
        for tokens in (1, 8, 32, 128, 256, 512, 4096):
            x = randn(tokens, d)
            weights, ids = route_softmax(torch.randn(tokens, count, device="cuda") + popularity, 8, True)
            active = int(ids.unique().numel())
            yield Case(
                "fused_moe",
                f"{name}, {tokens} tokens, {active} of {count} experts active",
                lambda x=x, w13=w13, w2=w2, weights=weights, ids=ids: fused_moe(x, w13, w2, weights, ids),
                active * 3 * d * f * 2 + 2 * tokens * d * 2,
                6 * tokens * 8 * d * f,
            )


def samplers() -> Iterator[Case]:
    vocabulary = 151_936
    settings = {
        "greedy": (0.0, 0, 1.0),
        "temperature": (0.8, 0, 1.0),
        "top-k 50": (0.8, 50, 1.0),
        "top-p 0.95": (0.8, 0, 0.95),
        "top-k 20, top-p 0.95": (0.6, 20, 0.95),
    }
    for rows in (1, 16, 128):
        flat = torch.randn(rows, vocabulary, device="cuda") * 2
        peaked = flat.clone()
        peaked[:, :64] += torch.linspace(12, 4, 64, device="cuda")  # a few likely tokens, as a model has
        for name, (temperature, top_k, top_p) in settings.items():
            params = SamplingTensors(
                temperature=torch.full((rows,), temperature, device="cuda"),
                top_k=torch.full((rows,), top_k, dtype=torch.int32, device="cuda"),
                top_p=torch.full((rows,), top_p, device="cuda"),
                min_p=torch.zeros(rows, device="cuda"),
                seeds=torch.arange(rows, device="cuda"),
                positions=torch.arange(rows, device="cuda"),
            )
            for kind, logits in (("peaked", peaked), ("flat", flat)):
                yield Case(
                    "sample",
                    f"{rows} x {vocabulary} {kind}, {name}",
                    lambda logits=logits, params=params: sample(logits, params),
                    rows * vocabulary * 4,
                )


def decode_inputs() -> Iterator[Case]:
    page_size, width = 64, 512
    for seqs, context in ((8, 4096), (64, 4096), (256, 16384)):
        pages = context // page_size
        positions = torch.full((seqs + 1,), context - 200, device="cuda")  # every call moves on by one
        tables = torch.zeros((seqs + 1, width), dtype=torch.int32, device="cuda")
        state = DecodeState(torch.zeros_like(positions), positions, tables)
        wide = torch.zeros((3, seqs), dtype=torch.int64, device="cuda")
        lengths = torch.zeros(seqs, dtype=torch.int32, device="cuda")
        inputs = DecodeInputs(*wide, lengths, torch.zeros_like(tables[:seqs]))
        rows = torch.arange(seqs, device="cuda")
        yield Case(
            "prepare_decodes",
            f"{seqs} sequences of {context}",
            lambda r=rows, s=state, i=inputs: prepare_decodes(r, s, page_size, i),
            seqs * (2 * 4 * pages + 60),
        )


def page_copies() -> Iterator[Case]:
    cache = randn(2, 4096, 8, 64, 128)
    page_bytes = cache[0, 0].numel() * 2
    for pages in (1, 64, 1024):
        order = torch.randperm(4096, device="cuda")
        sources, targets = order[:pages], order[pages : 2 * pages]
        yield Case(
            "copy_pages",
            f"{pages} pages of {page_bytes >> 10} KiB in two caches",
            lambda s=sources, t=targets: copy_pages(cache[0], cache[1], s, t),
            4 * pages * page_bytes,
        )


BUILDERS: tuple[Callable[[], Iterator[Case]], ...] = (
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
