"""One table of ops: a reference for each, and kernels of the same name and arguments."""

from __future__ import annotations

import inspect

import pytest

import engine.kernels  # noqa: F401  fills the table
from engine.kernels.op import OPS

KERNELS = [(name, backend) for name, op in OPS.items() for backend in op.kernels]


def test_every_op_states_what_it_computes() -> None:
    assert len(OPS) >= 11
    for name, op in OPS.items():
        assert inspect.getdoc(op.reference), name
        assert op.__doc__ == op.reference.__doc__


@pytest.mark.parametrize(("name", "backend"), KERNELS)
def test_a_kernel_takes_what_its_reference_takes(name: str, backend: str) -> None:
    """The same names, order and defaults."""
    if backend == "triton":
        pytest.importorskip("triton")
    op = OPS[name]
    expected, found = (inspect.signature(run).parameters.values() for run in (op.reference, op.by(backend)))  # type: ignore[arg-type]
    assert [(p.name, p.default) for p in found] == [(p.name, p.default) for p in expected]
