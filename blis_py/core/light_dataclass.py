"""Dataclasses without generated code.

`dataclasses.dataclass` compiles up to seven methods per class, which takes half a millisecond; the simulation
of a single request defines sixty. Here all classes share these methods: a class takes a twentieth of that
time, an object some microseconds more. Right for settings and for records of a run, not for what is created
per request or per step. `fields`, `replace`, `asdict`, `pickle` and `copy` work as ever.

A family of classes uses one of the two decorators.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen=False, slots=False, kw_only=False, init=True, repr=True, eq=True):
        """The decorator, as `dataclasses.dataclass`."""
        methods = {"__init__": _init} if init else {}
        methods |= {"__repr__": _repr} if repr else {}
        methods |= {"__eq__": _equal, "__hash__": _hash if frozen else None} if eq else {}
        if frozen:
            methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        if frozen and slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}

        def made(cls):
            for name, method in methods.items():
                if name not in cls.__dict__:
                    setattr(cls, name, method)
            return dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)

        return made


def _init(self: Any, /, *args: Any, **given: Any) -> None:
    name, own = type(self).__name__, _fields_of(type(self))
    if args:
        positional = [field.name for field in own if field.init and not field.kw_only]
        if len(args) > len(positional):
            raise TypeError(
                f"{name}() takes {len(positional)} positional arguments but {len(args)} were given"
            )
        for key, value in zip(positional, args, strict=False):
            if key in given:
                raise TypeError(f"{name}() got multiple values for argument {key!r}")
            given[key] = value
    for field in own:
        if field.init and field.name in given:
            value = given.pop(field.name)
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        elif field.init:
            raise TypeError(f"{name}() missing argument: {field.name!r}")
        else:
            continue
        object.__setattr__(self, field.name, value)
    if given:
        raise TypeError(f"{name}() got an unexpected keyword argument {next(iter(given))!r}")
    if hasattr(self, "__post_init__"):
        self.__post_init__()


_known: dict[type, tuple[dataclasses.Field[Any], ...]] = {}


def _fields_of(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a class, looked up once."""
    own = _known.get(kind)
    if own is None:
        own = _known[kind] = fields(kind)
    return own


def copied(value: Any) -> Any:
    """Mappings in place of dataclasses, as by `dataclasses.asdict`; containers are copied, leaves are not."""
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {field.name: copied(getattr(value, field.name)) for field in _fields_of(kind)}
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    return kind(copied(item) for item in value) if kind in (tuple, list) else value


def _repr(self: Any) -> str:
    shown = ", ".join(
        f"{field.name}={getattr(self, field.name)!r}" for field in _fields_of(type(self)) if field.repr
    )
    return f"{type(self).__qualname__}({shown})"


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, field.name) for field in _fields_of(type(self)) if field.compare])


def _equal(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _refuse_set(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in _fields_of(type(self))]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(_fields_of(type(self)), state, strict=True):
        object.__setattr__(self, field.name, value)
