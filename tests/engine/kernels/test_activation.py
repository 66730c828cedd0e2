"""SwiGLU and GeGLU: the reference against float64, the Triton kernel against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.kernels import backend, geglu, swiglu
from engine.kernels.op import Op

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu runs these kernels on the device"
)


def test_gate_is_the_first_half_and_the_result_that_of_float64() -> None:
    x = torch.randn(5, 24) * 4
    gate, up = x.double()[:, :12], x.double()[:, 12:]
    torch.testing.assert_close(swiglu(x).double(), gate / (1 + (-gate).exp()) * up, rtol=1e-5, atol=1e-6)


def test_gelu_is_the_tanh_approximation_in_float64() -> None:
    x = torch.randn(5, 24) * 4
    gate, up = x.double()[:, :12], x.double()[:, 12:]
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    expected = 0.5 * gate * (1 + inner.tanh()) * up
    torch.testing.assert_close(geglu(x).double(), expected, rtol=1e-5, atol=1e-6)


def test_large_gates_neither_overflow_nor_vanish() -> None:
    x = torch.tensor([[100.0, -100.0, 3.0, 3.0]])
    torch.testing.assert_close(swiglu(x), torch.tensor([[300.0, 0.0]]))


def test_the_input_is_left_alone() -> None:
    x = torch.randn(3, 8)
    before = x.clone()
    swiglu(x)
    assert torch.equal(x, before)


@interpreted
@pytest.mark.parametrize(("rows", "f"), [(1, 16), (3, 100), (2, 1500)])
@pytest.mark.parametrize("gated", [swiglu, geglu], ids=["swiglu", "geglu"])
def test_the_triton_kernel_agrees_with_the_reference(rows: int, f: int, gated: Op[[Tensor], Tensor]) -> None:
    x = torch.randn(rows, 2 * f) * 3
    with backend.force("triton"):
        found = gated(x)
    torch.testing.assert_close(found, gated(x), rtol=1e-5, atol=1e-6)
