"""Columns of tables: times in ns, labels, arrays, texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.light_dataclass import dataclass
from blis_py.requests.table import Ints, Labels


@dataclass(frozen=True, slots=True)
class Times:
    """A column of times in ns, -1 where undefined, shown in a decimal unit without losing a nanosecond."""

    ns: Ints
    decimals: int
    """9 for seconds, 6 for ms."""

    def to_floats(self) -> NDArray[np.float64]:
        return np.where(self.ns >= 0, self.ns / 10**self.decimals, np.nan)


Column = Times | Labels | NDArray[Any] | Sequence[str]


def whole_ns(column: NDArray[np.float64]) -> Ints:
    return np.where(np.isnan(column), -1, np.rint(column)).astype(np.int64)
