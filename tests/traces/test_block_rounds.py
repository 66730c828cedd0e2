"""The rounds of diffusion blocks beside a trace, and requests that take exactly those again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces.diffusion_rounds import NAME, WORKLOAD_NAME, read_rounds, write_rounds, write_workload
from blis_py.workload.diffusion import MeasuredSteps, diffusion_client, table_rounds
from blis_py.workload.diffusion_steps import Recorded, steps_from_mapping

ROUNDS = {0: (3, 9), 7: (1,), 4: (2, 33, 5)}


def table(*outputs: int, ids: tuple[int, ...]) -> RequestTable:
    count = len(outputs)
    return RequestTable.build(
        np.arange(count, dtype=np.int64),
        np.full(count, 40),
        np.array(outputs),
        request_id=[f"request_{number}" for number in ids],
    )


def of(requests: RequestTable, steps: Recorded, seed: int = 0) -> list[list[int]]:
    measured = dict.fromkeys(requests.client.names, MeasuredSteps(steps, commit_rounds=0))
    return table_rounds(requests, measured, block_tokens=32, seed=seed)


@pytest.fixture
def steps(tmp_path: Path) -> Recorded:
    write_rounds(tmp_path / NAME, ROUNDS)
    read = steps_from_mapping({"recorded": NAME}, file=tmp_path / "dllm.yaml")
    assert isinstance(read, Recorded)
    return read


def test_rounds_come_back_as_they_were_written(steps: Recorded, tmp_path: Path) -> None:
    assert steps.rounds == read_rounds(tmp_path / NAME) == ROUNDS
    assert (tmp_path / NAME).read_text().splitlines()[:3] == [
        "request_id,block_index,rounds",
        "0,0,3",
        "0,1,9",
    ]


def test_each_request_takes_its_own_wherever_it_stands_in_the_table(steps: Recorded) -> None:
    # 40 prompt tokens: 8 of them in the first block
    assert of(table(80, 20, 56, ids=(4, 7, 0)), steps) == [[2, 33, 5], [1], [3, 9]]


def test_blocks_that_a_broken_off_request_did_not_come_to_are_drawn_from_the_others(steps: Recorded) -> None:
    requests = table(80, 80, ids=(7, 3))
    drawn = [of(requests, steps, seed) for seed in range(30)]
    assert all((first[0], len(first), len(unseen)) == (1, 3, 3) for first, unseen in drawn)
    assert {tuple(first[1:]) for first, _ in drawn} == {(33, 5)}, "the only request of three blocks"
    assert of(requests, steps, 5) == drawn[5]


def test_rounds_of_other_requests_are_refused(steps: Recorded) -> None:
    with pytest.raises(InputError, match="request_id 4: had 3 blocks, and its lengths make 1"):
        of(table(20, ids=(4,)), steps)
    with pytest.raises(InputError, match="has none of the requests"):
        of(table(20, ids=(1,)), steps)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("0,0,3\n0,2,3\n", "request_id 0, block_index: a block is missing or occurs twice"),
        ("0,0,3\n0,0,4\n", "a block is missing or occurs twice"),
        ("0,0,0\n", "rounds"),
        ("", "no requests"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, rows: str, problem: str) -> None:
    (tmp_path / NAME).write_text("request_id,block_index,rounds\n" + rows)
    with pytest.raises(InputError, match=problem):
        read_rounds(tmp_path / NAME)
    with pytest.raises(InputError, match="must name a file"):
        steps_from_mapping({"recorded": [[1, 2]]}, file=tmp_path / "dllm.yaml")


def test_the_workload_file_names_the_algorithm_and_adds_no_rounds(steps: Recorded, tmp_path: Path) -> None:
    write_workload(tmp_path, block_tokens=32, algorithm="LowConfidence", parameters={"threshold": 0.8})
    file = tmp_path / WORKLOAD_NAME
    client = diffusion_client(yaml.safe_load(file.read_text()), file=file)
    assert client.block_tokens == 32
    measured = client.choose("LowConfidence", {"threshold": 0.8})
    assert (measured.steps, measured.commit_rounds) == (steps, 0)
    with pytest.raises(InputError, match="no step counts"):
        client.choose("TopKPerStep", {})
