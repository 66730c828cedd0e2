"""Columns of a plain CSV trace are used, or refused by name; ids and columns occur once, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import blis_py as blis
from blis_py.calibrate.read_times import read_table as read_times
from blis_py.errors import InputError
from blis_py.hardware.gpu import load_gpu
from blis_py.latency.layer_profile import read_layer_profile
from blis_py.models.model_shape import load_model
from blis_py.traces import read_trace
from blis_py.traces.diffusion_rounds import read_rounds
from blis_py.traces.itl import read_gaps
from blis_py.traces.samples import read_samples, samples_from, write_samples

PLAIN = "arrival_s,input_tokens,output_tokens"
CLOCK = "TIMESTAMP,ContextTokens,GeneratedTokens"


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path)
    return str(caught.value)


@pytest.mark.parametrize(("header", "time"), [(PLAIN, "0.5"), (CLOCK, "2023-11-16 18:15:46")])
def test_columns_that_say_whose_a_request_is_are_used(tmp_path: Path, header: str, time: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"slo_class,{header},tenant_id,model,request_id,client_id\nbatch,{time},5,6,t,m,r7,c\n")
    table = read_trace(path)
    assert (table.slo_class[0], table.tenant[0], table.model[0]) == ("batch", "t", "m")
    assert (table.client[0], table.id_of(0)) == ("c", "r7")


@pytest.mark.parametrize("column", ["priority", "prefix_group", "prefix_length", "slo_clas", "notes", ""])
@pytest.mark.parametrize(("header", "time"), [(PLAIN, "0.5"), (CLOCK, "2023-11-16 18:15:46")])
def test_any_other_column_is_refused_and_the_known_ones_are_listed(
    tmp_path: Path, header: str, time: str, column: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header},{column}\n{time},5,6,x\n")
    text = refusal(path)
    assert f"a.csv:1: {column or '(no name)'}: unknown column" in text
    assert (
        f"the columns are {header.replace(',', ', ')} and, where you have them, request_id, slo_class" in text
    )


@pytest.mark.parametrize("same", ["prompt_id", "prompt_slot"])
def test_the_log_of_a_client_that_can_be_fitted_to_can_be_replayed(tmp_path: Path, same: str) -> None:
    """Its latencies are no requests' properties; rows of the same number send the same prompt."""
    path = tmp_path / "log.csv"
    rows = "0.0,48,5,30,100,7\n0.5,48,5,30,100,7\n1.0,32,5,30,100,8\n"
    path.write_text(f"{PLAIN},ttft_ms,e2e_ms,{same}\n{rows}")
    table = read_trace(path)
    assert table.content[0] == table.content[1] != table.content[2]
    assert [table.contents[code] for code in table.content[1:].tolist()] == [
        (("prompt 7", 48),),
        (("prompt 8", 32),),
    ]
    assert read_times(path).same_prompt is not None
    run = blis.run(trace=str(path), model="llama-3.1-8b")
    assert run.summary["cluster"]["prefix_hit_tokens"] == 32


def test_an_unknown_column_near_a_known_one_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{PLAIN},slo_clas\n0,1,1,x\n")
    assert "did you mean slo_class?" in refusal(tmp_path / "a.csv")


def test_a_missing_column_is_reported_with_all_there_are(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("trace_version: 3\ntime_unit: us\nmode: real\nwarm_up_requests: 0\n")
    (tmp_path / "x.csv").write_text("request_id,input_tokens,arrival_time_us\n0,1,1\n")
    text = refusal(tmp_path / "x.csv")
    assert "output_tokens: missing column" in text
    assert (
        "the columns are request_id, input_tokens, output_tokens, arrival_time_us and, where you have" in text
    )


@pytest.mark.parametrize(
    "header", [f"{PLAIN},input_tokens", f"{PLAIN},slo_class,slo_class", f"{CLOCK},TIMESTAMP"]
)
def test_a_column_given_twice_is_refused(tmp_path: Path, header: str) -> None:
    cells = ",".join(["2023-11-16 18:15:46" if name == "TIMESTAMP" else "1" for name in header.split(",")])
    (tmp_path / "a.csv").write_text(f"{header}\n{cells}\n")
    assert f"{header.rpartition(',')[2]}: column given twice" in refusal(tmp_path / "a.csv")


def test_a_request_id_given_twice_is_refused_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{PLAIN},request_id\n0,1,1,a\n1,1,1,b\n2,1,1,a\n")
    assert "a.csv:4: request_id: the same id as a row before (found 'a')" in refusal(tmp_path / "a.csv")
    lines = [
        {"timestamp": n, "input_length": 5, "output_length": 5, "request_id": "ab"[n % 2]} for n in range(3)
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert "m.jsonl:3: request_id: the same id as in line 1 (found 'a')" in refusal(tmp_path / "m.jsonl")


def test_ids_for_some_lines_of_mooncake_only_are_refused(tmp_path: Path) -> None:
    line = '{"timestamp": 1, "input_length": 5, "output_length": 5'
    (tmp_path / "m.jsonl").write_text(f'{line}}}\n{line}, "request_id": "a"}}\n')
    assert "request_id: some lines have it and others do not" in refusal(tmp_path / "m.jsonl")


def test_a_key_of_mooncake_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(
        '{"timestamp": 1, "input_length": 5, "output_length": 5, "timestamp": 2}\n'
    )
    assert "m.jsonl:1: not JSON: key 'timestamp' is given twice" in refusal(tmp_path / "m.jsonl")


def test_columns_given_twice_are_refused_in_every_table(tmp_path: Path) -> None:
    (tmp_path / "itl.csv").write_text("request_id,chunk_index,timestamp_us,request_id\n0,0,1,1\n")
    (tmp_path / "rounds.csv").write_text("request_id,block_index,rounds,rounds\n0,0,1,1\n")
    write_samples(samples_from({}, {}, 1), tmp_path / "samples.csv")
    lines = (tmp_path / "samples.csv").read_text().splitlines()
    (tmp_path / "samples.csv").write_text("\n".join([lines[0], f"{lines[1]},gpu_ns", f"{lines[2]},5"]))
    (tmp_path / "meta.yaml").write_text("model: llama-3.1-8b\n")
    (tmp_path / "dense.csv").write_text("layer,tokens,time_us,time_us\nqkv_proj,1,1,2\n")
    reads = {
        "itl.csv": lambda: read_gaps(tmp_path / "itl.csv", np.arange(1)),
        "rounds.csv": lambda: read_rounds(tmp_path / "rounds.csv"),
        "samples.csv": lambda: read_samples(tmp_path / "samples.csv"),
        "dense.csv": lambda: read_layer_profile(tmp_path, load_model("llama-3.1-8b"), load_gpu("h100"), 1),
    }
    for name, read in reads.items():
        with pytest.raises(InputError, match="column given twice") as caught:
            read()
        assert name in str(caught.value)
