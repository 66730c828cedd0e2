from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blis_py.core.kv import KeySpace
from blis_py.errors import InputError
from blis_py.metrics.reuse import clairvoyant, unlimited
from blis_py.traces import read_trace
from blis_py.traces.reading import Reading
from blis_py.workload import Content, RequestTable

HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"


def tracev2(folder: Path, csv: str, header: str = HEADER) -> RequestTable:
    (folder / "x.yaml").write_text(header)
    (folder / "x.csv").write_text(csv)
    return read_trace(folder / "x.csv")


# --- Azure


def test_azure_conversation_trace_of_2023(shared_data: Path) -> None:
    table = read_trace(shared_data / "azure_2023" / "azure2023_conv.csv")
    assert len(table) == 19_366
    assert table.arrival_ns[-1] == 3_501_721_937_000
    assert (table.prompt_tokens[0], table.output_tokens[0]) == (374, 44)
    assert (table.prompt_tokens[-1], table.output_tokens[-1]) == (197, 183)
    assert table.prompt_tokens.mean() == pytest.approx(1154.7, abs=0.1)


def test_azure_code_trace_of_2023(shared_data: Path) -> None:
    table = read_trace(shared_data / "azure_2023" / "azure2023_code.csv")
    assert len(table) == 8_819
    assert np.all(np.diff(table.arrival_ns) >= 0)


def test_azure_wall_clock_spelling_counts_from_the_earliest_request(tmp_path: Path) -> None:
    path = tmp_path / "AzureLLMInferenceTrace_conv.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:50.9951690,396,109\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n"
    )
    table = read_trace(path)
    assert table.arrival_ns.tolist() == [0, 4_314_579_000]
    assert table.prompt_tokens.tolist() == [374, 396]
    assert [table.id_of(row) for row in range(2)] == ["request_1", "request_0"]


@pytest.mark.parametrize(
    ("first", "second", "gap_ns"),
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", 990_070_000),
        ("2024-05-10T00:00:00.5Z", "2024-05-10T00:00:00.5000001Z", 100),
        ("2024-02-28 23:59:59", "2024-02-29 00:00:00", 10**9),
    ],
)
def test_azure_timestamps_of_2024(tmp_path: Path, first: str, second: str, gap_ns: int) -> None:
    path = tmp_path / "conv_1week.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},10,2\n{second},20,3\n")
    assert read_trace(path).arrival_ns.tolist() == [0, gap_ns]


def test_azure_requests_with_images_have_their_context_tokens(tmp_path: Path) -> None:
    path = tmp_path / "AzureLMMInferenceTrace_multimodal.csv"
    path.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-15T12:00:00.269Z,0,770,491\n2024-10-15T12:00:05.819Z,1,949,126\n"
    )
    reading = Reading()
    table = read_trace(path, reading=reading)
    assert table.prompt_tokens.tolist() == [770, 949]
    assert table.arrival_ns.tolist() == [0, 5_550_000_000]
    assert reading.notes == ["1 request has images: only its tokens count, no encoder is simulated"]
    path.write_text(path.read_text().replace("Z,1,", "Z,one,"))
    with pytest.raises(InputError, match=r"csv:3: NumImages: not a whole number"):
        read_trace(path)


# --- Mooncake


def block_hit_rate(table: RequestTable) -> float:
    """Leading 512-token blocks seen before / all blocks, with a cache that forgets nothing."""
    seen: set[Content] = set()
    hits = blocks = 0
    for prompt, content in zip(table.prompt_tokens.tolist(), table.content.tolist(), strict=True):
        runs = table.contents[content] if content >= 0 else ()
        leading = True
        for end in range(1, len(runs) + 1):
            leading = leading and runs[:end] in seen
            hits += leading
            seen.add(runs[:end])
        blocks += -(-prompt // 512)
    return hits / blocks


@pytest.mark.slow
def test_mooncake_conversation_has_its_known_size_and_prefix_sharing(shared_data: Path) -> None:
    table = read_trace(shared_data / "mooncake" / "conversation_trace.jsonl.gz")
    assert len(table) == 12_031
    assert block_hit_rate(table) == pytest.approx(0.366, abs=0.0005)
    assert table.arrival_ns[-1] == 3_536_999_000_000


def direct_count(path: Path, block_size: int) -> tuple[int, int]:
    """Prompt tokens of the trace, and those in full blocks that a request before it has too.

    From the file alone: an id stands for 512 tokens and all before them, or for what the prompt has of them.
    """
    known: dict[int, int] = {}
    prompts = hits = 0
    for row in map(json.loads, path.read_text().splitlines()):
        tokens, shared = row["input_length"], 0
        sizes = [min(512, tokens - 512 * at) for at in range(len(row["hash_ids"]))]
        for block, size in zip(row["hash_ids"], sizes, strict=True):
            shared += min(known.get(block, 0), size)
            if known.get(block, 0) < 512:
                break
        hits += min(shared, tokens - 1) // block_size * block_size
        prompts += tokens
        for block, size in zip(row["hash_ids"], sizes, strict=True):
            known[block] = max(known.get(block, 0), size)
    return prompts, hits


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256, 512])
def test_mooncake_ids_give_the_hits_counted_in_the_file(shared_data: Path, block_size: int) -> None:
    path = shared_data / "mooncake" / "conversation_first2000.jsonl"
    table = read_trace(path)
    prompts, hits = direct_count(path, block_size)
    in_order = clairvoyant(table, block_size, num_blocks=10**9)
    assert (in_order.queried_tokens, in_order.hit_tokens) == (prompts, hits)
    ceiling = unlimited(table, block_size)
    assert hits <= ceiling.hit_tokens <= hits + 2000 * block_size


def test_mooncake_block_keys_name_the_blocks_of_the_file(shared_data: Path) -> None:
    table = read_trace(shared_data / "mooncake" / "conversation_first2000.jsonl", limit=300)
    by_ids = KeySpace(512)
    fine = KeySpace(16)
    for row in range(len(table)):
        runs = table.contents[table.content[row]]
        assert sum(tokens for _, tokens in runs) <= table.prompt_tokens[row]
        whole, small = by_ids.keys(runs), fine.keys(runs)
        assert len(whole) == sum(tokens == 512 for _, tokens in runs)
        assert len(small) == sum(tokens // 16 for _, tokens in runs)


def test_mooncake_first_requests_share_exactly_their_first_block(shared_data: Path) -> None:
    table = read_trace(shared_data / "mooncake" / "conversation_first2000.jsonl", limit=3)
    assert len(table) == 3
    assert [table.contents[row][0] for row in table.content] == [(0, 512)] * 3


def test_mooncake_timestamps_keep_their_fractions_of_a_millisecond(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    times = [0, 0.25, 1.000_001, 2.5, 1234.567_891, 3_600_000.001]
    path.write_text("".join(f'{{"timestamp": {t}, "input_length": 10, "output_length": 5}}\n' for t in times))
    expected = [0, 250_000, 1_000_001, 2_500_000, 1_234_567_891, 3_600_000_001_000]
    assert read_trace(path).arrival_ns.tolist() == expected


def test_mooncake_blocks_become_runs_and_the_last_is_as_long_as_the_prompt_says(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 250, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 500, "input_length": 1200, "output_length": 5, "hash_ids": [1, 3, 4]},
        {"timestamp": 500, "input_length": 10, "output_length": 5, "hash_ids": [9]},
        {"timestamp": 600, "input_length": 10, "output_length": 5},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    table = read_trace(path)
    assert [table.contents[row] if row >= 0 else () for row in table.content] == [
        ((1, 512), (2, 188)),
        ((1, 512), (2, 188)),
        ((1, 512),),
        (),
        (),
    ]
    assert table.arrival_ns.tolist() == [0, 250_000_000, 500_000_000, 500_000_000, 600_000_000]


# --- TraceV2


@pytest.mark.parametrize(("name", "rows"), [("a_1k_rate10", 1_000), ("b_10k_rate100", 10_000)])
def test_tracev2_files_of_the_peer(shared_data: Path, name: str, rows: int) -> None:
    table = read_trace(shared_data / "bench_traces" / f"{name}.csv.gz")
    assert len(table) == rows
    assert table.request_id is None
    assert np.all(table.deadline_ns - table.arrival_ns == 300 * 10**9)
    by_header = read_trace(shared_data / "bench_traces" / f"{name}.yaml")
    assert np.array_equal(by_header.arrival_ns, table.arrival_ns)


def test_tracev2_first_row_of_the_peer(shared_data: Path) -> None:
    table = read_trace(shared_data / "bench_traces" / "a_1k_rate10.csv.gz", limit=1)
    assert (table.arrival_ns[0], table.prompt_tokens[0], table.output_tokens[0]) == (99_999_000, 185, 1208)
    assert (table.client[0], table.max_tokens[0], table.deadline_ns[0]) == (
        "distribution",
        1208,
        300_099_999_000,
    )


def test_tracev2_arrival_is_the_send_time_where_there_is_one(tmp_path: Path) -> None:
    columns = "request_id,input_tokens,output_tokens,arrival_time_us,send_time_us\n"
    csv = columns + "5,9,1,10,30\n6,8,1,20,0\n7,7,1,25,-1\n"
    table = tracev2(tmp_path, csv)
    assert table.arrival_ns.tolist() == [20_000, 25_000, 30_000]
    assert [table.id_of(row) for row in range(3)] == ["request_6", "request_7", "request_5"]


def test_tracev2_prompts_are_prefix_plus_suffix_with_the_length_of_the_groups_first_row(
    tmp_path: Path,
) -> None:
    csv = (
        "request_id,prefix_group,prefix_length,input_tokens,output_tokens,server_input_tokens,arrival_time_us\n"
        "0,g,100,10,1,0,0\n"
        "1,g,0,10,1,999,1\n"
        "2,g,70,20,1,0,2\n"
        "3,,50,30,1,0,3\n"
        "4,,0,30,1,44,4\n"
        "5,h,7,0,1,0,5\n"
        "6,z,0,5,1,0,6\n"
        "7,z,9,5,1,0,7\n"
    )
    table = tracev2(tmp_path, csv)
    assert table.prompt_tokens.tolist() == [110, 110, 120, 30, 44, 7, 5, 5]
    assert table.prefix_tokens.tolist() == [100, 100, 100, 0, 0, 7, 0, 0]
    assert [table.contents[row] if row >= 0 else () for row in table.content] == [
        *[(("g", 100),)] * 3,
        (),
        (),
        (("h", 7),),
        (),
        (),
    ]


def test_tracev2_failed_rows_are_replayed_as_one_token_without_budget(tmp_path: Path) -> None:
    csv = "request_id,input_tokens,output_tokens,arrival_time_us,status\n0,9,0,1,error\n1,9,4,2,ok\n"
    table = tracev2(tmp_path, csv)
    assert table.output_tokens.tolist() == [1, 4]
    assert table.max_tokens.tolist() == [0, 4]


def test_tracev2_quoted_cells_are_read_like_plain_ones(tmp_path: Path) -> None:
    columns = "request_id,client_id,tenant_id,input_tokens,output_tokens,arrival_time_us,error_message\n"
    table = tracev2(tmp_path, columns + '0,"a, b",t,9,1,1,"two\nlines"\n\n1,"say ""hi""",t,9,1,2,\n')
    assert table.client.to_list() == ["a, b", 'say "hi"']
    assert table.arrival_ns.tolist() == [1000, 2000]


def test_tracev2_without_optional_columns_has_their_defaults(tmp_path: Path) -> None:
    table = tracev2(tmp_path, "arrival_time_us,request_id,output_tokens,input_tokens\n3,0,2,1\n")
    assert (table.deadline_ns[0], table.slo_target_ns[0], bool(table.streaming[0])) == (-1, 0, False)
    assert (table.slo_class[0], table.content[0]) == ("", -1)


def test_tracev2_header_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "header.yml").write_text(HEADER)
    (tmp_path / "data.csv").write_text("request_id,input_tokens,output_tokens,arrival_time_us\n0,1,1,1\n")
    assert len(read_trace(tmp_path / "data.csv", reading=Reading(header=tmp_path / "header.yml"))) == 1


# --- every format


def azure(folder: Path, rows: int) -> Path:
    path = folder / "a.csv"
    lines = [f"{number * 0.5},{100 + number},{1 + number % 7}" for number in range(rows)]
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    return path


def test_gzip_is_recognised_by_content_not_by_name(tmp_path: Path) -> None:
    plain = azure(tmp_path, 10)
    packed = tmp_path / "packed.csv"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert np.array_equal(read_trace(packed).arrival_ns, read_trace(plain).arrival_ns)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "bom.csv"
    path.write_bytes(b"\xef\xbb\xbf" + azure(tmp_path, 3).read_bytes())
    assert len(read_trace(path)) == 3


def test_time_scale_multiplies_times_and_limit_keeps_the_first(tmp_path: Path) -> None:
    path = azure(tmp_path, 10)
    assert read_trace(path, limit=3, time_scale=2.0).arrival_ns.tolist() == [0, 10**9, 2 * 10**9]
    assert len(read_trace(path, limit=30)) == 10


def test_classes_are_drawn_by_share_from_their_own_stream(tmp_path: Path) -> None:
    path = azure(tmp_path, 20_000)
    shares = {"critical": 1, "batch": 3}
    table = read_trace(path, slo_shares=shares)
    drawn = np.array(table.slo_class.to_list())
    assert np.mean(drawn == "batch") == pytest.approx(0.75, abs=0.01)
    assert read_trace(path, slo_shares=shares).slo_class.to_list() == drawn.tolist()
    assert read_trace(path, slo_shares=shares, limit=50).slo_class.to_list() == drawn[:50].tolist()
    assert read_trace(path, slo_shares=shares, seed=1).slo_class.to_list() != drawn.tolist()


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_read_by_columns_and_without_pandas(shared_data: Path) -> None:
    code = (
        "import sys; from blis_py.traces import read_trace; calls = [];"
        "sys.setprofile(lambda frame, event, argument: calls.append(event));"
        f"table = read_trace({str(shared_data / 'bench_traces' / 'c_100k_rate400.csv.gz')!r});"
        "sys.setprofile(None); print(len(table), len(calls), 'pandas' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    rows, calls, pandas = run.stdout.split()
    assert (rows, pandas) == ("100000", "False")
    assert int(calls) < 100_000, "a call for every row"
