from __future__ import annotations

import io

import pytest

from blis_py.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("blis_py.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_the_bar_appears_after_a_second_and_is_wiped_at_the_end(clock: list[float]) -> None:
    stream = Terminal()
    with Progress(stream) as report:
        clock[0] += 0.9
        report(1, 4)
        assert stream.getvalue() == ""
        clock[0] += 0.2
        report(2, 4)
        assert stream.getvalue().endswith("2 of 4 requests, 1 s")
    assert stream.getvalue().endswith("\r\x1b[2K")


def test_nothing_is_drawn_into_a_pipe(clock: list[float]) -> None:
    stream = io.StringIO()
    with Progress(stream) as report:
        clock[0] += 60
        report(2, 4)
    assert stream.getvalue() == ""
