"""Names with a meaning to spreadsheets: harmless in the files, and read back as they were."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.metrics import csv_bytes
from blis_py.metrics.frames import _characters
from blis_py.traces import read_trace
from blis_py.traces.samples import read_samples, samples_from, write_samples
from blis_py.traces.tracev2 import write
from blis_py.workload import Labels, RequestTable

ODD = ['=HYPERLINK("x")', "+1", "-1", "@a", "'=b", "''c", "plain", "a,b", 'q"q', "é😀", "\t=x", "two\nlines"]
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table(names: list[str]) -> RequestTable:
    ones = np.ones(len(names), dtype=np.int64)
    labels = Labels.of(names)
    return RequestTable.build(
        np.arange(len(names), dtype=np.int64) * 1000,
        ones,
        ones,
        slo_class=labels,
        tenant=labels,
        client=labels,
        model=labels,
        prefix_group=labels,
        prefix_tokens=ones,
        request_id=[f"{name}{row}" for row, name in enumerate(names)],
    )


def cells(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [cell for row in csv.reader(file) for cell in row]


def test_no_name_of_a_trace_begins_like_a_formula(tmp_path: Path) -> None:
    write(table(ODD), tmp_path / "x.yaml", tmp_path / "x.csv")
    found = cells(tmp_path / "x.csv")
    assert not [cell for cell in found if cell.startswith(FORMULA)]
    assert '\'=HYPERLINK("x")' in found


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1, max_size=6)


@pytest.mark.slow
@given(st.lists(NAMES | st.sampled_from(ODD), min_size=1, max_size=6))
def test_a_trace_comes_back_with_its_names(names: list[str]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        write(table(names), Path(folder) / "x.yaml", Path(folder) / "x.csv")
        read = read_trace(Path(folder) / "x.csv")
    for column in (read.slo_class, read.tenant, read.client, read.model, read.prefix_group):
        assert column.to_list() == names


def test_no_name_of_the_requests_table_begins_like_a_formula() -> None:
    for column in (Labels.of(ODD), ODD):
        text = csv_bytes.lines([_characters(column, slice(None))]).decode()
        found = [row[0] for row in csv.reader(text.splitlines(keepends=True))]
        assert not [cell for cell in found if cell.startswith(FORMULA)]
        assert '\'=HYPERLINK("x")' in found
        assert "plain" in found


@pytest.mark.parametrize("name", ODD)
def test_samples_come_back_with_their_names(tmp_path: Path, name: str) -> None:
    samples = samples_from({}, {"source": [name], "regime": ["eager"]}, 1)
    write_samples(samples, tmp_path / "samples.csv")
    assert read_samples(tmp_path / "samples.csv")["source"].tolist() == [name]
    assert not [cell for cell in cells(tmp_path / "samples.csv") if cell.startswith(("=", "+", "@"))]
