"""Every wrong trace gives one InputError that names file, line, column and value."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.traces import read_trace
from blis_py.traces.reading import Reading

HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
COLUMNS = (
    "request_id,slo_class,streaming,prefix_group,prefix_length,input_tokens,output_tokens,deadline_us,"
    "arrival_time_us"
)
ROW = "0,batch,true,,0,10,5,0,100"


def message(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


ROWS = [
    # (second data row, parts of the message)
    ("1,batch,true,,0,ten,5,0,200", [":3", "input_tokens", "'ten'"]),
    ("1,batch,true,,0,-4,5,0,200", [":3", "input_tokens", "-4"]),
    ("1,batch,true,,0,1.5,5,0,200", [":3", "input_tokens", "'1.5'"]),
    ("1,batch,true,,0,,5,0,200", [":3", "input_tokens", "''"]),
    ("1,batch,true,,0,0,5,0,200", [":3", "input_tokens", "empty prompt"]),
    ("1,batch,true,,0,99999999999,5,0,200", [":3", "input_tokens", "at most"]),
    ("1,batch,true,,0,10,-1,0,200", [":3", "output_tokens", "-1"]),
    ("1,batch,true,,0,10,5,-7,200", [":3", "deadline_us", "-7"]),
    ("1,batch,true,,0,10,5,0,-200", [":3", "arrival_time_us", "-200"]),
    ("1,batch,true,,0,10,5,0,99999999999999999999", [":3", "arrival_time_us", "not a whole number"]),
    ("1,batch,perhaps,,0,10,5,0,200", [":3", "streaming", "'perhaps'"]),
    ("1,batch,true,g,-1,10,5,0,200", [":3", "prefix_length", "-1"]),
    ("0,batch,true,,0,10,5,0,200", [":3", "request_id", "same id"]),
    ("1,batch,true,,0,10,5,0", [":3", "8 cells under 9 columns"]),
    ("1,batch,true,,0,10,5,0,200,9", [":3", "10 cells under 9 columns"]),
    ('1,"batch"x,true,,0,10,5,0,200', [":3", "not CSV"]),
]


@pytest.mark.parametrize(("row", "parts"), ROWS)
def test_a_wrong_tracev2_row_is_found_on_its_line(tmp_path: Path, row: str, parts: list[str]) -> None:
    write(tmp_path, "x.yaml", HEADER)
    text = message(write(tmp_path, "x.csv", f"{COLUMNS}\n{ROW}\n{row}\n"))
    for part in ["x.csv", *parts]:
        assert part in text, text


def test_lines_are_counted_right_after_cells_that_span_lines(tmp_path: Path) -> None:
    write(tmp_path, "x.yaml", HEADER)
    rows = '0,"two\nlines",true,,0,10,5,0,100\n\n1,batch,true,,0,ten,5,0,200\n'
    assert "x.csv:5: input_tokens" in message(write(tmp_path, "x.csv", f"{COLUMNS}\n{rows}"))


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (COLUMNS.replace("deadline_us", "dedline_us"), ["dedline_us", "did you mean deadline_us?"]),
        (COLUMNS.replace("output_tokens", "think_time_us"), ["output_tokens", "missing column"]),
        (COLUMNS.replace("deadline_us", "slo_class"), ["slo_class", "twice"]),
    ],
)
def test_wrong_tracev2_columns_are_named(tmp_path: Path, columns: str, parts: list[str]) -> None:
    write(tmp_path, "x.yaml", HEADER)
    text = message(write(tmp_path, "x.csv", f"{columns}\n{ROW}\n"))
    for part in ["x.csv:1", *parts]:
        assert part in text, text


def test_lora_adapters_are_not_supported_yet(tmp_path: Path) -> None:
    write(tmp_path, "x.yaml", HEADER)
    text = message(write(tmp_path, "x.csv", f"{COLUMNS},adapter\n{ROW},\n1,,,,0,1,1,0,5,lora-7\n"))
    assert "x.csv:3: adapter: LoRA adapters are not supported yet (found 'lora-7')" in text


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        (HEADER.replace("mode", "mod"), ["mod", "did you mean mode?"]),
        (HEADER.replace("mode: generated\n", ""), ["mode", "missing key"]),
        (HEADER.replace("requests: 0", "requests:"), ["warm_up_requests", "missing key"]),
        (HEADER.replace("generated", "imagined"), ["mode", "'imagined'"]),
        (HEADER.replace("version: 3", "version: 9"), ["trace_version", "9"]),
        (HEADER.replace("microseconds", "seconds"), ["time_unit", "'seconds'"]),
        (HEADER.replace("requests: 0", "requests: -2"), ["warm_up_requests", "-2"]),
        (HEADER.replace("requests: 0", "requests: some"), ["warm_up_requests", "'some'"]),
        (HEADER + "server: {modl: x}\n", ["server.modl", "did you mean model?"]),
        (HEADER + "server: fast\n", ["server", "mapping"]),
        (HEADER + "session_context_growth: shrink\n", ["session_context_growth", "use accumulate"]),
        (HEADER + "kv_offload: {tiers: [cpu]}\n", ["kv_offload", "is not simulated", "remove the key"]),
        (HEADER + "observed_kv_metrics: {hit_rate: 0.4}\n", ["observed_kv_metrics", "remove the key"]),
        ("trace_version: [\n", ["not valid YAML"]),
        ("", ["must be a mapping"]),
    ],
)
def test_a_wrong_tracev2_header_is_one_clear_error(tmp_path: Path, header: str, parts: list[str]) -> None:
    write(tmp_path, "x.yaml", header)
    text = message(write(tmp_path, "x.csv", f"{COLUMNS}\n{ROW}\n"))
    for part in ["x.yaml", *parts]:
        assert part in text, text


def test_a_tracev2_without_its_other_half_states_what_to_put_where(tmp_path: Path) -> None:
    assert "x.yaml beside it" in message(write(tmp_path, "x.csv", f"{COLUMNS}\n{ROW}\n"))
    assert "put y.csv there" in message(write(tmp_path, "y.yaml", HEADER))


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("0.0,abc,3", [":2", "input_tokens", "'abc'"]),
        ("0.0,0,3", [":2", "input_tokens", "at least 1"]),
        ("0.0,5,-1", [":2", "output_tokens", "at least 0"]),
        ("soon,5,3", [":2", "arrival_s", "'soon'"]),
        ("-1,5,3", [":2", "arrival_s", "-1"]),
        ("nan,5,3", [":2", "arrival_s", "nan"]),
        ("1.0,5", [":2", "2 cells under 3 columns"]),
        ("", ["no requests"]),
    ],
)
def test_a_wrong_azure_row_is_found_on_its_line(tmp_path: Path, content: str, parts: list[str]) -> None:
    path = write(tmp_path, "azure.csv", f"arrival_s,input_tokens,output_tokens\n{content}\n")
    text = message(path)
    for part in ["azure.csv", *parts]:
        assert part in text, text


@pytest.mark.parametrize(
    ("stamp", "part"),
    [
        ("yesterday", "not a timestamp"),
        ("2023-02-30 00:00:00", "not a date that exists"),
        ("2023-11-16 18:15:46+02:00", "a UTC offset, unlike"),
    ],
)
def test_a_wrong_azure_timestamp_is_found_on_its_line(tmp_path: Path, stamp: str, part: str) -> None:
    rows = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,3,3\n{stamp},3,3\n"
    text = message(write(tmp_path, "azure.csv", rows))
    assert "azure.csv:3: TIMESTAMP" in text
    assert part in text


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"timestamp": 1', ["not JSON"]),
        ("[1]", ["not a JSON object"]),
        ('{"timestamp": 1, "input_length": 5}', ["output_length", "missing key"]),
        ('{"timestamp": -1, "input_length": 5, "output_length": 5}', ["timestamp", "-1"]),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5}', ["timestamp", "nan"]),
        ('{"timestamp": 1, "input_length": "5", "output_length": 5}', ["input_length", "'5'"]),
        ('{"timestamp": 1, "input_length": 5, "output_length": -1}', ["output_length", "at least 0"]),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [1, 2]}',
            ["hash_ids", "2 ids"],
        ),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": ["a"]}', ["hash_ids"]),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_id": [1]}',
            ["did you mean hash_ids?"],
        ),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5, "wait_for": 1}', ["not supported"]),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5, "session_id": [1]}', ["session_id"]),
        ('{"delay": 1, "input_length": 5, "output_length": 5, "session_id": 1}', ["timestamp", "missing"]),
    ],
)
def test_a_wrong_mooncake_line_is_found(tmp_path: Path, line: str, parts: list[str]) -> None:
    good = '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}'
    text = message(write(tmp_path, "m.jsonl", f"{good}\n{line}\n"))
    for part in ["m.jsonl:2", *parts]:
        assert part in text, text


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "not a known trace"),
        (b"a,b,c\n1,2,3\n", "CSV with a, b, c"),
        (b"\x89PNG\r\n\xff\xff", "not a UTF-8 text file"),
        (gzip.compress(b"arrival_s,input_tokens,output_tokens\n0,1,1\n" * 999, mtime=0)[:60], "damaged gzip"),
    ],
)
def test_a_file_that_is_no_trace_is_one_clear_error(tmp_path: Path, content: bytes, part: str) -> None:
    text = message(write(tmp_path, "thing.csv", content))
    assert "thing.csv" in text
    assert part in text


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    assert "No such file" in message(tmp_path / "nowhere.csv")
    assert "no CSV beside" in message(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"time_scale": 0.0}, "--time-scale"),
        ({"time_scale": float("inf")}, "--time-scale"),
        ({"limit": 0}, "--limit"),
        ({"slo_shares": {"critical": -1.0}}, "'critical'"),
        ({"slo_shares": {"critical": 0.0}}, "more than 0"),
        ({"format": "azur"}, "tracev2, azure, burstgpt"),
        ({"reading": Reading(header=Path("x.yaml"))}, "has no header file"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, Any], part: str) -> None:
    path = write(tmp_path, "azure.csv", "arrival_s,input_tokens,output_tokens\n0,1,1\n")
    assert part in message(path, **options)


@pytest.mark.parametrize("name", ["true", "1.5", "[1]", '{"a": 1}'])
def test_a_request_of_mooncake_is_named_by_a_text_or_a_whole_number(tmp_path: Path, name: str) -> None:
    line = '{"timestamp": 0, "input_length": 9, "output_length": 2, "request_id": NAME}\n'
    path = write(tmp_path, "t.jsonl", line.replace("NAME", "7") + line.replace("NAME", name))
    assert "t.jsonl:2: request_id: must be a text or a whole number" in message(path)


def test_requests_of_mooncake_have_names_of_their_own_whatever_their_type(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 9, "output_length": 2, "request_id": NAME}\n'
    path = write(tmp_path, "t.jsonl", line.replace("NAME", "7") + line.replace("NAME", '"7"'))
    assert "t.jsonl:2: request_id: the same id as in line 1" in message(path)
