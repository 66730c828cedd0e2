"""Every format that people bring is recognised by what is in the file, and read as what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.formats import FORMATS
from blis_py.traces.probe import probe
from blis_py.traces.reading import Reading

FOLDER = Path(__file__).with_name("formats")
"""Small files, all of ten tokens in and three out, and two seconds later twenty in and four out."""
SAMPLES = {path.name.split(".")[0]: path for path in sorted(FOLDER.iterdir())}
WITHOUT_TIMES = {"sglang", "sharegpt"}


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    if isinstance(content, str):
        path.write_text(content)
    elif name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    else:
        path.write_text(json.dumps(content))
    return path


def read(path: Path, **settings: Any) -> tuple[RequestTable, Reading]:
    reading = Reading(**settings)
    return read_trace(path, reading=reading), reading


@pytest.mark.parametrize("format", SAMPLES)
def test_a_file_states_by_itself_what_it_is(format: str) -> None:
    table, reading = read(SAMPLES[format])
    assert table.prompt_tokens.tolist() == [10, 20]
    assert table.output_tokens.tolist() == [3, 4]
    assert reading.has_times == (format not in WITHOUT_TIMES)
    assert np.diff(table.arrival_ns).tolist() == [2 * 10**9 if reading.has_times else 0]
    assert f" is read as {FORMATS[format].title}: it has " in reading.chosen_as


@pytest.mark.parametrize("format", SAMPLES)
def test_no_other_format_takes_the_file_for_its_own(format: str) -> None:
    found = probe(SAMPLES[format])
    assert [name for name, other in FORMATS.items() if other.misses(found) is None] == [format]


@pytest.mark.parametrize("format", SAMPLES)
def test_a_file_under_the_name_of_another_format_is_one_clear_error(format: str) -> None:
    """But SGLang's rows have all that vLLM's have."""
    for other in FORMATS.keys() - {format, *(("vllm", "vllm-lines") if format == "sglang" else ())}:
        with pytest.raises(InputError, match="leave --trace-format out, or name the format of the file"):
            read_trace(SAMPLES[format], format=other)


def test_a_result_on_a_single_line_is_read_too(tmp_path: Path) -> None:
    content = json.loads(SAMPLES["vllm"].read_text())
    (tmp_path / "r.json").write_text(json.dumps(content))
    assert len(read(tmp_path / "r.json")[0]) == 2


def test_requests_that_were_not_answered_are_left_out_and_counted() -> None:
    report = read(SAMPLES["burstgpt"])[1].stated()
    assert "1 request was left out: no output tokens (failed when recorded)" in report
    report = read(SAMPLES["guidellm"])[1].stated()
    assert "1 request was left out: not answered" in report
    report = read(SAMPLES["aiperf"])[1].stated()
    assert "1 request was left out: sent to warm the server up" in report


def test_guessed_lengths_are_called_guesses() -> None:
    for format in ("sharegpt", "genai-perf"):
        report = read(SAMPLES[format])[1].stated()
        assert any("guessed at 4 characters a token" in note for note in report), format


def test_a_tokenizer_counts_the_tokens_of_texts(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    talk = [{"conversations": [{"value": "a b a b a"}, {"value": "b, a"}]}]
    table, reading = read(write(tmp_path, "s.json", talk), tokenizer=tmp_path / "tokenizer.json")
    assert (table.prompt_tokens[0], table.output_tokens[0]) == (5, 3)
    assert not any("guessed" in note for note in reading.stated())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        read(tmp_path / "s.json", tokenizer=tmp_path / "tokenizer.json")


def test_results_saved_without_their_requests_say_how_to_save_them(tmp_path: Path) -> None:
    figures = {"request_throughput": 1.0, "total_input_tokens": 30}
    with pytest.raises(InputError, match=r"only figures.*--save-detailed"):
        read(write(tmp_path, "v.json", figures))
    with pytest.raises(InputError, match=r"only figures.*--output-details"):
        read(write(tmp_path, "s.jsonl", [{"backend": "sglang", "total_output_tokens_retokenized": 7}]))


def test_of_several_runs_in_a_file_one_is_named(tmp_path: Path) -> None:
    content = json.loads(SAMPLES["guidellm"].read_text())
    second = {"requests": {"successful": [{"start_time": 0, "prompt_tokens": 5, "output_tokens": 1}]}}
    path = write(tmp_path, "benchmarks.json", content | {"benchmarks": [*content["benchmarks"], second]})
    with pytest.raises(InputError, match=r"holds 2 benchmarks; name one: benchmarks.json#0 to"):
        read(path)
    assert read(Path(f"{path}#1"))[0].prompt_tokens.tolist() == [5]
    with pytest.raises(InputError, match="#2"):
        read(Path(f"{path}#2"))


def test_any_table_is_read_by_naming_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "who,ts,in,out\nbob,500,10,3.0\nann,2500,20,4.0\n")
    roles = {"arrival": "ts", "input": "in", "output": "out", "tenant_id": "who"}
    table, _ = read(path, columns=roles, time_unit="ms")
    assert table.arrival_ns.tolist() == [500_000_000, 2_500_000_000]
    assert (table.output_tokens.tolist(), table.tenant.to_list()) == ([3, 4], ["bob", "ann"])


def test_named_columns_are_read_from_parquet_alike(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    moments = pa.array([1_700_000_000_500_000, 1_700_000_002_500_000], pa.timestamp("us"))
    pa.parquet.write_table(pa.table({"ts": moments, "in": [10, 20], "out": [3.0, 4.0]}), path)
    table, reading = read(path, columns={"arrival": "ts", "input": "in", "output": "out"})
    assert table.arrival_ns.tolist() == [0, 2 * 10**9]
    assert table.output_tokens.tolist() == [3, 4]
    assert "times count from the first request, 2023-11-14T22:13:20" in reading.stated()[0]
    bad = pa.table({"ts": moments, "in": [10, None], "out": [3.0, 4.5]})
    pa.parquet.write_table(bad, path)
    with pytest.raises(InputError, match="row 2: in: not a whole number of at least 1"):
        read(path, columns={"arrival": "ts", "input": "in", "output": "out"})
    skipping = Reading(columns={"input": "in", "output": "out"}, bad=BadRows(skip=True))
    assert len(read_trace(path, reading=skipping)) == 1
    assert skipping.bad.count == 1


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ("2024-05-10T00:00:00+00:00\n2024-05-10T02:00:01+02:00", 1),
        ("2024-05-10 00:00:00.25\n2024-05-10 00:00:02.5", 2.25),
        ("1700000000\n1700000003", 3),
    ],
)
def test_dates_and_epochs_count_from_the_first_in_whatever_zone(
    tmp_path: Path, rows: str, seconds: float
) -> None:
    lines = "".join(f"{row},1,1\n" for row in rows.split("\n"))
    path = write(tmp_path, "t.csv", f"when,in,out\n{lines}")
    table, _ = read(path, columns={"arrival": "when", "input": "in", "output": "out"})
    assert table.arrival_ns.tolist() == [0, round(seconds * 1e9)]


@pytest.mark.parametrize(("first_s", "is_date"), [(366 * 86_400 - 1, False), (366 * 86_400, True)])
def test_seconds_are_a_date_from_the_end_of_the_first_year_on(
    tmp_path: Path, first_s: int, is_date: bool
) -> None:
    path = write(tmp_path, "t.csv", f"when,in,out\n{first_s},1,1\n{first_s + 3},1,1\n")
    table, _ = read(path, columns={"arrival": "when", "input": "in", "output": "out"})
    begin_ns = 0 if is_date else first_s * 10**9
    assert table.arrival_ns.tolist() == [begin_ns, begin_ns + 3 * 10**9]


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ("nan,1,1", "must be a time"),
        ("-1,1,1", "must be a time"),
        ("soon,1,1", "not a number, unlike the first row"),
        ("1,nan,1", "not a whole number"),
        ("1,1,2.5", "not a whole number"),
        ("1,0,2", "at least 1"),
    ],
)
def test_a_bad_cell_of_any_table_is_found_on_its_line(tmp_path: Path, row: str, part: str) -> None:
    path = write(tmp_path, "t.csv", f"ts,in,out\n0,1,1\n{row}\n")
    with pytest.raises(InputError, match=rf"t\.csv:3: .*{part}"):
        read(path, columns={"arrival": "ts", "input": "in", "output": "out"})


def test_zones_on_some_rows_only_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "ts,in,out\n2024-05-10T00:00:00Z,1,1\n2024-05-10T00:00:01,1,1\n")
    with pytest.raises(InputError, match=r"t\.csv:3: ts: has a time zone, or none, unlike the first row"):
        read(path, columns={"arrival": "ts", "input": "in", "output": "out"})


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"arival": "ts"}, "not a role of a column"),
        ({"arrival": "ts", "input": "in"}, "--columns output"),
        ({"arrival": "ts", "input": "in", "output": "in"}, "two roles"),
        ({"arrival": "when", "input": "in", "output": "out"}, "when: missing .*; it has ts, in, out"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, columns: dict[str, str], part: str) -> None:
    path = write(tmp_path, "t.csv", "ts,in,out\n0,1,1\n")
    with pytest.raises(InputError, match=part):
        read(path, columns=columns)


def test_arrivals_out_of_order_are_put_in_order_and_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "arrival_s,input_tokens,output_tokens\n3,1,1\n1,2,1\n2,3,1\n")
    table, reading = read(path)
    assert table.prompt_tokens.tolist() == [2, 3, 1]
    assert "arrivals go back in time once; they are played in order of time" in reading.stated()


def test_a_file_of_unknown_format_gets_the_list_and_what_each_format_misses(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(write(tmp_path, "t.csv", "ts,prompt_len,gen\n1,2,3\n"))
    assert "CSV with ts, prompt_len, gen" in str(caught.value)
    assert "--columns arrival=ts,input=prompt_len,output=NAME (" in str(caught.value)
    assert "no BurstGPT trace: it has no Timestamp and no Request tokens" in str(caught.value)
    with pytest.raises(InputError) as caught:
        read(write(tmp_path, "t.json", {"hello": [1]}))
    assert "one JSON object with hello; give TraceV2, " in str(caught.value)
    with pytest.raises(InputError) as caught:
        read(write(tmp_path, "t.json", {"request_throughput": 1}))
    assert "no vLLM bench serve result: it has no total_input_tokens and " in str(caught.value)
    assert "Mooncake trace: it" not in str(caught.value), "of JSON formats, those that share a name with it"


def test_token_ids_of_llmservingsim_say_what_prompts_share(tmp_path: Path) -> None:
    ids = list(range(40))
    rows = [
        {"input_toks": 40, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": ids},
        {"input_toks": 36, "output_toks": 1, "arrival_time_ns": 1, "input_tok_ids": [*ids[:33], 7, 7, 7]},
        {"input_toks": 20, "output_toks": 1, "arrival_time_ns": 2, "input_tok_ids": [9] * 20},
    ]
    table, _ = read(write(tmp_path, "l.jsonl", rows))
    first, second = (table.contents[index] for index in table.content[:2])
    assert first == second
    assert sum(tokens for _, tokens in first) == 32
    assert table.content[2] == -1


def test_the_requests_of_a_session_of_llmservingsim_wait_for_one_another(tmp_path: Path) -> None:
    chain = [
        {"input_toks": 10, "output_toks": 2, "tool_duration_ns": 3_000_000},
        {"input_toks": 30, "output_toks": 0, "tool_duration_ns": 1_000_000},
        {"input_toks": 40, "output_toks": 5, "tool_duration_ns": 0},
    ]
    rows = [
        {"input_toks": 7, "output_toks": 1, "arrival_time_ns": 500},
        {"session_id": "s", "arrival_time_ns": 1500, "sub_requests": chain},
    ]
    table, _ = read(write(tmp_path, "l.jsonl", rows))
    assert table.session_ids() == ["", "s", "s"]
    assert table.round_index is not None
    assert table.round_index.tolist() == [0, 0, 1]
    assert table.think_ns is not None
    assert table.think_ns[1:].tolist() == [0, 4_000_000]
    assert table.arrival_ns.tolist() == [0, 1000, 4_001_000]
    assert table.prompt_tokens.tolist() == [7, 10, 40]
    with pytest.raises(InputError, match="no times of their own"):
        read(tmp_path / "l.jsonl", session_mode="fixed")
    first = {"session_id": "s", "arrival_time_ns": 1500, "sub_requests": chain[:1]}
    alone, _ = read(write(tmp_path, "one.jsonl", [rows[0], first]), session_mode="fixed")
    assert alone.arrival_ns.tolist() == [0, 1000]


@pytest.mark.parametrize(
    ("session", "complaint"),
    [
        ({"sub_requests": []}, "sub_requests: must be a list of requests"),
        ({"sub_requests": [{"input_toks": 1, "output_toks": 1, "tool_duration_ns": -1}]}, "tool_duration_ns"),
        ({"session_id": True, "sub_requests": [{"input_toks": 1, "output_toks": 1}]}, "session_id"),
    ],
)
def test_a_wrong_session_of_llmservingsim_is_one_clear_error(
    tmp_path: Path, session: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=rf"l\.jsonl:1: {complaint}|l\.jsonl:1: .*{complaint}"):
        read(write(tmp_path, "l.jsonl", [{"arrival_time_ns": 0} | session]))


def test_turns_of_a_mooncake_trace_come_after_their_delay_or_at_their_times(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 5, "input_length": 10, "output_length": 2, "session_id": "a"},
        {"timestamp": 6, "input_length": 10, "output_length": 2},
        {"delay": 30, "input_length": 20, "output_length": 3, "session_id": "a"},
    ]
    table, _ = read(write(tmp_path, "m.jsonl", rows))
    assert table.session_ids() == ["a", "", "a"]
    assert table.think_ns is not None
    assert table.think_ns.tolist()[2] == 30_000_000
    assert table.arrival_ns.tolist() == [5_000_000, 6_000_000, 35_000_000]
    timed = [row | {"timestamp": 10 * index} for index, row in enumerate(rows)]
    table, _ = read(write(tmp_path, "timed.jsonl", timed), session_mode="fixed")
    assert table.think_ns is None
    assert table.arrival_ns.tolist() == [0, 10_000_000, 20_000_000]
    table, _ = read(tmp_path / "timed.jsonl")
    assert table.think_ns is not None
    assert table.think_ns.tolist()[2] == 30_000_000


@pytest.mark.parametrize("named", FORMATS)
@pytest.mark.parametrize("file", SAMPLES.values(), ids=list(SAMPLES))
def test_a_format_that_is_named_for_a_file_of_another_is_one_clear_error(file: Path, named: str) -> None:
    alike = {named.removesuffix("-lines"), file.stem} == {"vllm", "sglang"}
    if FORMATS[named].misses(probe(file)) is None or alike:
        return
    with pytest.raises(InputError, match=f"no {FORMATS[named].title}: it (has|is)"):
        read_trace(file, format=named)


def test_what_is_like_a_format_is_read_as_that_where_it_is_named() -> None:
    """SGLang's results have all that those of vLLM have."""
    assert len(read_trace(SAMPLES["sglang"], format="vllm")) > 0
