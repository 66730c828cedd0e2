"""Ops: one table of what each is called, and who computes it.

An op is written as its torch reference, with the docstring that all implementations keep to. What else
computes it is a function of the same name and arguments in `engine.kernels.<backend>.<its module>`, imported
when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from typing import Any, Generic, ParamSpec, TypeVar

from engine.kernels import backend

P = ParamSpec("P")
R = TypeVar("R")

OPS: dict[str, Op[..., Any]] = {}
"""Every op by name."""


class Op(Generic[P, R]):
    """A function that picks its implementation by the device of its first argument, a tensor.

    Attributes:
        reference: the same in torch, which runs anywhere.
        kernels: the other backends that have it, the best first.
    """

    def __init__(
        self,
        reference: Callable[P, R],
        kernels: tuple[backend.Backend, ...],
        check: Callable[..., None] | None,
    ) -> None:
        update_wrapper(self, reference)
        self.reference, self.kernels = reference, kernels
        self._check = check
        self._found: dict[str, Callable[P, R]] = {"reference": reference}
        OPS[reference.__name__] = self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._check is not None:
            self._check(*args, **kwargs)
        tensor: Any = args[0]
        return self.by(backend.choose(tensor, self.kernels))(*args, **kwargs)

    def by(self, name: backend.Backend) -> Callable[P, R]:
        """The implementation of a backend that has one."""
        if name not in self._found:
            module = self.reference.__module__.replace("engine.kernels.", f"engine.kernels.{name}.")
            self._found[name] = getattr(import_module(module), self.reference.__name__)
        return self._found[name]


def op(
    *kernels: backend.Backend, check: Callable[..., None] | None = None
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Make a torch reference an op.

    Args:
        kernels: the backends that have a kernel of it, the best first.
        check: refuses arguments that no implementation can work with.
    """

    def make(reference: Callable[P, R]) -> Op[P, R]:
        return Op(reference, kernels, check)

    return make
