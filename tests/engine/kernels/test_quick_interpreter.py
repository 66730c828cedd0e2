"""The quickened interpreter notices what the slow one does."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted on a GPU")


@triton.jit
def _scaled(number, FACTOR: tl.constexpr):
    return tl.max(number * FACTOR, 0)


@triton.jit
def _kernel(out, numbers, FACTOR: tl.constexpr):
    tl.store(out, _scaled(tl.load(numbers + tl.arange(0, 4)), FACTOR))


@pytest.mark.parametrize("largest", [2**31 // 3, 2**31 // 3 - 1])
def test_overflows_of_32_bits_fail_and_what_just_fits_does_not(largest: int) -> None:
    numbers = torch.tensor([1, 2, 3, largest], dtype=torch.int32)
    out = torch.zeros(1, dtype=torch.int32)
    _kernel[(1,)](out, numbers, FACTOR=3)
    assert out == 3 * max(3, largest)
    with pytest.raises(Exception, match="overflow of mul"):
        _kernel[(1,)](out, numbers, FACTOR=4)
