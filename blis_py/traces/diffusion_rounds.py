"""Forwards of each diffusion block of a run: a file beside the trace, one row per block.

Columns: `request_id` as in the trace, `block_index` (0 = the block with the first tokens), `rounds`,
including the forward that makes the block final.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.core.bounds import MOST_BLOCK_ROUNDS
from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml
from blis_py.outputs.staging import write_text
from blis_py.traces.columns import read_columns
from blis_py.traces.files import writing
from blis_py.traces.kinds import integers

NAME = "block_rounds.csv"
WORKLOAD_NAME = "dllm.yaml"
"""Name of the file for `--dllm-workload`, to replay the run with its rounds."""
COLUMNS = ("request_id", "block_index", "rounds")
_MOST_BLOCKS = 2**31
_LAST_ID = 2**62


def write_rounds(path: Path, rounds: Mapping[int, Sequence[int]]) -> None:
    """Write the rounds of each request's blocks, by its number in the trace."""
    with writing(path) as text:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows((number, index, n) for number, own in rounds.items() for index, n in enumerate(own))


def write_workload(folder: Path, *, block_tokens: int, algorithm: str, parameters: Mapping[str, Any]) -> None:
    """Write `dllm.yaml`, the block parameters of a run, beside its `block_rounds.csv`."""
    steps = {"recorded": NAME, "algorithm": algorithm, "parameters": dict(parameters), "commit_rounds": 0}
    text = "# The rounds of each block as they were measured, final forwards included: commit_rounds is 0.\n"
    text += dump_yaml({"kind": "diffusion", "block_size": block_tokens, "steps": steps})
    write_text(folder / WORKLOAD_NAME, text)


def read_rounds(path: Path) -> dict[int, tuple[int, ...]]:
    """Rounds of the blocks of each request; requests without a final block are absent.

    Raises:
        InputError: an unreadable file; a missing or duplicate block; no rounds at all.
    """
    kinds = (integers(0, _LAST_ID), integers(0, _MOST_BLOCKS), integers(1, MOST_BLOCK_ROUNDS))
    columns = read_columns(path, dict(zip(COLUMNS, kinds, strict=True)))
    ids, index, rounds = (columns[name] for name in COLUMNS)
    order = np.lexsort((index, ids))
    ids, index, rounds = ids[order], index[order], rounds[order]
    numbers, starts, counts = np.unique(ids, return_index=True, return_counts=True)
    wrong = np.flatnonzero(index != np.arange(len(ids)) - np.repeat(starts, counts))
    if len(wrong):
        row = wrong[0]
        raise InputError(
            "a block is missing or occurs twice",
            file=path,
            key=f"request_id {ids[row]}, block_index",
            value=int(index[row]),
        )
    ends = zip(numbers.tolist(), starts.tolist(), counts.tolist(), strict=True)
    return {number: tuple(rounds[start : start + count].tolist()) for number, start, count in ends}
