"""Prices within the bounds of their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_cases import decode_steps, mixed_steps
from price_order import Case, decode, prompt

from blis_py.core.features import StepFeatures
from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency import build
from blis_py.latency.base import LatencyModel, unbounded
from blis_py.latency.bounded import Bounded
from blis_py.latency.neighbours import neighbours
from blis_py.latency.notes import domain_notes, forget
from blis_py.latency.served import Served
from blis_py.latency.trained import ServerTerms
from blis_py.models.model_shape import load_model


def priced(case: Case) -> LatencyModel:
    return build("trained", shape=case.shape, gpu=load_gpu(case.gpu), tp=case.tp, kernels=case.engine)


NARROW = Case("qwen3-235b-a22b", "fp8", "h200", "vllm", 8)
"""Its own price was learned on servers of other formats, that of 16 bits on this GPU."""
TRTLLM = Case("qwen3-235b-a22b", "16", "h100", "trtllm", 8)
"""Experts that were not tuned on this GPU."""
MODELS = [model for case in (NARROW, TRTLLM) if isinstance(model := priced(case), Bounded)]
every_model = pytest.mark.parametrize("model", MODELS, ids=[model.provenance for model in MODELS])


def test_both_are_bounded() -> None:
    assert len(MODELS) == 2


@pytest.mark.parametrize("seqs", [1, 8, 64])
def test_eight_bits_take_no_longer_than_sixteen(seqs: int) -> None:
    step = decode(seqs, 500)
    assert priced(NARROW).step_ns(step) <= priced(NARROW._replace(form="16")).step_ns(step)


def test_the_same_chip_with_slower_memory_is_as_much_slower_at_most() -> None:
    """The memory of H200 is 1.43 times as fast, and the rest the same; kernels of H100 are slower by 1.75."""
    step, faster = decode(256, 128), priced(TRTLLM._replace(gpu="h200"))
    assert priced(TRTLLM).step_ns(step) <= 1.45 * faster.step_ns(step)
    assert unbounded(priced(TRTLLM)).step_ns(step) > 1.7 * faster.step_ns(step)


@every_model
@settings(max_examples=20, deadline=None)
@given(step=decode_steps, length=st.integers(1, 60))
def test_a_run_of_decodes_ends_where_single_steps_end(
    model: Bounded, step: StepFeatures, length: int
) -> None:
    ends = np.cumsum([model.step_ns(step.after(done)) for done in range(length)])
    assert model.decode_run(step, length).ends_ns().tolist() == ends.tolist()
    assert model.decode_run(step, length, 7, int(ends[length // 2]) + 7).end_ns == ends[length // 2] + 7


@every_model
@settings(max_examples=20, deadline=None)
@given(step=mixed_steps)
def test_the_parts_of_a_step_are_its_time(model: Bounded, step: StepFeatures) -> None:
    found = model.step(step)
    assert found.synchronous_ns == model.step_ns(step)
    assert min(found) >= 0 if isinstance(found, tuple) else min(found.gpu_ns, found.host_ns) >= 0


def test_a_note_names_the_bounds_that_priced_steps_and_their_share() -> None:
    model = priced(NARROW)
    forget(model)
    assert domain_notes(model) == ()
    model.step_ns(decode(1, 500))
    [note] = domain_notes(model)
    assert note.endswith("100 % in 16 bits")
    model.decode_run(decode(1, 500), 3)
    assert domain_notes(model) == (note,)
    forget(model)
    assert domain_notes(model) == ()


def test_a_server_s_corrections_apply_to_the_bounds_too() -> None:
    model = priced(NARROW)
    assert isinstance(model, Bounded)
    step = decode(8, 500)
    slower = model.on_server(ServerTerms(gap_ns=1e6)).step_ns(step)
    assert slower == model.step_ns(step) + 1_000_000


def test_what_was_measured_on_servers_is_not_lowered_to_what_was_not() -> None:
    """MiniMax-M2.5 in FP8 on B200: its own price stands, that of 16 bits, on no server, is raised to it."""
    measured = Served(load_model("minimax-m2.5"), load_gpu("b200"), Layout(4))
    assert measured.measured
    wide = Case("minimax-m2.5", "16", "b200", "vllm", 4)
    own, model = priced(wide._replace(form="fp8 blocks")), priced(wide)
    for step in (prompt(512, 0), decode(1, 500)):
        assert own.step_ns(step) <= model.step_ns(step)


def test_neighbours_have_more_bytes_or_less_of_everything() -> None:
    shape, gpu = load_model("qwen3-235b-a22b-nvfp4"), load_gpu("b200")
    above = [n for n in neighbours(shape, gpu) if n.above]
    assert {n.gpu.name for n in above} == {"H100", "H200", "B200", "GB200"}
    assert all(n.shape.weights.experts > 0.5625 or n.gpu.name != "B200" for n in above)
    assert not [n for n in neighbours(shape, load_gpu("mi300x")) if n.gpu.name != "MI300X"]
    slow_link = gpu.linked_at(32)
    assert {n.gpu.name for n in neighbours(shape, slow_link) if n.above} == {"B200", "GB200"}
