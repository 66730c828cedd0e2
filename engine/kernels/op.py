"""Ops: one table of names and implementations.

An op is defined by its torch reference, with the docstring that all implementations obey. Other
implementations are functions of the same name and arguments in `engine.kernels.<backend>.<its module>`,
imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from typing import Any, Generic, ParamSpec, TypeVar

from engine.kernels import backend

P = ParamSpec("P")
R = TypeVar("R")

_KERNELS = __name__.removesuffix("op")
"""The package of references and backends, with a dot."""
OPS: dict[str, Op[..., Any]] = {}
"""Every op by name."""


class Op(Generic[P, R]):
    """A function that picks its implementation by the device of its first argument, a tensor.

    Attributes:
        reference: the implementation in torch, which runs anywhere.
        kernels: backends with an implementation, in order of preference.
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
        self._loaded: dict[str, Callable[P, R]] = {"reference": reference}
        OPS[reference.__name__] = self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._check is not None:
            self._check(*args, **kwargs)
        tensor: Any = args[0]
        return self.by(backend.choose(tensor, self.kernels))(*args, **kwargs)

    def by(self, name: backend.Backend) -> Callable[P, R]:
        """The implementation of a given backend."""
        if name not in self._loaded:
            module = self.reference.__module__.replace(_KERNELS, f"{_KERNELS}{name}.")
            self._loaded[name] = getattr(import_module(module), self.reference.__name__)
        return self._loaded[name]


def op(
    *kernels: backend.Backend, check: Callable[..., None] | None = None
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Decorator that makes a torch reference an op.

    Args:
        kernels: backends with a kernel, in order of preference.
        check: raises an error for arguments that no implementation supports.
    """

    def make(reference: Callable[P, R]) -> Op[P, R]:
        return Op(reference, kernels, check)

    return make
