"""Triton's interpreter with less work of its own: the same results and checks in half of the time.

It patches the language anew at every call of a device function, where once a launch is enough, and finds
overflows of integers by a dozen interpreted operations for each addition, where NumPy takes three. It
makes the type of every tuple, which few read, and the table of NumPy's types anew for every
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import FunctionType
from typing import Any

import numpy as np
import pytest

_WIDE = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Patch the interpreter."""
    import triton.language as tl
    from triton.language import semantic
    from triton.runtime import interpreter

    patch_language = interpreter._patch_lang
    # What it patches is found in a function's globals. Device functions, Triton's own included, name either.
    names_all = FunctionType(call.__code__, {"tl": tl, "core": tl.core})
    patch.setattr(interpreter, "_patch_lang", lambda _: patch_language(names_all))
    patch.setattr(interpreter.InterpretedFunction, "__call__", call)
    patch.setattr(semantic.TritonSemantic, "binary_op_sanitize_overflow_impl", refuse_overflow)
    patch.setattr(interpreter, "_get_np_dtype", by_scalar(interpreter._get_np_dtype))
    patch.setattr(tl.core, "_unwrap_shape", unwrapped)
    patch.setattr(tl.core.tuple, "__init__", with_values)
    patch.setattr(tl.core.tuple, "type", cached_property(type_of_values), raising=False)
    tl.core.tuple.type.__set_name__(tl.core.tuple, "type")


def by_scalar(dtype_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function of a type, called once for each scalar type."""
    known: dict[str, Any] = {}

    def call(type: Any) -> Any:
        scalar = type.scalar
        if scalar.name not in known:
            known[scalar.name] = dtype_of(scalar)
        return known[scalar.name]

    return call


def unwrapped(shape: Any) -> list[Any]:
    """The numbers of a shape."""
    from triton.language.core import constexpr

    numbers = shape.value if isinstance(shape, constexpr) else shape
    return [number.value if isinstance(number, constexpr) else number for number in numbers]


def with_values(self: Any, args: Sequence[Any], type: Any = None) -> None:
    """A tuple whose type is that of its values, unless there is another."""
    from triton.language.core import tuple_type

    self.values = [*args]
    if type is not None:
        self.type = type if isinstance(type, tuple_type) else tuple_type(type)


def type_of_values(self: Any) -> Any:
    """The type of a tuple that was made without one."""
    from triton.language import core

    return core._type_for_tuple_values(self.values)


def call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A device function, in a language that is patched already."""
    return self.rewrite()(*args, **kwargs)


def refuse_overflow(self: Any, left: Any, right: Any, operation: Any) -> None:
    """Fail where a result does not fit into the type of its operands."""
    kind = left.type.scalar
    if kind.int_bitwidth >= 64:
        return
    wide = _WIDE[operation.__name__](left.handle.data.astype(np.int64), right.handle.data.astype(np.int64))
    assert wide.min() >= kind.get_int_min_value(), f"{kind} overflow of {operation.__name__}"
    assert wide.max() <= kind.get_int_max_value(), f"{kind} overflow of {operation.__name__}"
