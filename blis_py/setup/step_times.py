"""Step-time components of a deployment: latency model, host work, front end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from blis_py import latency
from blis_py.config.engine import load_engine, names
from blis_py.config.implied import from_preset
from blis_py.config.latency import MOE_BACKENDS, LatencySection
from blis_py.config.models import PLAIN_ENGINE, RunConfig
from blis_py.core.bounds import LAST_NS, clock_ns
from blis_py.core.config import SchedulerConfig
from blis_py.core.policies import CACHE_AWARE
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, LatencyModel, unbounded
from blis_py.latency.graph_sizes import GraphSizes, default_sizes
from blis_py.requests.table import RequestTable
from blis_py.setup._capacity import layout_of
from blis_py.setup.deployment import Deployment

if TYPE_CHECKING:
    from blis_py.latency.expert_load import ExpertLoad
    from blis_py.latency.host_work import MaskPrices
    from blis_py.latency.trained import ServerTerms


def step_times(
    served: Deployment, table: RequestTable, scheduler: SchedulerConfig, autoregressive: bool = True
) -> tuple[LatencyModel, tuple[str, ...]]:
    """The latency model including host work of particular steps, and notes on it.

    Of requests that are not `autoregressive` BLIS has no prices.
    """
    published = autoregressive and served.config.engine == PLAIN_ENGINE
    load = _expert_load(served)
    model, profile = _latency_model(served, published, load), served.profile
    beyond_notes = (*_beyond(model, table, scheduler.max_model_len), *_graph_notes(served, model))
    notes_of_experts = tuple(_of_experts(served, load, model))
    masks, mask_notes = _mask_prices(served, table)
    scan_ns, scan_notes = _scan_price(served, scheduler)
    if masks is not None or scan_ns:
        from blis_py.latency.host_work import with_host_work

        measured_on_gpu = profile is not None and profile.meta.get("device_kind") == "cuda"
        beside = scheduler.async_scheduling or measured_on_gpu
        model = with_host_work(model, masks, scan_ns, masks_beside=beside)
    beyond_notes += tuple(_unused_corrections(served.config))
    return model, (*beyond_notes, *notes_of_experts, *mask_notes, *scan_notes)


def check_delays(model: LatencyModel, table: RequestTable, max_model_len: int) -> None:
    """Refuse token delays whose sum over a request would overflow the clock.

    Raises:
        InputError: the delays of one answer are too long.
    """
    tokens = min(int(table.output_tokens.max(initial=0)), max_model_len)
    if tokens * model.frontend.per_token_ns > LAST_NS:
        problem, fix = "the delays of one answer come to more than a century", "lower the delay per token"
        raise InputError(problem, key="alpha_coeffs", fix=fix)


def _latency_model(served: Deployment, published: bool, load: ExpertLoad | None) -> LatencyModel:
    settings = served.config.latency
    model = latency.build(
        settings.model,
        shape=served.shape,
        gpu=served.gpu,
        tp=served.config.tp,
        alpha=settings.alpha_coeffs,
        beta=settings.beta_coeffs,
        linear=settings.linear or None,
        kernel_profile=settings.kernel_profile,
        profile=served.profile,
        server=server_terms(served.config),
        layout=layout_of(served.config),
        kernels=settings.kernels,
        moe_backend=settings.moe_backend,
        fused_norms=settings.fused_norms,
        graphs=_graphs(served),
        load=load,
        published=published,
    )
    ms = served.config.frontend_ms
    if ms is not None and not _has_its_own_frontend(served.config, ms):
        model.frontend = frontend_of(ms).plus(model.frontend) if model.name == "trained" else frontend_of(ms)
    return model


def _expert_load(served: Deployment) -> ExpertLoad | None:
    """The load of experts that the configuration names; None = the model's."""
    settings = served.config.latency
    if settings.expert_load == "auto" or settings.model != "trained":
        return None
    from blis_py.latency.expert_load import expert_load

    return expert_load(settings.expert_load, served.shape, layout_of(served.config))


def _graph_notes(served: Deployment, model: LatencyModel) -> Iterator[str]:
    """Settings of CUDA graphs where the price of a step does not depend on them."""
    settings, plain = served.config.latency, LatencySection()
    if settings.model == "trained" and not hasattr(unbounded(model), "learned_on"):
        for name in ("cuda_graphs", "cuda_graph_max_size", "cuda_graph_sizes", "cuda_graph_padding"):
            if getattr(settings, name) != getattr(plain, name):
                shape = f"{served.shape.name} under {settings.kernels}"
                yield f"latency.{name} has no effect on {shape}: its steps were learned whole, with graphs"


def _graphs(served: Deployment) -> GraphSizes | None:
    """Batch sizes for which the engine has CUDA graphs; None on a device without a datasheet."""
    config, settings = served.config, served.config.latency
    if served.gpu is None or not settings.cuda_graphs:
        return None if served.gpu is None else GraphSizes()
    padded = settings.cuda_graph_padding
    if settings.cuda_graph_sizes:
        return GraphSizes(tuple(sorted(set(settings.cuda_graph_sizes))), padded)
    return default_sizes(
        settings.kernels,
        served.gpu,
        config.tp,
        config.scheduler.max_num_seqs,
        settings.cuda_graph_max_size,
        padded,
        config.scheduler.max_num_batched_tokens,
        load_engine(config.engine).release,
    )


def _has_its_own_frontend(config: RunConfig, ms: tuple[float, ...]) -> bool:
    """Whether the coefficients of the latency model say what the front end takes, before any preset."""
    settings = config.latency
    own = next((k for k in ("linear.frontend", "alpha_coeffs") if _is_set(settings, k)), None)
    if own is None or from_preset(config, "frontend_ms", ms):
        return own is not None
    problem = f"disagrees with latency.{own}, which is the front end, too"
    raise InputError(problem, key="frontend_ms", value=list(ms), fix="give one of the two")


def _is_set(settings: LatencySection, key: str) -> bool:
    """Whether these coefficients are set; three zeros leave the front end unspecified."""
    if key == "alpha_coeffs":
        return any(settings.alpha_coeffs or ())
    return bool(settings.linear.get("frontend"))


def server_terms(config: RunConfig) -> ServerTerms | None:
    """Server-specific step costs beyond those of `trained`; presets define none for other latency
    models.

    Raises:
        InputError: `latency.step_gap_us` is not one or two numbers.
    """
    gap_us, scale = config.latency.step_gap_us, config.latency.step_scale
    if len(gap_us) > 3:
        fix = "give the gap of a step and, optionally, that of a sequence and the most sequences it holds for"
        raise InputError(
            "must be one to three numbers", key="latency.step_gap_us", value=list(gap_us), fix=fix
        )
    if scale == 1 and not any(gap_us):
        return None
    if config.latency.model != "trained":
        corrections = {"step_scale": scale, "step_gap_us": gap_us}
        bare = LatencySection()
        given = [
            name
            for name, value in corrections.items()
            if value != getattr(bare, name) and not from_preset(config, f"latency.{name}", value)
        ]
        if not given:
            return None
    from blis_py.latency.trained import ServerTerms

    step_us, seq_us, most = (*gap_us, 0.0, 0.0, 0.0)[:3]
    return ServerTerms(scale, step_us * 1e3, seq_us * 1e3, int(most))


def _unused_corrections(config: RunConfig) -> Iterator[str]:
    """A note where an engine file corrects step times of another latency model."""
    settings, bare = config.latency, LatencySection()
    keys = ("step_scale", "step_gap_us")
    corrected = [key for key in keys if getattr(settings, key) != getattr(bare, key)]
    if corrected and settings.model != "trained" and config.engine not in names():
        which = " and ".join(f"latency.{key}" for key in corrected)
        yield f"{which} of {config.engine} correct `trained` alone, and not {settings.model}"


def _beyond(model: LatencyModel, table: RequestTable, max_model_len: int) -> tuple[str, ...]:
    """Conditions of the run outside the model's training range, if the model reports them."""
    beyond = getattr(model, "beyond", None)
    if beyond is None:
        return ()
    longest = int((table.prompt_tokens + table.output_tokens).max(initial=0))
    note = beyond(min(longest, max_model_len))
    return (note,) if note else ()


def _of_experts(served: Deployment, load: ExpertLoad | None, model: LatencyModel) -> Iterator[str]:
    """The load of experts in use, and a note on kernels that no experts need.

    Raises:
        InputError: the kernel that is set has no prices.
    """
    if load is not None:
        yield load.text
    backend = served.config.latency.moe_backend
    if backend == "auto":
        return
    if not served.shape.is_moe:
        yield "latency.moe_backend has no effect on a model without experts"
        return
    has_experts_by = getattr(unbounded(model), "has_experts_by", None)
    if has_experts_by is not None and not has_experts_by(backend):
        gpu = "this device" if served.gpu is None else f"the {served.gpu.name}"
        priced = [name for name in MOE_BACKENDS if name == "auto" or has_experts_by(name)]
        problem = f"is not priced: experts of {served.shape.name}'s format were not measured with it on {gpu}"
        fix = f"use {' or '.join(priced)}"
        raise InputError(problem, key="--moe-backend", value=backend, fix=fix)


def _mask_prices(served: Deployment, table: RequestTable) -> tuple[MaskPrices | None, tuple[str, ...]]:
    """Mask costs of structured outputs, if a request uses them."""
    settings, profile = served.config.latency, served.profile
    constrained = 0 if table.constrained is None else int(table.constrained.sum())
    if not constrained:
        return None, ()
    prices = None if profile is None else profile.masks
    if settings.mask_row_us is not None or settings.mask_step_us is not None:
        from blis_py.latency.host_work import MaskPrices

        row_ns, step_ns = (0.0, 0.0) if prices is None else (prices.row_ns, prices.step_ns)
        row_us, step_us = settings.mask_row_us, settings.mask_step_us
        prices = MaskPrices(
            row_ns if row_us is None else row_us * 1e3, step_ns if step_us is None else step_us * 1e3
        )
    if prices is not None:
        return prices, ()
    share = f"{constrained:,} of {len(table):,}"
    problem = f"{share} answers are constrained by a grammar, which costs nothing here"
    return None, (f"{problem}: say what a mask costs with --mask-row-us, or give a profile that measured it",)


def _scan_price(served: Deployment, scheduler: SchedulerConfig) -> tuple[float, tuple[str, ...]]:
    """Cost of a prefix-cache lookup for a waiting request in ns, if the policy performs one."""
    if scheduler.scheduler not in CACHE_AWARE:
        return 0.0, ()
    config, profile = served.config, served.profile
    stated_us = config.latency.scan_us
    measured_ns = None if profile is None else profile.scan_ns
    if measured_ns is not None and (stated_us is None or from_preset(config, "latency.scan_us", stated_us)):
        return measured_ns, ()
    if stated_us is not None:
        return stated_us * 1e3, ()
    problem = f"{scheduler.scheduler} looks waiting requests up in the prefix cache, which costs nothing here"
    return 0.0, (f"{problem}: say what one costs with --scan-us, or give a profile that measured it",)


def frontend_of(ms: Sequence[float]) -> FrontendDelays:
    """The front-end delays of the configuration, or those of its latency model.

    Raises:
        InputError: `frontend_ms` is not one to four numbers.
    """
    if not 1 <= len(ms) <= 4:
        fix = "give the delay before the engine and, if you like, behind it, a sequence's, a prompt token's"
        raise InputError("must be one to four numbers of ms", key="frontend_ms", value=list(ms), fix=fix)
    delays = (*ms, 0.0, 0.0, 0.0)[:4]
    before_ns, behind_ns, seq_ns, token_ns = (clock_ns(value, 10**6, key="frontend_ms") for value in delays)
    return FrontendDelays(
        before_enqueue_ns=before_ns, behind_ns=behind_ns, behind_seq_ns=seq_ns, prompt_token_ns=token_ns
    )
