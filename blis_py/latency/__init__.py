"""Latency models: step features in, nanoseconds out; and their factory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.errors import InputError
from blis_py.hardware.capacity import check_tp
from blis_py.hardware.gpu import GpuSpec
from blis_py.hardware.layout import Layout
from blis_py.latency.base import LatencyModel
from blis_py.latency.graph_sizes import GraphSizes
from blis_py.latency.trained_physics import TrainedPhysics
from blis_py.models.model_shape import ModelShape

if TYPE_CHECKING:
    from blis_py.latency.expert_load import ExpertLoad
    from blis_py.latency.fitted_profile import FittedProfile
    from blis_py.latency.linear import LinearCoefficients
    from blis_py.latency.trained import ServerTerms


def _linear(
    shape: ModelShape, gpu: GpuSpec, tp: int, linear: LinearCoefficients | Mapping[str, Any] | None = None
) -> LatencyModel:
    from blis_py.latency.linear import Linear, LinearCoefficients

    if linear is None:
        raise InputError("needs its coefficients", key="latency.linear", fix="give gpu and host costs in ns")
    if isinstance(linear, LinearCoefficients):
        return Linear(linear)
    return Linear(LinearCoefficients.from_mapping(linear))


def _roofline(shape: ModelShape, gpu: GpuSpec, tp: int) -> LatencyModel:
    from blis_py.latency.roofline import Roofline

    return Roofline(shape, gpu, tp)


def _trained(
    shape: ModelShape,
    gpu: GpuSpec,
    tp: int,
    server: ServerTerms | None = None,
    layout: Layout | None = None,
    kernels: str = "vllm",
    moe_backend: str = "auto",
    fused_norms: bool = False,
    graphs: GraphSizes | None = None,
    load: ExpertLoad | None = None,
) -> LatencyModel:
    from blis_py.latency.served import Served, bounded_price

    layout = layout or Layout(tp)
    served = Served(shape, gpu, layout, kernels, moe_backend, fused_norms, graphs, load)
    return bounded_price(served).model(server)


def _kernel_tables(
    shape: ModelShape, gpu: GpuSpec, tp: int, kernel_profile: str | Path | None = None
) -> LatencyModel:
    from blis_py.latency.kernel_tables import KernelTables

    if kernel_profile is None:
        fix = "give the folder with --kernel-profile"
        raise InputError("needs a folder of measured kernels", key="latency.kernel_profile", fix=fix)
    return KernelTables(shape, gpu, tp, kernel_profile)


def _fitted(
    shape: ModelShape, gpu: GpuSpec | None, tp: int, profile: str | Path | FittedProfile | None = None
) -> LatencyModel:
    from blis_py.latency.fitted import Fitted
    from blis_py.latency.fitted_profile import FittedProfile, read_profile
    from blis_py.latency.fitted_shape import require_same, shape_of

    if profile is None:
        fix = "give the folder with --profile"
        raise InputError("needs a fitted profile", key="latency.profile", fix=fix)
    fitted = profile if isinstance(profile, FittedProfile) else read_profile(profile)
    measured = shape_of(fitted.meta, fitted.file)
    if measured is not None:
        require_same(measured, shape, fitted.file)
    fitted.require_tp(tp)
    return Fitted(fitted, shape, guide=None if gpu is None else _trained(shape, gpu, tp))


LATENCY_MODELS: dict[str, Callable[..., LatencyModel]] = {
    "trained-physics": TrainedPhysics,
    "trained": _trained,
    "roofline": _roofline,
    "kernel-tables": _kernel_tables,
    "linear": _linear,
    "fitted": _fitted,
}
"""Name -> constructor(shape, gpu, tp, options of its own)."""

PRICES_LINKS = ("trained", "roofline")
"""Models whose all-reduces depend on the GPU's link only."""

_OPTIONS = {
    "trained": ("server",),
    "trained-physics": ("alpha", "beta"),
    "linear": ("linear",),
    "kernel-tables": ("kernel_profile",),
    "fitted": ("profile",),
}
_FLAGS = {
    "server": "latency.step_scale, latency.step_gap_us",
    "alpha": "--alpha-coeffs",
    "beta": "--beta-coeffs",
    "linear": "latency.linear",
    "kernel_profile": "--kernel-profile",
    "profile": "--profile",
}


def build(
    name: str,
    *,
    shape: ModelShape,
    gpu: GpuSpec | None,
    tp: int = 1,
    alpha: Sequence[float] | None = None,
    beta: Sequence[float] | None = None,
    linear: LinearCoefficients | Mapping[str, Any] | None = None,
    kernel_profile: str | Path | None = None,
    profile: str | Path | FittedProfile | None = None,
    server: ServerTerms | None = None,
    layout: Layout | None = None,
    kernels: str = "vllm",
    moe_backend: str = "auto",
    fused_norms: bool = False,
    graphs: GraphSizes | None = None,
    load: ExpertLoad | None = None,
    published: bool = False,
) -> LatencyModel:
    """A latency model by its name in `--latency-model`.

    Args:
        name: a key of `LATENCY_MODELS`.
        shape, gpu, tp: model, accelerator (None for `fitted` only, which was measured on one),
            tensor-parallel degree.
        alpha, beta: coefficients of `trained-physics`, both or neither.
        linear: coefficients of `linear`, as an object or as `{gpu: {feature: ns}, host: {...}}`.
        kernel_profile: folder of measured kernels for `kernel-tables`.
        profile: fitted profile for `fitted`: its folder, or what was read from there.
        server: deviation of one server's step times from those of `trained`.
        layout: division of the `tp` GPUs, if it is not tensor parallelism alone.
        published: price `roofline` as BLIS does.
        kernels, moe_backend, fused_norms: engine whose kernels `trained` prices, its kernels of experts, and
            whether its all-reduces normalise.
        graphs: batch sizes for which the engine has CUDA graphs; None = for every one.
        load: load of the experts of `trained`; None = by the model's routing.

    Raises:
        InputError: unknown name, a TP degree that does not divide it,
            coefficients missing, or given to a latency model without any.
    """
    if name not in LATENCY_MODELS:
        fix = f"use one of {', '.join(LATENCY_MODELS)}"
        raise InputError("unknown latency model", key="--latency-model", value=name, fix=fix)
    layout = layout or Layout(tp)
    layout.check(shape)
    check_tp(shape, layout.attention_tp)
    given = {
        "alpha": alpha,
        "beta": beta,
        "linear": linear,
        "kernel_profile": kernel_profile,
        "profile": profile,
        "server": server,
    }
    options = {key: value for key, value in given.items() if value is not None}
    for key in options:
        if key not in _OPTIONS.get(name, ()):
            owner = next(model for model, accepted in _OPTIONS.items() if key in accepted)
            fix = f"drop it or use --latency-model {owner}"
            raise InputError(f"{name} takes no such coefficients", key=_FLAGS[key], fix=fix)
    if name == "trained" and gpu is not None:
        return _trained(shape, gpu, tp, server, layout, kernels, moe_backend, fused_norms, graphs, load)
    _check_priced(name, shape, layout)
    if name == "roofline" and published and gpu is not None:
        from blis_py.latency.published_roofline import PublishedRoofline

        return PublishedRoofline(shape, gpu, tp)
    return LATENCY_MODELS[name](shape, gpu, tp, **options)


def _special(shape: ModelShape) -> str:
    """The first part of a model that is not that of a plain decoder, in words."""
    parts = {
        "sparse attention": shape.indexer or shape.compressed or shape.blocks,
        "latent attention": shape.latent,
        "layers of different heads": shape.full_heads,
        "linear attention": shape.linear,
        "feed-forward layers without a gate": shape.ffn_matrices == 2,
        "experts between narrower vectors": shape.expert_hidden,
    }
    return next((name for name, part in parts.items() if part), "gated attention")


def _check_priced(name: str, shape: ModelShape, layout: Layout) -> None:
    """Refuse models and layouts that only operators price.

    Raises:
        InputError: this model prices neither.
    """
    if name in ("linear", "fitted"):
        return
    fix = "use --latency-model trained"
    if not shape.is_plain:
        problem = f"{name} does not price {_special(shape)}"
        raise InputError(problem, key="--model", value=shape.name, fix=fix)
    if layout != Layout(layout.gpus):
        raise InputError(f"{name} does not price {layout}", key="--ep, --attention-dp", fix=fix)
