"""`blis models` and `blis gpus`: what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from blis_py.hardware.gpu import known_gpus
from blis_py.models.model_shape import known_models

Blis = Callable[..., tuple[int, str, str]]


def test_models_lists_every_bundled_model(blis: Blis) -> None:
    code, out, _ = blis("models")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert list(rows) == known_models()
    assert rows["qwen3-14b"]["published_as"] == "Qwen/Qwen3-14B"
    assert rows["qwen3-14b"]["weights_gib"] == 27.5
    assert (rows["deepseek-v3.2"]["weights_gib"], rows["deepseek-v3.2"]["remarks"]) == (627.6, "")
    assert (rows["glm-5"]["billion_parameters"], rows["glm-5"]["remarks"]) == (743.91, "")
    remarks = "25 of 30 layers windowed, encoder of images"
    assert (rows["gemma-4-26b-a4b"]["weights_gib"], rows["gemma-4-26b-a4b"]["remarks"]) == (47.0, remarks)
    assert rows["gpt-oss-20b"]["remarks"] == "12 of 24 layers windowed"


def test_gpus_lists_every_bundled_gpu_with_what_its_prices_rest_on(blis: Blis) -> None:
    rows = {row["name"]: row for row in json.loads(blis("gpus")[1])}
    assert list(rows) == known_gpus()
    known_by = {name: row["known_by"] for name, row in rows.items()}
    assert known_by["h100"] == "measurements"
    assert known_by["a100-80"] == "assumed efficiencies"
    assert known_by["mi300x"] == "datasheet"
    assert rows["gb200"]["link_gpus"] == 72


@pytest.mark.parametrize(
    ("verb", "line"),
    [("models", "qwen3-8b +Qwen/Qwen3-8B +8.19 +8.19"), ("gpus", "h200 +141 +139.81 +4,800")],
)
def test_on_a_terminal_it_is_a_table(blis: Blis, verb: str, line: str) -> None:
    code, out, err = blis(verb, "--format", "table")
    assert (code, err) == (0, "")
    assert re.search(line, out)


def test_another_format_is_refused(blis: Blis) -> None:
    code, _, err = blis("models", "--format", "tabel")
    assert code == 2
    assert "--format: unknown format (found 'tabel'); did you mean 'table'?" in err


def test_engines_lists_what_every_preset_sets_and_where_that_is_from(blis: Blis) -> None:
    rows = json.loads(blis("engines")[1])
    assert {row["name"] for row in rows} == {"blis", "sglang", "trtllm", "vllm", "vllm-0.10"}
    asynchronous = {
        row["name"]: row["value"] for row in rows if row["setting"] == "scheduler.async_scheduling"
    }
    assert asynchronous == {
        "blis": False,
        "sglang": True,
        "trtllm": True,
        "vllm": True,
        "vllm-0.10": False,
    }
    assert all(row["source"] for row in rows)
    releases = {row["name"]: row["releases"] for row in rows}
    assert (releases["vllm-0.10"], releases["vllm"]) == ("0.8 to 0.13", "0.14 to 0.33")
