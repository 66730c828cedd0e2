"""Ledgers by kind of requests: a module for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from blis_py.cluster.instances.kinds import KindOfRequests
from blis_py.core.features import StepFeatures
from blis_py.core.kinds import modules
from blis_py.ledger.division import PrefillChunk
from blis_py.ledger.witness import MakeNoting


class KindInLedgers(Protocol):
    """The functions of such a module."""

    def noting(self, kind: KindOfRequests) -> MakeNoting:
        """The class of an instance's notes."""
        ...

    def chunk_alone(self, chunk: PrefillChunk, kind: KindOfRequests) -> StepFeatures:
        """The step of a piece of prompt and nothing else."""
        ...

    def changes(self, kind: KindOfRequests) -> Iterator[tuple[str, Any]]:
        """Changes worth a run: a setting and its other value."""
        ...


KINDS: dict[str, KindInLedgers] = modules("blis_py.ledger")


def noting(kind: KindOfRequests | None) -> MakeNoting | None:
    """The class of an instance's notes; `None` = as of autoregressive requests."""
    return None if kind is None else KINDS[kind.name].noting(kind)


def chunk_alone(kind: KindOfRequests | None) -> Callable[[PrefillChunk], StepFeatures] | None:
    """The step of a piece of prompt and nothing else; `None` = as of autoregressive requests."""
    if kind is None:
        return None
    module = KINDS[kind.name]
    return lambda chunk: module.chunk_alone(chunk, kind)
