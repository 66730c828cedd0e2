"""RMSNorm: the reference against float64, the Triton kernel against the reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import backend, rms_norm

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu runs these kernels on the device"
)


def naive(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("shape", [(1, 8), (5, 100), (3, 2, 64)])
def test_the_norm_is_that_of_float64(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5).double(), naive(x, weight, 1e-5), rtol=1e-5, atol=1e-6
    )


def test_eps_is_inside_the_root() -> None:
    assert rms_norm(torch.zeros(1, 4), torch.ones(4), 1e-6).eq(0).all()
    small = torch.full((1, 4), 1e-3)
    torch.testing.assert_close(rms_norm(small, torch.ones(4), 3e-6), torch.full((1, 4), 0.5))


def test_with_a_residual_the_sum_is_returned_and_normalised() -> None:
    x, residual, weight = torch.randn(6, 32), torch.randn(6, 32), torch.randn(32)
    y, total = rms_norm(x, weight, 1e-6, residual)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, rms_norm(total, weight, 1e-6))


def test_bf16_is_computed_in_float32_and_rounded_once() -> None:
    x, weight = torch.randn(4, 64).bfloat16(), torch.randn(64).bfloat16()
    y = rms_norm(x, weight, 1e-6)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, rms_norm(x.float(), weight.float(), 1e-6).bfloat16())


@interpreted
@pytest.mark.parametrize(("rows", "d"), [(1, 64), (4, 100), (3, 1024)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_triton_kernel_agrees_with_the_reference(rows: int, d: int, with_residual: bool) -> None:
    x, weight = torch.randn(rows, 2 * d)[:, :d], torch.randn(d)  # rows with a gap between them
    residual = torch.randn(rows, d) if with_residual else None
    expected = rms_norm(x, weight, 1e-6, residual)
    with backend.force("triton"):
        found = rms_norm(x, weight, 1e-6, residual)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
