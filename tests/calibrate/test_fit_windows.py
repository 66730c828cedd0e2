"""Fits of models with sliding windows: what counts is what attention reads, not what the contexts hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fit_cases import HOST, HOST_SEQ, KV, PAIR, PROMPT, STEP, TOKEN, made_up
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.accuracy import validate
from blis_py.core.features import StepFeatures
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_shape import facts_of
from blis_py.latency.fitted_surface import SurfaceCurve
from blis_py.latency.windowed_reads import WindowedReads, windowed_reads
from blis_py.models.model_shape import load_model

WINDOW, SHARE = 50, 0.75
READS = WindowedReads(WINDOW, SHARE)
SHAPE = replace(load_model("llama-3.1-8b"), layers=4, sliding_window=WINDOW, windowed_layers=3)
CUDA = {"device": "made-up", "device_kind": "cuda", "model_config": facts_of(SHAPE)}


def price(c: dict[str, Any]) -> Any:
    """As of the cases of other fits, with three layers of four that see no more than the window."""
    kv = c["decode_kv_tokens"]
    pairs = np.array([read(0, new) for new in c["prefill_tokens"].tolist()])
    kv = kv / 4 + 3 / 4 * np.minimum(kv, WINDOW * c["decode_seqs"])
    tokens = c["prefill_tokens"] + c["decode_seqs"]
    return STEP + TOKEN * tokens + 20 * KV * kv + PAIR * pairs + PROMPT * c["prefill_seqs"]


def read(past: int, new: int) -> float:
    """Query-key pairs of a prompt, one query after another, on average over the layers."""
    whole = [past + i for i in range(1, new + 1)]
    return sum(seen / 4 + 3 / 4 * min(seen, WINDOW) for seen in whole)


@pytest.mark.parametrize(("past", "new"), [(0, 20), (0, 50), (0, 300), (30, 40), (49, 1), (200, 100), (0, 1)])
def test_prompts_read_what_their_queries_see(past: int, new: int) -> None:
    pairs = new * past + new * (new + 1) / 2
    for prompts in (1, 3):
        found, cached = READS.prefill(prompts, prompts * new, prompts * pairs, prompts * past)
        assert found == pytest.approx(prompts * read(past, new))
        assert cached == pytest.approx(prompts * (past / 4 + 3 / 4 * min(past, WINDOW)))
    assert READS.prefill(0, 0, 0, 0) == (0, 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 500)), min_size=1, max_size=6))
def test_unequal_contexts_count_at_most_a_window_too_much_and_never_too_little(
    prompts: list[tuple[int, int]],
) -> None:
    new, past = np.array(prompts).T
    within = (past / 4 + 3 / 4 * np.minimum(past, WINDOW)).sum()
    whole = (new * past + new * (new + 1) / 2).sum()
    pairs, cached = READS.prefill(len(new), new.sum(), whole, past.sum())
    too_much = pairs - sum(read(before, tokens) for tokens, before in prompts)
    assert -1e-6 <= too_much <= SHARE * WINDOW * new.sum()
    decoded = READS.decode_kv_tokens(past.sum(), len(past))
    for entries in (cached, decoded):
        assert -1e-6 <= entries - within <= SHARE * WINDOW * len(past)


def test_a_fit_on_a_gpu_counts_what_is_read() -> None:
    samples = made_up(400, price=price, **CUDA)
    held_out = made_up(300, price=price, seed=5, source="run", **CUDA)
    profile = fit(samples, bootstrap=0)
    assert validate(Fitted(profile), held_out)[-1].synchronous.mape < 0.005
    assert profile.regimes["eager"].gpu["decode_kv_tokens"] == pytest.approx(20 * KV, rel=0.02)
    blind = {**CUDA, "model_config": facts_of(replace(SHAPE, windowed_layers=0))}
    whole = fit(made_up(400, price=price, **blind), bootstrap=0)
    unaware = made_up(300, price=price, seed=5, source="run", **blind)
    assert validate(Fitted(whole), unaware)[-1].synchronous.mape > 0.02


def test_steps_of_a_run_are_those_one_by_one_while_contexts_grow_beyond_the_window() -> None:
    model = Fitted(fit(made_up(400, price=price, **CUDA), bootstrap=0))
    first = StepFeatures(decode_seqs=4, decode_kv_tokens=4 * 40, max_context=40, emitted_rows=4)
    for steps in (8, 30):
        ends = np.cumsum([model.step_ns(first.after(i)) for i in range(steps)])
        run = model.decode_run(first, steps)
        assert run.ends_ns().tolist() == ends.tolist()
    inside, beyond = (model.step(first.after(i)).gpu_ns for i in (9, 29))
    grown_ns = 20 * KV * 4 * (1 + 19 / 4)
    assert beyond - inside == pytest.approx(grown_ns, rel=0.05), "one more entry of the window, then a layer"
    assert model.step(first).host_ns == pytest.approx(HOST + 4 * HOST_SEQ, rel=0.01)


@pytest.mark.parametrize("share", [0.75, 1.0])
def test_a_curve_over_contexts_is_the_curve_over_what_is_read(share: float) -> None:
    reads = WindowedReads(WINDOW, share)
    curve = SurfaceCurve([0.0, 100.0, 300.0], [10.0, 60.0, 100.0], [0.5, 0.2, 0.1])
    over = reads.over_contexts(curve, 4)
    for kv in (0, 60, 100, 150, 199, 200, 201, 400, 700, 5000):
        assert at(over, kv) == pytest.approx(at(curve, reads.decode_kv_tokens(kv, 4)))


def at(curve: SurfaceCurve, kv: float) -> float:
    i = int(np.searchsorted(curve.at, kv, side="right")) - 1
    return curve.ns[i] + curve.slopes[i] * (kv - curve.at[i])


def test_a_cpu_and_a_model_without_windows_read_whole_contexts() -> None:
    assert windowed_reads(CUDA) == WindowedReads(WINDOW, 0.75)
    assert windowed_reads({**CUDA, "device_kind": "cpu"}) is None
    assert windowed_reads(CUDA, load_model("llama-3.1-8b")) is None
    assert windowed_reads({"device_kind": "cuda"}) is None
