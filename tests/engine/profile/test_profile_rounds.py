"""Rounds of block diffusion: visits to shapes, and how many rounds blocks take."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profile_cases import DIFFUSION, small_copy

from blis_py.core.token_keys import token_keys
from blis_py.traces.samples import StepSamples
from engine.config import EngineConfig
from engine.diffusion.blocks import Algorithm
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.executor import RunningBatch
from engine.diffusion.settings import DllmSettings, mask_token
from engine.models import build_model, load_model_config
from engine.profile.diffusion import ONE_BY_ONE, RoundBench
from engine.profile.diffusion_plan import RoundShape, plan_rounds
from engine.profile.diffusion_rounds import ALGORITHMS, count_rounds, write_rounds
from engine.profile.experts import ForcedExperts
from engine.profile.prompts import ProfilePrompts
from engine.profile.shapes import GRIDS
from engine.tiny.tasks import TASKS

CONFIG = EngineConfig(
    model=DIFFUSION, device="cpu", clock="cpu", block_size=32, max_num_seqs=8, num_kv_blocks=200
)


def engine_with(algorithm: Algorithm) -> DiffusionEngine:
    return build_diffusion_engine(CONFIG, DllmSettings(algorithm))


@pytest.fixture
def bench() -> RoundBench:
    engine = engine_with(ONE_BY_ONE)
    return RoundBench(engine, ProfilePrompts(256, engine.tokenizer, 0))


def column(samples: StepSamples, name: str) -> list[int]:
    return [int(value) for value in samples[name]]


def test_blocks_have_their_contexts_and_lose_one_mask_per_round(bench: RoundBench) -> None:
    samples = bench.visit(RoundShape(blocks=(64, 0, 128), masked=16))
    assert column(samples, "denoise_blocks") == [3, 3, 3]
    assert column(samples, "emitted_rows") == [48, 45, 42]
    assert column(samples, "prefill_tokens") == [96] * 3
    assert column(samples, "prefill_kv_tokens") == [192] * 3
    assert column(samples, "prefill_pairs") == [sum(32 * (c + 32) for c in (64, 0, 128))] * 3
    assert column(samples, "commit_blocks") == [0, 0, 0]
    assert column(samples, "shape") == [0, 1, 2]


def test_the_round_that_only_writes_keys_and_values_is_measured_too(bench: RoundBench) -> None:
    samples = bench.visit(RoundShape(blocks=(32, 32), masked=2))
    assert column(samples, "emitted_rows") == [4, 2, 0]
    assert column(samples, "commit_blocks") == [0, 0, 2]


def test_what_is_spent_once_per_batch_counts_with_its_first_round(bench: RoundBench) -> None:
    samples = bench.visit(RoundShape(blocks=(32, 32), masked=16))
    for name in ("schedule_ns", "prepare_ns"):
        assert [value > 0 for value in column(samples, name)] == [True, False, False]
    assert [value > 0 for value in column(samples, "finish_ns")] == [False, False, True]
    begins, ends = (sum(column(samples, name)) for name in ("schedule_ns", "finish_ns"))
    host = column(samples, "host_ns")
    assert host[0] > begins + column(samples, "prepare_ns")[0] + ends
    assert host[1] > 0 == host[2]
    assert column(samples, "begins_batch") == [1, 0, 0]


def test_short_runs_have_batches_that_begin_and_end_as_requests_come_and_go(bench: RoundBench) -> None:
    (samples,) = bench.serve(0)
    begins, blocks = (np.array(column(samples, name)) for name in ("begins_batch", "denoise_blocks"))
    assert 1 < begins.sum() < len(samples)
    assert blocks.max() > 1 == blocks[blocks > 0].min()
    assert sum(column(samples, "commit_blocks")) == 20, "all are served"
    assert ((samples["prefill_blocks"] > 0) <= begins).all(), "with a prompt, a batch is one round"
    assert not bench.engine.has_unfinished
    (other,) = bench.serve(1)
    assert not set(column(samples, "shape")) & set(column(other, "shape"))
    assert bench.visit(RoundShape(blocks=(32, 32), masked=16))["denoise_blocks"].tolist() == [2, 2, 2]


def test_prompts_beside_blocks_and_alone_have_their_past(bench: RoundBench) -> None:
    beside = bench.visit(RoundShape(blocks=(96,), masked=8, prefills=((64, 128), (32, 0)), rounds=1))
    assert column(beside, "prefill_tokens") == [32 + 96]
    assert column(beside, "prefill_kv_tokens") == [96 + 128]
    assert (column(beside, "denoise_blocks"), column(beside, "prefill_blocks")) == ([1], [3])
    alone = bench.visit(RoundShape(prefills=((64, 128),), rounds=1))
    assert column(alone, "prefill_kv_tokens") == [128]
    assert column(alone, "denoise_blocks") == [0]


def test_a_commit_names_the_page_it_completes_not_those_of_the_context(
    bench: RoundBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []

    def noting(tokens: list[int], *rest: Any) -> list[bytes]:
        hashed.append(len(tokens))
        return token_keys(tokens, *rest)

    monkeypatch.setattr("engine.diffusion.engine.token_keys", noting)
    bench.visit(RoundShape(blocks=(320, 160), masked=2))
    assert hashed == [32, 32]


def test_every_planned_round_is_reached(bench: RoundBench) -> None:
    shapes = plan_rounds(bench.limits, 32, GRIDS["quick"])
    for shape in shapes:
        assert len(bench.visit(shape)) == shape.rounds
    assert not bench.engine.has_unfinished
    bench.engine.scheduler.check()
    assert any(shape.prefills for shape in shapes)


def test_long_contexts_are_reached_without_a_forward(
    bench: RoundBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    forward = RunningBatch.forward

    def counting(self: RunningBatch) -> None:
        calls.append(len(self.batch.denoise))
        forward(self)

    monkeypatch.setattr(RunningBatch, "forward", counting)
    bench.visit(RoundShape(blocks=(320,) * 4, masked=16))
    assert calls == [4, 4, 4, 4]  # one leads, three are measured


def test_experts_of_a_diffusion_model_can_be_forced(tmp_path: Path) -> None:
    folder = small_copy(
        tmp_path,
        "llada2.0-mini",
        moe_intermediate_size=32,
        num_experts=16,
        num_experts_per_tok=4,
        mask_token_id=299,
    )
    model = build_model(load_model_config(folder), device="cpu", load_format="dummy", path=folder)
    forced = ForcedExperts(model, 2048)
    config = EngineConfig(
        model=folder, load_format="dummy", device="cpu", block_size=32, max_num_seqs=4, num_kv_blocks=60
    )
    engine = build_diffusion_engine(config, DllmSettings(ONE_BY_ONE), model=model, mask_id=mask_token(folder))
    bench = RoundBench(engine, ProfilePrompts(299, None, 0), forced)
    shapes = [shape for shape in plan_rounds(bench.limits, 32, GRIDS["quick"]) if shape.experts]
    assert {shape.experts for shape in shapes} == {4, 16}
    for shape in shapes:
        assert set(column(bench.visit(shape), "active_experts")) == {shape.experts * forced.layers}
    (served,) = bench.serve(0)
    tokens = np.maximum(served["prefill_tokens"], served["bucket"] * 32).tolist()
    assert column(served, "active_experts") == [forced.active(count) for count in tokens]
    assert max(column(served, "active_experts")) == 16 * forced.layers


def test_rounds_are_counted_per_request_algorithm_and_threshold(tmp_path: Path) -> None:
    answers = count_rounds(engine_with, 4)
    assert [(a.algorithm, a.threshold) for a in answers[::4]] == [
        (type(algorithm).__name__, threshold) for algorithm, threshold in ALGORITHMS
    ]
    assert [a.task for a in answers[:4]] == list(TASKS)
    for answer in answers:
        blocks = -(-(answer.prompt_tokens % 32 + answer.output_tokens) // 32)
        assert len(answer.rounds) == blocks
        assert all(2 <= rounds <= 50 for rounds in answer.rounds)
    write_rounds(answers, tmp_path / "rounds.csv")
    with (tmp_path / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [tuple(map(int, row["rounds"].split())) for row in rows] == [a.rounds for a in answers]


def test_a_lower_threshold_takes_no_more_rounds() -> None:
    answers = count_rounds(engine_with, 12)
    total = {
        (name, threshold): sum(
            sum(a.rounds) for a in answers if (a.algorithm, a.threshold) == (name, threshold)
        )
        for name, threshold in (("LowConfidence", 0.8), ("LowConfidence", 0.95))
    }
    assert total["LowConfidence", 0.8] <= total["LowConfidence", 0.95]


def test_round_counts_do_not_depend_on_the_number_of_prompts() -> None:
    many, few = count_rounds(engine_with, 12), count_rounds(engine_with, 4)
    assert [a.rounds for a in few[:4]] == [a.rounds for a in many[:4]]
