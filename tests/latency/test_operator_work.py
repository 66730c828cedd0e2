"""Arithmetic and traffic of single operators, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log2
from typing import Any

import numpy as np
import pytest

from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency import operator_work as work
from blis_py.latency.operator_work import LAUNCH_NS, Priced

FAST = 1e40
H100 = replace(load_gpu("h100"), link_bytes_per_s=1e9)
COUNTS_FLOPS = replace(H100, fp16_flops=1e9, fp8_flops=1e9, fp4_flops=1e9, hbm_bytes_per_s=FAST)
COUNTS_BYTES = replace(H100, fp16_flops=FAST, fp8_flops=FAST, fp4_flops=FAST, hbm_bytes_per_s=1e9)
"""A nanosecond for every operation, and for every byte."""


@pytest.mark.parametrize(
    ("operator", "sizes", "flops", "moved"),
    [
        (work.gemm, ("bfloat16", 3, 5, 7), 2 * 105, 2 * 35 + 2 * 21 + 2 * 15),
        (work.gemm, ("fp8", 3, 5, 7), 2 * 105, 35 + 21 + 2 * 15),
        (work.gemm, ("nvfp4", 3, 5, 7), 2 * 105, 0.5625 * (35 + 21) + 2 * 15),
        (work.gemm, ("int4_wo", 3, 5, 7), 2 * 105, 0.53125 * 35 + 2 * 21 + 2 * 15),
        # 4 tokens to 2 of 8 experts, 4 of them here: 4 pairs, which use 4 (1 - 0.75^4) = 2.734375 experts
        (work.experts, ("bfloat16", 4, 8, 6, 2, 4, 2), 6 * 4 * 48, 2.734375 * 3 * 48 * 2 + 4 * 32 + 4 * 36),
        # spread evenly, the 4 pairs use all 4
        (work.experts, ("bfloat16", 4, 8, 6, 2, 4, 2, True), 6 * 4 * 48, 4 * 3 * 48 * 2 + 4 * 32 + 4 * 36),
        (work.experts, ("fp8", 1, 8, 6, 2, 4, 2), 6 * 48, (4 - 3) * 3 * 48 + 32 + 36),
        # three queries see 5, 6 and 7 keys
        (work.context, (2, 3, 4, 6, 2, 8, 0), 4 * 2 * 18 * 48, 2 * 2 * 8 * (2 * 3 * 6 + 2 * 7 * 2)),
        (work.context, (2, 3, 4, 6, 2, 8, 5), 4 * 2 * 15 * 48, 2 * 2 * 8 * (2 * 3 * 6 + 2 * 7 * 2)),
        (work.decode, ("bfloat16", 3, 10, 4, 2, 8, 0), 4 * 3 * 10 * 32, 3 * 8 * (2 * 10 * 2 * 2 + 4 * 4)),
        (work.decode, ("fp8", 3, 10, 4, 2, 8, 0), 4 * 3 * 10 * 32, 3 * 8 * (2 * 10 * 2 + 4 * 4)),
        (work.decode, ("bfloat16", 3, 10, 4, 2, 8, 6), 4 * 3 * 6 * 32, 3 * 8 * (2 * 6 * 2 * 2 + 4 * 4)),
        (work.mla_context, (2, 3, 4, 5), 2 * 2 * 18 * 5 * 320, 2 * 5 * 2 * (3 + 7) * 320),
        (work.mla_decode, ("bfloat16", 3, 10, 2), 2 * 30 * 2 * 1088, 3 * (10 * 576 * 2 + 2 * 2 * 1088)),
        (work.mla_decode, ("fp8", 3, 10, 2), 2 * 30 * 2 * 1088, 3 * (10 * 576 + 2 * 2 * 1088)),
        (work.absorb, (3, 2), 2 * 3 * 2 * 65_536, 2 * 2 * (65_536 + 3 * 640)),
        (work.linear_context, (3, 2), 2 * 3 * 2 * 16_384 * 3, 12 * 3 * 2 * 128),
        (work.linear_decode, (3, 2), 0, 3 * 2 * (2 * 4 * 16_384 + 12 * 128)),
        (work.move, (3, 8), 0, 3 * 24 / 0.75),
    ],
)
def test_operations_and_bytes(
    operator: Callable[..., Priced], sizes: tuple[Any, ...], flops: float, moved: float
) -> None:
    assert operator(COUNTS_FLOPS, *sizes).ns - LAUNCH_NS == pytest.approx(flops)
    assert operator(COUNTS_BYTES, *sizes).ns - LAUNCH_NS == pytest.approx(moved)


def test_links_carry_a_ring_and_both_ways_of_every_token() -> None:
    assert work.all_reduce(H100, 4, 1000).ns - LAUNCH_NS == pytest.approx(1000 * 2 * 3 / 4)
    assert work.all_to_all(H100, 3, 8, 2).ns - LAUNCH_NS == pytest.approx(3 * 8 * 2 * 3)
    assert work.all_to_all(H100, 3, 8, 9).ns - LAUNCH_NS == pytest.approx(3 * 8 * 8 * 3), "at most 8 copies"


@pytest.mark.parametrize(
    ("priced", "sizes"),
    [
        (work.gemm(H100, "fp8", 3, 5, 7), (3, 5, 7)),
        (work.experts(H100, "fp8", 4, 8, 6, 2, 4, 2), (4, 4, 8, 6)),
        (work.experts(H100, "fp8", 0.01, 8, 6, 2, 4, 2), (0.125, 4, 8, 6)),
        (work.context(H100, 2, 3, 0, 6, 2, 8, 0), (3, 12, 3)),
        # 33 query-key pairs but for the triangle's diagonal: those of a prompt of root 33
        (work.context(H100, 2, 3, 4, 6, 2, 8, 0), (33**0.5, 12, 3)),
        (work.context(H100, 2, 3, 4, 6, 2, 8, 2), (21**0.5, 12, 3)),
        (work.decode(H100, "fp8", 3, 10, 6, 2, 8, 5), (3, 10, 2, 3)),
        (work.decode(H100, "fp8", 3, 0, 6, 2, 8, 0), (3, 1, 2, 3)),
        (work.mla_context(H100, 2, 3, 0, 5), (3, 2, 5)),
        (work.mla_context(H100, 2, 3, 4, 5), (33**0.5, 2, 5)),
        (work.mla_decode(H100, "fp8", 3, 0, 2), (3, 1, 2)),
        (work.absorb(H100, 3, 2), (3, 2)),
        (work.linear_context(H100, 3, 2), (3, 2)),
        (work.linear_decode(H100, 3, 2), (3, 2)),
        (work.move(H100, 3, 8), (24,)),
        (work.move(H100, 0, 8), (2.0**-10,)),
        (work.all_reduce(H100, 4, 0), (1,)),
        (work.all_to_all(H100, 0, 8, 9), (1, 8)),
    ],
)
def test_the_place_on_a_surface_is_by_the_logarithms_of_the_sizes(
    priced: Priced, sizes: tuple[float, ...]
) -> None:
    assert [float(each) for each in priced.at] == pytest.approx([log2(size) for size in sizes])


def test_a_format_is_multiplied_by_the_narrowest_units_that_the_gpu_has() -> None:
    new = replace(H100, fp16_flops=1.0, fp8_flops=2.0, fp4_flops=4.0)
    old = replace(new, fp4_flops=0.0)
    oldest = replace(old, fp8_flops=0.0)
    by_form = {"nvfp4": (4, 1, 1), "fp8": (2, 2, 1), "fp8_block": (2, 2, 1), "bfloat16": (1, 1, 1)}
    by_form |= {"w4a8_mxfp4_mxfp8": (2, 2, 1), "w4a16_mxfp4": (1, 1, 1), "int4_wo": (1, 1, 1)}
    gpus: tuple[GpuSpec, ...] = (new, old, oldest)
    for form, peaks in by_form.items():
        assert tuple(work.peak_flops(gpu, form) for gpu in gpus) == peaks, form


def test_arrays_of_sizes_are_priced_one_by_one() -> None:
    together = work.context(H100, 2, np.array([3.0, 500.0]), 4, 6, 2, 8, 5).ns
    assert together.tolist() == [float(work.context(H100, 2, n, 4, 6, 2, 8, 5).ns) for n in (3.0, 500.0)]
