"""Prices that are linear in pieces, and the slowest of several ranks by them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.features import StepFeatures
from blis_py.core.rank_features import RankedFeatures

Array = NDArray[np.float64]
Load = tuple[int, float]
"""Decodes of a rank, and the sum of their contexts."""


@mypyc_attr(acyclic=True)
class Line:
    """Points of a quantity over one axis, linear in between and beyond."""

    def __init__(self, at: list[float], ns: list[float], slopes: list[float]) -> None:
        self.at, self.ns, self.slopes = at, ns, slopes
        self._latest = 0
        """The piece found last: most places are near the one before."""

    @classmethod
    def of(cls, at: Array, ns: Array) -> Line:
        slopes = np.diff(ns) / np.diff(at)
        return cls(at[:-1].tolist(), ns[:-1].tolist(), slopes.tolist())

    def piece(self, where: float) -> int:
        """Number of the straight piece; the first and the last go on beyond the points."""
        at, i = self.at, self._latest
        if at[i] <= where and (i + 1 == len(at) or where < at[i + 1]):
            return i
        i = bisect_right(at, where) - 1
        self._latest = i = i if i > 0 else 0
        return i

    def on(self, piece: int, where: float) -> float:
        """Value by one of the pieces."""
        return self.ns[piece] + self.slopes[piece] * (where - self.at[piece])

    def along(self, piece: int, where: Array) -> Array:
        """Values by one of the pieces."""
        found: Array = self.ns[piece] + self.slopes[piece] * (where - self.at[piece])
        return found

    def value(self, where: float) -> float:
        return self.on(self.piece(where), where)

    def each(self, where: float, growth: int, steps: int) -> list[float]:
        """Values at so many places from this one on, `growth` apart."""
        return [self.value(where + growth * step) for step in range(steps)]

    def straight(self, low: float, high: float) -> bool:
        """Whether no point lies in between."""
        return self.piece(low) == self.piece(high)

    def values(self, where: Array) -> Array:
        """Values at ascending places."""
        low, high = self.piece(float(where[0])), self.piece(float(where[-1]))
        if low == high:
            return self.along(low, where)
        at, ns, slopes = np.asarray(self.at), np.asarray(self.ns), np.asarray(self.slopes)
        i = np.maximum(np.searchsorted(at, where, side="right") - 1, 0)
        return np.asarray(ns[i] + slopes[i] * (where - at[i]))


class RankPrices:
    """Prices of what a rank computes for its own requests.

    Args:
        tokens: everything but attention and the LM head, over the tokens of a rank.
        rows: LM head and sampling, over the sequences that emit a token.
        decodes: attention of so many decodes, over the sum of their contexts.
        prompts: attention of so many prompts with so many tokens and query-key pairs.
    """

    def __init__(
        self,
        tokens: Line,
        rows: Line,
        decodes: Callable[[int], Line],
        prompts: Callable[[int, float, float], float],
    ) -> None:
        self._tokens = tokens
        self._rows = rows
        self._make = decodes
        self._prompts = prompts
        self._decodes: dict[int, Line] = {}
        self._own: dict[int, float] = {}
        """A rank that decodes, without attention, by its sequences."""

    def decodes(self, seqs: int) -> Line:
        line = self._decodes.get(seqs)
        if line is None:
            line = self._decodes[seqs] = self._make(seqs)
        return line

    def step_ns(self, f: StepFeatures, kv_tokens: int) -> float:
        """A rank's own part of a step with prompts.

        Args:
            kv_tokens: KV entries that its decodes read.
        """
        decodes, rows = f.decode_seqs, f.emitted_rows
        if not f.prefill_seqs and rows == decodes:
            own = self._own.get(decodes)
            if own is None:
                own = self._own[decodes] = self._tokens.value(decodes) + self._rows.value(rows)
            return own + self.decodes(decodes).value(kv_tokens)
        ns = self._tokens.value(f.prefill_tokens + decodes) + (self._rows.value(rows) if rows else 0.0)
        if f.prefill_seqs:
            ns += self._prompts(f.prefill_seqs, f.prefill_tokens, f.prefill_pairs)
        if decodes:
            ns += self.decodes(decodes).value(kv_tokens)
        return ns

    def slowest_step(self, step: RankedFeatures) -> tuple[int, int, float]:
        """Tokens of all ranks (an idle one computes one), those of the busiest, and the own part of the
        slowest."""
        tokens, most, slowest_ns = 0, 0, 0.0
        for number, rank in enumerate(step.ranks):
            own = rank.prefill_tokens + rank.decode_seqs
            tokens += own or 1
            if own:
                ns = self.step_ns(rank, step.kv_tokens(number))
                if ns > slowest_ns:
                    slowest_ns = ns
                if own > most:
                    most = own
        return tokens, most, slowest_ns

    def slowest_decode(self, step: RankedFeatures) -> tuple[int, int, float]:
        """The same of a decode step: decodes, those of the busiest rank, and attention of the slowest."""
        tokens, most, slowest_ns = 0, 0, 0.0
        for number, rank in enumerate(step.ranks):
            seqs = rank.decode_seqs
            tokens += seqs or 1
            if seqs:
                ns = self.decodes(seqs).value(step.kv_tokens(number))
                if ns > slowest_ns:
                    slowest_ns = ns
                if seqs > most:
                    most = seqs
        return tokens, most, slowest_ns

    def slowest_each(self, loads: Sequence[Load], steps: int) -> list[float]:
        """Attention of the slowest rank in each of so many steps."""
        slowest = [0.0] * steps
        for seqs, kv_tokens in loads:
            line = self.decodes(seqs)
            for step in range(steps):
                ns = line.value(kv_tokens + seqs * step)
                if ns > slowest[step]:
                    slowest[step] = ns
        return slowest

    def slowest_decodes(self, loads: Sequence[Load], steps: Array) -> Array:
        """Attention of the slowest rank after so many more steps. Between two points of their lines, the rank
        that is the slowest in the first and in the last step is so in all of them."""
        last = float(steps[-1])
        straight, first, first_piece = True, -1, 0
        first_ns, first_end_ns, longest_ns = 0.0, 0.0, 0.0
        for number, (seqs, kv_tokens) in enumerate(loads):
            line, end = self.decodes(seqs), kv_tokens + seqs * last
            piece, end_piece = line.piece(kv_tokens), line.piece(end)
            if piece != end_piece:
                straight = False
            ns, end_ns = line.on(piece, kv_tokens), line.on(end_piece, end)
            if first < 0 or ns > first_ns:
                first, first_piece, first_ns, first_end_ns = number, piece, ns, end_ns
            if end_ns > longest_ns:
                longest_ns = end_ns
        if straight and first_end_ns >= longest_ns:
            seqs, kv_tokens = loads[first]
            alone: Array = self.decodes(seqs).along(first_piece, kv_tokens + seqs * steps)
            return np.maximum(0.0, alone)
        found: Any = np.zeros_like(steps)
        for seqs, kv_tokens in loads:
            found = np.maximum(found, self.decodes(seqs).values(kv_tokens + seqs * steps))
        return np.asarray(found)


def loads_of(step: RankedFeatures) -> tuple[list[Load], int, int]:
    """Decodes of ranks with their contexts, the tokens of all, and the decodes of the busiest."""
    loads: list[Load] = []
    tokens, most = 0, 0
    for number, rank in enumerate(step.ranks):
        seqs = rank.decode_seqs
        tokens += seqs or 1
        if seqs:
            if seqs > most:
                most = seqs
            loads.append((seqs, float(step.kv_tokens(number))))
    return loads, tokens, most


def most_seqs(step: RankedFeatures) -> int:
    """Sequences of the busiest rank."""
    most = 0
    for rank in step.ranks:
        seqs = rank.prefill_seqs + rank.decode_seqs
        if seqs > most:
            most = seqs
    return most
