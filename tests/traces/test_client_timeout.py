"""The patience of a trace's clients can be given, whatever the trace says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_py import api
from blis_py.errors import InputError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:{second:02}.0000000,500,{tokens}\n" for second, tokens in enumerate((4, 900, 4, 900))
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    return path


def deadlines_ms(trace: Path, **settings: object) -> list[float]:
    table = api.build(trace=str(trace), model="llama-3.1-8b", **settings).table
    return [ns / 1e6 for ns in (table.deadline_ns - table.arrival_ns).tolist()]


def test_every_client_has_it_and_gives_up_when_it_ends(trace: Path) -> None:
    assert deadlines_ms(trace, client_timeout_s=1.5) == [1500.0] * 4
    result = api.replay(trace, model="llama-3.1-8b", client_timeout_s=1.5)
    assert result.requests["outcome"].tolist() == ["completed", "timed_out"] * 2, (
        "900 tokens take several seconds"
    )


def test_it_counts_from_the_arrival_at_the_rate_that_is_replayed(trace: Path) -> None:
    assert deadlines_ms(trace, client_timeout_s=2.0, time_scale=0.1) == [2000.0] * 4
    assert deadlines_ms(trace, client_timeout_s=2.0, rate=50.0) == [2000.0] * 4


def test_without_it_clients_are_as_the_trace_has_them(trace: Path) -> None:
    assert (api.build(trace=str(trace), model="llama-3.1-8b").table.deadline_ns == -1).all()


def test_requests_that_are_generated_have_timeout_instead() -> None:
    with pytest.raises(InputError, match=r"client_timeout_s: needs a trace"):
        api.build(model="llama-3.1-8b", client_timeout_s=1.0)
