"""`blis convert preset | servegen | inference-perf`: workload specs, with the flags that BLIS has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from blis_py.workload.generate import generate
from blis_py.workload.presets import PRESETS
from blis_py.workload.spec import load_spec

Blis = Callable[..., tuple[int, str, str]]


def spec_of(text: str, folder: Path) -> Path:
    path = folder / "written.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_client_with_even_gaps_and_its_lengths(blis: Blis, name: str, tmp_path: Path) -> None:
    code, out, err = blis("convert", "preset", "--name", name, "--rate", 4, "--num-requests", 300)
    table = generate(load_spec(spec_of(out, tmp_path)))
    prompt, output = PRESETS[name]
    assert (code, err, len(table)) == (0, "", 300)
    assert set(np.diff(table.arrival_ns)) == {250_000_000}
    assert table.prompt_tokens.mean() == pytest.approx(prompt.clamped_mean, rel=0.1)
    assert table.output_tokens.mean() == pytest.approx(output.clamped_mean, rel=0.1)


def test_the_defaults_of_a_preset_are_those_of_blis(blis: Blis) -> None:
    spec = yaml.safe_load(blis("convert", "preset", "--name", "chatbot")[1])
    assert (spec["version"], spec["aggregate_rate"], spec["num_requests"]) == ("2", 1.0, 100)
    assert [client["id"] for client in spec["clients"]] == ["preset-chatbot"]


def servegen(folder: Path) -> Path:
    folder.mkdir()
    rows = [f"{600 * window},2,1.5,Gamma,1,0.5" for window in range(144)]
    (folder / "chunk-0-trace.csv").write_text("\n".join(rows))
    many = {str(tokens): 1.0 for tokens in range(1, 1001)}
    lengths = {"0": {"input_tokens": many, "output_tokens": "{9: 1}"}}
    (folder / "chunk-0-dataset.json").write_text(json.dumps(lengths))
    return folder


def test_servegen_is_written_with_its_clients_and_what_is_lost_is_reported(
    blis: Blis, tmp_path: Path
) -> None:
    folder = servegen(tmp_path / "model")
    flags = ("--time", "morning", "--window-duration-seconds", 120, "--drain-timeout-seconds", 5)
    code, out, err = blis("convert", "servegen", "--path", folder, *flags)
    assert code == 0
    assert "lost: 1 laws of lengths have 64 values each" in err
    spec = load_spec(spec_of(out, tmp_path))
    (client,) = spec.clients
    (window,) = client.lifecycle.windows  # type: ignore[union-attr]
    assert (window.start_us, window.end_us, window.trace_rate) == (0, 120_000_000, 2.0)
    table = generate(spec)
    assert table.prompt_tokens.mean() == pytest.approx(500, rel=0.1)


def test_all_periods_are_180_s_apart_unless_it_is_said(blis: Blis, tmp_path: Path) -> None:
    out = blis("convert", "servegen", "--path", servegen(tmp_path / "model"))[1]
    (client,) = load_spec(spec_of(out, tmp_path)).clients
    starts = [window.start_us // 10**6 for window in client.lifecycle.windows]  # type: ignore[union-attr]
    assert starts == [0, 780, 1560]


def test_the_spec_goes_to_a_file_where_one_is_named(blis: Blis, tmp_path: Path) -> None:
    code, out, err = blis("convert", "preset", tmp_path / "spec.yaml", "--name", "multidoc")
    assert (code, out) == (0, "")
    assert err == f"{tmp_path / 'spec.yaml'}: a workload spec\n"
    assert load_spec(tmp_path / "spec.yaml").num_requests == 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("preset",), "--name: missing"),
        (("preset", "--name", "chat"), "--name: unknown preset"),
        (("preset", "--name", "chatbot", "--rate", "0"), "--rate: must lie in"),
        (("preset", "--name", "chatbot", "--num-requests", "0"), "--num-requests: must be at least 1"),
        (("preset", "--name", "chatbot", "--path", "x"), "--path: does not belong to `blis convert preset`"),
        (("servegen",), "--path: missing"),
        (("servegen", "--path", "nowhere"), "servegen_data.path: no data of ServeGen"),
        (("servegen", "--path", ".", "--time", "noon"), "servegen_data.time_window"),
        (("inference-perf",), "--spec: missing"),
        (("a.csv", "b.csv", "--name", "chatbot"), "--name: belongs to `blis convert preset`"),
    ],
)
def test_flags_that_are_missing_or_belong_elsewhere_are_reported(
    blis: Blis, words: tuple[str, ...], message: str
) -> None:
    code, out, err = blis("convert", *words)
    assert (code, out) == (2, "")
    assert message in err
