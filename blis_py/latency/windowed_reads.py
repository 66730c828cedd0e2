"""Reads of attention under sliding windows, on average over the layers of a model.

The features of a step count whole contexts, of which a layer with a window reads the end only. The contexts
of a step are taken as equal here: exact where all of them are within the window, or all beyond it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_py.latency.fitted_shape import shape_of
from blis_py.latency.fitted_surface import SurfaceCurve
from blis_py.models.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class WindowedReads:
    """Counts of numbers, or of arrays of one length."""

    window: int
    """Tokens that a query sees at most in a layer with a window."""
    share: float
    """Layers with a window among those with a KV cache."""

    def decode_kv_tokens(self, kv_tokens: Any, seqs: Any) -> Any:
        """KV entries that decodes with so many in their contexts read."""
        return kv_tokens - self.share * np.maximum(kv_tokens - seqs * self.window, 0)

    def prefill(self, prompts: Any, tokens: Any, pairs: Any, cached: Any) -> tuple[Any, Any]:
        """Query-key pairs, and KV entries read back, of prompts with so many in whole contexts."""
        each = np.maximum(prompts, 1)
        new = tokens / each
        past = np.maximum(pairs / np.maximum(tokens, 1) - (new + 1) / 2, 0)
        within = np.clip(self.window - past, 0, new)  # tokens that see all before them
        keys_read = each * (within * (past + (within + 1) / 2) + (new - within) * self.window)
        beyond = np.maximum(cached - each * self.window, 0)
        return pairs - self.share * np.maximum(pairs - keys_read, 0), cached - self.share * beyond

    def over_contexts(self, curve: SurfaceCurve, seqs: int) -> SurfaceCurve:
        """A curve over the entries that so many decodes read, as one over those of their contexts."""
        edge, kept = float(seqs * self.window), 1.0 - self.share
        inner = bisect_right(curve.at, edge)
        last = inner - 1
        edge_ns = curve.ns[last] + curve.slopes[last] * (edge - curve.at[last])
        at, ns, slopes = [*curve.at[:inner], edge], [*curve.ns[:inner], edge_ns], curve.slopes[:inner]
        if kept:
            at += [edge + (entries - edge) / kept for entries in curve.at[inner:]]
            ns += curve.ns[inner:]
        return SurfaceCurve(at, ns, [*slopes, *(kept * slope for slope in curve.slopes[last:])][: len(at)])


def windowed_reads(meta: Mapping[str, Any], shape: ModelShape | None = None) -> WindowedReads | None:
    """Those of a measured engine; None where all of every context is read.

    Torch's attention on a CPU gathers whole contexts.

    Args:
        shape: of the model, if it is not that of the profile's `model_config`.
    """
    if meta.get("device_kind") != "cuda":
        return None
    shape = shape or shape_of(meta)
    if shape is None or not shape.windowed_layers or not shape.cached_layers:
        return None
    return WindowedReads(shape.sliding_window, shape.windowed_layers / shape.cached_layers)
