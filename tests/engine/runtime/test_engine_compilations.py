"""Kernels that an engine had to wait for are counted, those that a request had to wait for apart."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from stub_engine import StubModel, run_all, stub_engine

from engine.build import watch_kernels
from engine.kernels import compilations
from engine.kernels.compilations import Compilations, CompilationWatch
from engine.kernels.cuda import library
from engine.sampling_params import SamplingParams


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for Triton's settings."""
    module = ModuleType("triton.knobs")
    module.compilation = SimpleNamespace(listener=None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.knobs", module)
    monkeypatch.setattr(compilations, "_watching", None)
    found: SimpleNamespace = module.compilation  # type: ignore[attr-defined]
    return found


def compile_kernel(knobs: SimpleNamespace, *, cached: bool = False) -> None:
    """What Triton does at the first launch of a kernel in a variant."""
    knobs.listener(
        src=None, metadata={}, metadata_group={}, times=SimpleNamespace(total=250_000), cache_hit=cached
    )


class CompilingModel(StubModel):
    """A kernel of its third forward was never launched before."""

    def __init__(self, knobs: SimpleNamespace) -> None:
        super().__init__()
        self.knobs = knobs

    def __call__(self, *arguments: Any) -> torch.Tensor:
        if self.forwards == 2:
            compile_kernel(self.knobs)
        return super().__call__(*arguments)


def test_what_a_request_waits_for_is_distinguished_from_what_the_engine_waited_for(
    knobs: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_library() -> bool:
        compile_kernel(knobs, cached=True)
        return True

    monkeypatch.setattr(library, "available", build_library)
    monkeypatch.setattr("engine.build.watch_kernels", lambda device: watch_kernels(torch.device("cuda")))
    engine = stub_engine(CompilingModel(knobs))
    assert engine.compilations.before_serving == Compilations(compiled=0, loaded=1, seconds=0.25)
    engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=2))
    run_all(engine)
    assert engine.compilations.while_serving == Compilations()
    engine.add_request([4, 5], SamplingParams(temperature=0, max_tokens=2))
    run_all(engine)
    assert engine.compilations.while_serving == Compilations(compiled=1, loaded=0, seconds=0.25)
    assert engine.compilations.before_serving.kernels == 1


def test_an_engine_on_the_cpu_waits_for_no_kernels() -> None:
    engine = stub_engine()
    assert engine.compilations.before_serving == engine.compilations.while_serving == Compilations()


def test_a_kernel_is_counted_once_and_earlier_listeners_still_get_it(knobs: SimpleNamespace) -> None:
    heard = []
    knobs.listener = lambda **event: heard.append(event["cache_hit"])
    watch = CompilationWatch()
    compilations.watch()
    compilations.watch()
    compile_kernel(knobs)
    compile_kernel(knobs, cached=True)
    assert watch.while_serving == Compilations(compiled=1, loaded=1, seconds=0.5)
    assert heard == [False, True]


def test_a_triton_without_the_figure_is_no_error(
    knobs: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    del knobs.listener
    with pytest.warns(RuntimeWarning, match="not counted"):
        compilations.watch()
    monkeypatch.setitem(sys.modules, "triton.knobs", None)
    with pytest.warns(RuntimeWarning, match="not counted"):
        compilations.watch()
