"""Relations that prices obey, whatever their tables say, and how far a model's prices are from them.

A `Case` is a bundled model in a number format on a GPU under an engine, at a TP degree. `violations` compares
the prices of its typical steps with those of neighbours, of less work and of the datasheet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.hardware.gpu import GpuSpec, load_gpu
from blis_py.latency import build
from blis_py.latency.datasheet_bound import bound_ns
from blis_py.latency.operators import ENGINES
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.weights import MXFP4_BYTES, Weights

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
MODELS = sorted(path.stem for path in (PROFILES / "models").glob("*.json"))
GPUS = sorted(path.stem for path in (PROFILES / "gpus").glob("*.yaml") if path.stem != "names")
TP = 1, 2, 4, 8
TOLERANCE = 1.06
"""What typical steps between those at which bounds are chosen may exceed them by."""
_SEQS = 1, 4, 16, 64, 256, 512
_CONTEXTS = 128, 4096, 32_768
_TOKENS = 16, 128, 1024, 2048, 8192
_PASTS = 0, 32_768
_BESIDE = 16, 256
NEWER = {
    "h100": ("a100-80",),
    "h200": ("h100",),
    "b200": ("h200", "h100"),
    "gb200": ("b200", "h200"),
    "b300": ("h200",),
    "gb300": ("gb200", "h200"),
    "a100-80": ("a100-40",),
    "mi325x": ("mi300x",),
}
"""GPUs with no less of anything than older ones of the same maker."""
WIDER = {
    "fp8": ("16",),
    "fp8 blocks": ("16",),
    "nvfp4": ("16", "fp8"),
    "int4": ("16",),
    "mxfp4": ("16",),
    "kv8": ("16",),
    "fp8 kv8": ("fp8",),
}
"""Formats with more bytes for each weight, or for each entry of the KV cache."""
FORMS = "16", *WIDER


class Case(NamedTuple):
    model: str
    form: str
    gpu: str
    engine: str
    tp: int

    @property
    def shape(self) -> ModelShape:
        """Raises:
        InputError: the model is not priced.
        """
        return _in_form(_model(self.model), self.form)


class Prices(NamedTuple):
    """ns of decodes by sequences and contexts, of prompts by tokens and cached ones, and of both."""

    decodes: Any
    prompts: Any
    mixed: Any


class Violation(NamedTuple):
    """How many times a price is what a relation allows."""

    relation: str
    case: Case
    ratio: float


@cache
def _gpu(name: str) -> GpuSpec:
    return load_gpu(name)


@cache
def _model(name: str) -> ModelShape:
    return load_model(name)


@cache
def _in_form(shape: ModelShape, form: str) -> ModelShape:
    linear = 2.0
    if "kv8" in form:
        shape, form = replace(shape, kv_dtype_bytes=1), form.removesuffix("kv8").strip() or "16"
    size, arithmetic = {
        "16": (2.0, "fp16"),
        "fp8": (1.0, "fp8"),
        "fp8 blocks": (1.0, "fp8"),
        "nvfp4": (0.5625, "fp4"),
        "int4": (0.53125, "fp16"),
        "mxfp4": (2.0, "fp4"),
    }[form]
    weights = Weights.of(size, arithmetic)
    weights = replace(weights, linear=size if shape.linear else linear, block_scales=form == "fp8 blocks")
    return replace(shape, weights=replace(weights, experts=MXFP4_BYTES) if form == "mxfp4" else weights)


def decode(seqs: int, context: int) -> StepFeatures:
    return StepFeatures(
        decode_seqs=seqs, decode_kv_tokens=seqs * context, max_context=context, emitted_rows=seqs
    )


def prompt(tokens: int, past: int, decodes: int = 0) -> StepFeatures:
    return StepFeatures(
        prefill_seqs=1,
        prefill_tokens=tokens,
        prefill_pairs=tokens * past + tokens * (tokens + 1) // 2,
        prefill_kv_tokens=past,
        prefill_prompt_pairs=tokens * (past + tokens / 2),
        max_context=past,
        emitted_rows=decodes + 1,
        decode_seqs=decodes,
        decode_kv_tokens=decodes * _CONTEXTS[0],
    )


def _grid(ns: Callable[[StepFeatures], float]) -> Prices:
    return Prices(
        np.array([[ns(decode(seqs, context)) for context in _CONTEXTS] for seqs in _SEQS], dtype=float),
        np.array([[ns(prompt(tokens, past)) for past in _PASTS] for tokens in _TOKENS], dtype=float),
        np.array([[ns(prompt(tokens, 0, seqs)) for seqs in _BESIDE] for tokens in _TOKENS], dtype=float),
    )


@lru_cache(maxsize=4096)
def prices(case: Case) -> Prices | None:
    """Prices of a case; None if it has none."""
    try:
        shape = case.shape
        if case.form == "mxfp4" and not shape.is_moe:
            return None
        model = build("trained", shape=shape, gpu=_gpu(case.gpu), tp=case.tp, kernels=case.engine)
    except InputError:
        return None
    return _grid(model.step_ns)


def violations(case: Case) -> Iterator[Violation]:
    """All relations of a case that its prices break, beyond the tolerance."""
    own = prices(case)
    if own is None:
        return
    for relation, ratio in _ratios(case, own):
        if ratio > TOLERANCE:
            yield Violation(relation, case, round(float(ratio), 3))


def _ratios(case: Case, own: Prices) -> Iterator[tuple[str, float]]:
    for wider in WIDER.get(case.form, ()):
        if not (case.form == "nvfp4" and wider == "fp8" and not _gpu(case.gpu).fp4_flops):
            yield from _against(f"slower than {wider}", own, prices(case._replace(form=wider)))
    for older in NEWER.get(case.gpu, ()):
        if _multiplies_alike(case, _gpu(older)):
            yield from _against(f"slower than on {older}", own, prices(case._replace(gpu=older)))
    if case.tp > 1:
        fewer = case._replace(tp=case.tp // 2)
        exchange = _grid(lambda step: _exchange_ns(case, step))
        found = prices(fewer)
        by = found and Prices(*(a + b for a, b in zip(found, exchange, strict=True)))
        yield from _against("slower than on half of the GPUs and the exchange", own, by)
    for part, name in zip(own, ("decodes", "prompts", "mixed steps"), strict=True):
        yield f"{name}: more sequences or tokens are faster", (part[:-1] / part[1:]).max()
        yield f"{name}: longer contexts or more decodes are faster", (part[:, :-1] / part[:, 1:]).max()
    growth = np.array(_SEQS[1:]) / np.array(_SEQS[:-1])
    yield "less throughput with more sequences", (own.decodes[1:] / own.decodes[:-1] / growth[:, None]).max()
    shape, gpu = case.shape, _gpu(case.gpu)
    least = _grid(lambda step: bound_ns(shape, gpu, case.tp, step))
    yield "faster than the datasheet", max((a / b).max() for a, b in zip(least, own, strict=True))


def _against(relation: str, own: Prices, other: Prices | None) -> Iterator[tuple[str, float]]:
    if other is not None:
        names = "decodes", "prompts", "mixed steps"
        for name, a, b in zip(names, own, other, strict=True):
            yield f"{name}: {relation}", (a / b).max()


def _multiplies_alike(case: Case, older: GpuSpec) -> bool:
    """Whether an older GPU has the arithmetic of the format, too: otherwise its weights are expanded to 16
    bits, which is another way of computing."""
    has_no_eight = "fp8" in case.form and not older.fp8_flops
    return not has_no_eight and not (case.form in ("nvfp4", "mxfp4") and not older.fp4_flops)


def _exchange_ns(case: Case, step: StepFeatures) -> float:
    """Two all-reduces of each layer, at the share of the link that large ones reach."""
    shape, gpu = case.shape, _gpu(case.gpu)
    moved = step.tokens * shape.hidden * 2 * 2 * (case.tp - 1) / case.tp
    ns = moved / (gpu.link_bytes_per_s * gpu.link_efficiency / 1e9)
    return 2 * shape.layers * (gpu.all_reduce_overhead_ns + ns)


def cases(
    models: Sequence[str],
    gpus: Sequence[str],
    engines: Sequence[str] = ENGINES,
    tps: Sequence[int] = TP,
) -> Iterator[Case]:
    """All formats, neighbours close together."""
    for model, engine, tp, gpu, form in product(models, engines, tps, gpus, FORMS):
        yield Case(model, form, gpu, engine, tp)
