"""Page copies: the reference and the CUDA kernel, which runs on the CPU here."""

from __future__ import annotations

import pytest
import torch
from cuda_on_cpu import cuda_on_cpu

from engine.kernels import copy_pages


def caches(page_numbers: int) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.randn(2, 9, 2, 16, page_numbers)
    return both[0].clone(), both[1].clone()


SOURCES, TARGETS = torch.tensor([0, 3, 3, 8]), torch.tensor([1, 2, 7, 5])


def check_copied(before: torch.Tensor, after: torch.Tensor) -> None:
    expected = before.clone()
    for source, target in zip(SOURCES.tolist(), TARGETS.tolist(), strict=True):
        expected[target] = before[source]
    assert torch.equal(after, expected)


@pytest.mark.parametrize("head_dim", [8, 32, 160])
def test_pages_are_copied_and_no_other_is_touched(head_dim: int) -> None:
    k, v = caches(head_dim)
    k_before, v_before = k.clone(), v.clone()
    copy_pages(k, v, SOURCES, TARGETS)
    check_copied(k_before, k)
    check_copied(v_before, v)


@pytest.mark.parametrize("head_dim", [1, 8, 160])
def test_the_cuda_kernel_copies_the_same(head_dim: int) -> None:
    k, v = caches(head_dim)
    k_before, v_before = k.clone(), v.clone()
    with cuda_on_cpu():
        copy_pages(k, v, SOURCES, TARGETS)
        copy_pages(k, v, SOURCES[:0], TARGETS[:0])
    check_copied(k_before, k)
    check_copied(v_before, v)


def test_sources_without_targets_are_refused() -> None:
    k, v = caches(8)
    with pytest.raises(ValueError, match="as many of each"):
        copy_pages(k, v, SOURCES, TARGETS[:2])
