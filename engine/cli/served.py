"""Common parts of `bench replay` and `run`: a workload, a warmed-up engine, and synthetic prompts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.options import TRACE, WORKLOAD
from blis_py.errors import InputError
from engine.cli import kinds
from engine.cli.grammar import STRUCTURED, chosen, structured_outputs
from engine.cli.options import ENGINE, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from blis_py.config.models import RunConfig
    from blis_py.requests.table import RequestTable
    from engine.cli.kinds import KindSettings
    from engine.clock import Clock
    from engine.config import EngineConfig
    from engine.grammar.params import StructuredOutputsParams
    from engine.kinds import Engine

LOAD = (
    *TRACE,
    *WORKLOAD,
    Flag("--no-warm-up", bool, "", "Measure from the first step on."),
    Flag("--horizon", str, "horizon", "Generate requests up to this time: 60s, 10m."),
)
FORM = ("Form of the outputs", STRUCTURED)
SERVED = (*ENGINE, *kinds.GROUPS)
"""Flags of the engine that serves it."""
_WORKLOAD_FLAGS = {spelling for flag in LOAD if flag.key for spelling in (flag.name, *flag.aliases)}
_WARM_UP_REQUESTS = 4


@dataclass(frozen=True)
class Ready:
    """Everything prepared before the first request is sent."""

    run: RunConfig
    """Source of the workload."""
    config: EngineConfig
    kind: KindSettings | None
    """None where the model is autoregressive."""
    engine: Engine
    table: RequestTable
    prompts: list[list[int]]
    structured: list[StructuredOutputsParams | None] | None = None
    """Structured-output form of each request; None = unconstrained."""
    form: dict[str, Any] = field(default_factory=dict)
    """Entry in run.yaml."""


def make_ready(flags: Flags, *, at_once: bool = False) -> Ready:
    """Build everything from the flags; prompts are synthetic and share prefixes as the table describes.

    Args:
        at_once: all requests arrive at 0.

    Raises:
        InputError: unusable workload, model or settings.
    """
    from blis_py.cli.flags.configure import configure
    from blis_py.setup.from_config import requests
    from engine.synthetic import as_prompted, synthetic_prompts

    run = configure(
        {name: value for name, value in flags.items() if name in _WORKLOAD_FLAGS or name == "--seed"}
    )
    config, kind = kinds.configured(flags)
    table = as_prompted(requests(run))
    if at_once:
        table = replace(
            table,
            arrival_ns=np.zeros_like(table.arrival_ns),
            deadline_ns=np.where(table.deadline_ns < 0, -1, table.deadline_ns - table.arrival_ns),
        )
    _check_clock(config)
    engine = kinds.build_as(config, kind)
    prompts = synthetic_prompts(table, engine.vocab_size, config.seed)
    say(f"KV cache: {engine.scheduler.config.num_kv_blocks:,} blocks ({engine.recorder.meta['kv_capacity']})")
    form = _form(flags, engine)
    constrained = chosen(table, form)
    if "--no-warm-up" not in flags:
        _warm_up(engine, table.limited(_WARM_UP_REQUESTS), prompts, form)
    config = replace(config, block_size=engine.scheduler.config.block_size)
    ready = Ready(run, config, kind, engine, table, prompts)
    return ready if form is None or constrained is None else _with_form(ready, form, constrained)


def _form(flags: Flags, engine: Engine) -> StructuredOutputsParams | None:
    """The form of outputs, compiled before the first request waits for it."""
    from engine.engine import LLMEngine

    form = structured_outputs(flags)
    if form is not None:
        if not isinstance(engine, LLMEngine):
            problem, fix = f"{kinds.TITLE} does not support structured outputs", "use an autoregressive model"
            raise InputError(problem, key="structured_outputs", fix=fix)
        engine.grammars.compile(form)
    return form


def _with_form(ready: Ready, form: StructuredOutputsParams, constrained: NDArray[np.bool_]) -> Ready:
    """Apply the form to the constrained requests and mark them in the table, and thus in the trace."""
    structured = [form if chosen else None for chosen in constrained.tolist()]
    ratio = ready.run.workload.structured_output_ratio
    share = float(constrained.mean()) if ratio is None else ratio
    fields = {"form": form.form, "share": share, "requests": int(constrained.sum())}
    table = replace(ready.table, constrained=constrained)
    return replace(ready, table=table, structured=structured, form={"structured_outputs": fields})


def _check_clock(config: EngineConfig) -> None:
    """Refuse the CPU clock where one thread's CPU time does not cover all the work."""
    import torch

    from engine.build import pick_device

    if config.clock == "wall":
        return
    if pick_device(config.device).type != "cpu":
        fix = "use --clock wall, or --device cpu"
        raise InputError(
            "measures the CPU, and the work is done by the GPU", key="--clock", value=config.clock, fix=fix
        )
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        say(f"torch runs in 1 thread: --clock {config.clock} sees the work of no other")


def _warm_up(
    engine: Engine,
    table: RequestTable,
    prompts: list[list[int]],
    form: StructuredOutputsParams | None,
) -> None:
    """Serve a few requests, then reset the engine."""
    from engine.driver import serve

    serve(engine, table, prompts, structured=[form] * len(table), at_once=True)
    engine.reset()


@contextmanager
def measuring(clock: Clock) -> Iterator[None]:
    """Start the run: the clock restarts at 0, and existing objects are exempt from garbage collection.

    This avoids collection pauses over the model and libraries.
    """
    gc.collect()
    gc.freeze()
    clock.restart()
    try:
        yield
    finally:
        gc.unfreeze()
