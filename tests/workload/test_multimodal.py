"""Prompts of text, images, audio and video: their tokens together are the prompt's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_py.errors import InputError
from blis_py.requests.table import MODALITIES
from blis_py.traces import read_trace
from blis_py.traces.tracev2_write import write
from blis_py.workload import RequestTable, generate
from blis_py.workload.generate import generate_loops
from blis_py.workload.spec import WorkloadSpec


def constant(value: int) -> dict[str, Any]:
    return {"type": "constant", "params": {"value": value}}


CLIENT: dict[str, Any] = {
    "id": "vision",
    "rate_fraction": 1.0,
    "arrival": {"process": "poisson"},
    "input_distribution": constant(9999),
    "output_distribution": constant(10),
}
LAW: dict[str, Any] = {
    "text_distribution": {"type": "exponential", "params": {"mean": 100}},
    "image_distribution": {
        "type": "gaussian",
        "params": {"mean": 500, "std_dev": 100, "min": 100, "max": 900},
    },
    "image_count_distribution": {
        "type": "gaussian",
        "params": {"mean": 1.5, "std_dev": 1.5, "min": 0, "max": 6},
    },
}


def made(count: int = 4000, client: dict[str, Any] | None = None, **multimodal: Any) -> RequestTable:
    spec = CLIENT | {"multimodal": multimodal} | (client or {})
    values = {"aggregate_rate": 5.0, "num_requests": count, "clients": [spec]}
    return generate(WorkloadSpec.model_validate(values))


def test_a_prompt_is_its_text_and_so_many_tokens_for_each_piece() -> None:
    more = {"video_distribution": constant(3000), "video_count_distribution": constant(2)}
    table = made(
        **LAW | {"image_distribution": constant(576), "image_count_distribution": constant(3)} | more
    )
    assert table.modality_tokens is not None
    text, image, audio, video = table.modality_tokens.T
    assert set(image.tolist()) == {3 * 576}
    assert set(audio.tolist()) == {0}
    assert set(video.tolist()) == {6000}
    assert text.mean() == pytest.approx(100, rel=0.05)
    assert np.array_equal(table.prompt_tokens, text + image + video)


def test_every_piece_is_as_large_as_it_is_and_there_may_be_none() -> None:
    table = made(**LAW)
    assert table.modality_tokens is not None
    image = table.modality_tokens[:, MODALITIES.index("image")]
    assert (image == 0).any()
    some = image[image > 0]
    assert some.min() >= 100
    assert image.mean() == pytest.approx(500 * np.mean(_counts()), rel=0.05)


def _counts() -> np.ndarray:
    drawn = np.random.default_rng(0).normal(1.5, 1.5, 200_000)
    return np.floor(np.clip(drawn, 0, 6) + 0.5)


def test_asking_for_more_requests_continues_the_same_prompts() -> None:
    few, many = made(200, **LAW), made(2000, **LAW)
    assert np.array_equal(few.prompt_tokens, many.prompt_tokens[:200])


def test_turns_may_have_images_and_remember_them() -> None:
    turns = {"max_rounds": 3, "context_growth": "accumulate"}
    client = CLIENT | {"multimodal": LAW, "reasoning": {"multi_turn": turns}}
    values = {"aggregate_rate": 5.0, "num_requests": 300, "clients": [client]}
    table, _ = generate_loops(WorkloadSpec.model_validate(values))
    assert table.modality_tokens is not None
    assert table.session is not None
    assert table.round_index is not None
    rows = np.flatnonzero(table.session == 0)
    rows = rows[np.argsort(table.round_index[rows])]
    added = table.modality_tokens[rows].sum(axis=1)
    assert table.prompt_tokens[rows].tolist() == (np.cumsum(added) + 10 * np.arange(len(rows))).tolist()


def test_a_written_trace_states_what_prompts_consist_of(tmp_path: Path) -> None:
    table = made(50, client={"prefix_group": "sys", "prefix_length": 40}, **LAW)
    write(table, tmp_path / "t.yaml", tmp_path / "t.csv", mode="generated")
    again = read_trace(tmp_path / "t.csv")
    assert again.modality_tokens is not None
    assert table.modality_tokens is not None
    assert np.array_equal(again.modality_tokens, table.modality_tokens)
    assert np.array_equal(again.prompt_tokens, table.prompt_tokens)


@pytest.mark.parametrize(
    ("multimodal", "complaint"),
    [
        ({"image_distribution": constant(5)}, r"multimodal\.image_count_distribution: missing key"),
        ({"audio_count_distribution": constant(5)}, r"multimodal\.audio_distribution: missing key"),
        ({}, r"clients\[0\]\.multimodal: a prompt of nothing"),
        ({"text_distribution": {"type": "constant"}}, r"multimodal\.text_distribution\.params\.value"),
    ],
)
def test_what_is_no_prompt_is_refused(multimodal: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        made(**multimodal)


def test_windows_with_lengths_of_their_own_contradict_it() -> None:
    window = {"start_us": 0, "end_us": 10**7, "input_distribution": constant(5)}
    with pytest.raises(InputError, match="contradicts the input_distribution of a window"):
        made(client={"lifecycle": {"windows": [window | {"trace_rate": 3.0}]}}, **LAW)
