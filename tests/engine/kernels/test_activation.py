"""SwiGLU: the reference against float64, the Triton kernel against the reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import backend, swiglu

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu runs these kernels on the device"
)


def test_gate_is_the_first_half_and_the_result_that_of_float64() -> None:
    x = torch.randn(5, 24) * 4
    gate, up = x.double()[:, :12], x.double()[:, 12:]
    torch.testing.assert_close(swiglu(x).double(), gate / (1 + (-gate).exp()) * up, rtol=1e-5, atol=1e-6)


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
def test_the_triton_kernel_agrees_with_the_reference(rows: int, f: int) -> None:
    x = torch.randn(rows, 2 * f) * 3
    with backend.force("triton"):
        found = swiglu(x)
    torch.testing.assert_close(found, swiglu(x), rtol=1e-5, atol=1e-6)
