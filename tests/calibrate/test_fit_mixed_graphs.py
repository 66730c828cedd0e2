"""Steps with prompts that a captured graph replays: their rows count padded tokens, and so do prices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fit_cases import KV, PAIR, PROMPT, STEP, TOKEN, made_up

from blis_py.calibrate.fit import fit
from blis_py.core.features import StepFeatures
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import FittedProfile, read_profile, write_profile
from blis_py.traces.samples import StepSamples, joined

MIXED, DECODES = (32, 64, 128), (8, 16, 32, 64)
CAPTURED_STEP = 1e6
"""What a captured step takes in any case, in ns; an eager one takes longer."""


def captured(eager: StepSamples) -> StepSamples:
    """The same compositions replayed by graphs, as far as there is one."""
    table = {name: column.copy() for name, column in eager.table.items()}
    tokens = table["prefill_tokens"] + table["decode_seqs"]
    sizes = np.where(table["prefill_seqs"] > 0, 0, 1)
    buckets = np.array(
        [
            min((size for size in (DECODES if pure else MIXED) if size >= count), default=0)
            for pure, count in zip(sizes, tokens, strict=True)
        ]
    )
    gpu = CAPTURED_STEP + TOKEN * buckets + KV * table["decode_kv_tokens"] + PAIR * table["prefill_pairs"]
    gpu = np.rint(gpu + PROMPT * table["prefill_seqs"]).astype(np.int64)
    table |= {"gpu_ns": gpu, "total_ns": gpu + table["host_ns"], "bucket": buckets}
    table["regime"] = np.array(["graph"] * len(eager))
    return StepSamples(eager.meta, table).where(buckets > 0)


@pytest.fixture(scope="module")
def profile() -> FittedProfile:
    meta = {"graph_buckets": list(DECODES), "mixed_buckets": list(MIXED), "mixed_prompts": 2}
    graph = captured(made_up(400, source="captured", device_kind="cuda", **meta))
    eager = made_up(300, device_kind="cuda", **meta)
    return fit(joined([graph, eager], graph.meta), bootstrap=2)


def step(prompts: int, tokens: int, decodes: int = 0) -> StepFeatures:
    pairs = tokens * (tokens + 1) // 2
    return StepFeatures(
        prefill_seqs=prompts,
        prefill_tokens=tokens,
        prefill_pairs=pairs,
        decode_seqs=decodes,
        decode_kv_tokens=50 * decodes,
        emitted_rows=decodes + prompts,
    )


def captured_ns(f: StepFeatures, bucket: int) -> float:
    rest = KV * f.decode_kv_tokens + PAIR * f.prefill_pairs + PROMPT * f.prefill_seqs
    return CAPTURED_STEP + TOKEN * bucket + rest


def test_a_step_with_prompts_is_priced_as_its_graph(profile: FittedProfile) -> None:
    latency = Fitted(profile)
    for f, bucket in ((step(1, 33), 64), (step(1, 64), 64), (step(1, 40, 30), 128), (step(1, 3, 20), 32)):
        assert latency.step(f).gpu_ns == pytest.approx(captured_ns(f, bucket), rel=0.03)


def test_a_step_with_more_tokens_or_more_prompts_is_eager(profile: FittedProfile) -> None:
    latency = Fitted(profile)
    for f in (step(1, 129), step(3, 60)):
        tokens = f.prefill_tokens + f.decode_seqs
        rest = TOKEN * tokens + PAIR * f.prefill_pairs + PROMPT * f.prefill_seqs
        assert latency.step(f).gpu_ns == pytest.approx(STEP + rest, rel=0.05)


def test_the_file_keeps_what_is_captured(profile: FittedProfile, tmp_path: Path) -> None:
    write_profile(tmp_path, profile.meta, profile)
    again = read_profile(tmp_path)
    assert (again.mixed_buckets, again.mixed_prompts) == (MIXED, 2)
    assert Fitted(again).step(step(1, 40)) == Fitted(profile).step(step(1, 40))


def test_without_captured_prompts_every_prompt_is_eager(profile: FittedProfile) -> None:
    meta = {key: value for key, value in profile.meta.items() if not key.startswith("mixed")}
    latency = Fitted(FittedProfile(meta, profile.regimes))
    assert latency.step(step(1, 33)).gpu_ns > STEP
