from __future__ import annotations

import io

import pytest
from record_builders import instance, random_record, record, table

from blis_py.metrics import summarise
from blis_py.metrics.slo import parse_goodput, parse_slo
from blis_py.report.table import print_summary


def text_of(summary: dict[str, object], width: int = 100) -> str:
    out = io.StringIO()
    print_summary(summary, out, width=width)
    return out.getvalue()


def test_the_table_shows_counts_latencies_groups_and_verdicts() -> None:
    slos = [parse_slo("ttft.p99=1us"), parse_slo("critical.itl.mean=1s")]
    run = random_record(3, requests=80, instances=3)
    text = text_of(summarise(run, goodput=parse_goodput(["ttft:300"]), slo=slos))
    for words in ("80 requests", "completed", "rejected", "output tokens/s", "scheduling delay", "goodput"):
        assert words in text
    for title in ("latency, ms", "SLO class", "tenant", "instance"):
        assert any(line.startswith(title) for line in text.splitlines())
    first, second = text.splitlines()[:2]
    assert first.startswith("✗ p99 TTFT ")
    assert "exceeds 0.001 ms" in first
    assert second.startswith("✓ Critical mean ITL ")
    assert "(target 1 s, " in second


def test_no_colour_codes_where_there_is_no_terminal() -> None:
    assert "\x1b" not in text_of(summarise(random_record(3)))


@pytest.mark.parametrize("width", [50, 64, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width: int) -> None:
    run = random_record(5, requests=60, instances=4)
    text = text_of(summarise(run, goodput=parse_goodput(["ttft:300"])), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert ("no room for" in text) == (width < 80)


def test_many_instances_are_shown_by_their_spread() -> None:
    text = text_of(summarise(random_record(7, requests=200, instances=12)))
    assert "median of 12" in text


def test_names_are_not_taken_for_markup() -> None:
    names = ["[red]a[/red]", "[b"]
    run = record(table([0, 1], tenant=names, slo_class=names), [instance([5])], [None, None])
    text = text_of(summarise(run))
    assert all(text.count(name) >= 2 for name in names)


def test_names_do_nothing_to_the_terminal() -> None:
    names = ["\x1b[31mred", "two\nlines"]
    text = text_of(summarise(record(table([0, 1], tenant=names), [instance([5])], [None, None])))
    assert r"\x1b[31mred" in text
    assert "two lines" in text


def test_a_run_without_requests_can_be_shown() -> None:
    assert text_of(summarise(record(table([]), [instance([])], []))).splitlines()[2].startswith("0 requests")


def test_the_hit_rate_is_shown_with_what_it_could_be() -> None:
    summary = summarise(random_record(3))
    assert "prefix hits 25.0 %" in text_of(summary)
    summary["cluster"]["prefix_hit_ceiling"] = 0.6251
    assert "prefix hits 25.0 % (at most 62.5 %)" in text_of(summary)
