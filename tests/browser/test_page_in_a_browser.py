"""The page as a person uses it: drag, pin, compare, plan, undo, copy the command, download the report."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import Browser, Server, serious

from blis_py.cli import main

WHOLE = "body[data-drawn=whole]"


def opened(browser: Browser, server: Server, **options: Any) -> Any:
    page = browser.page(**options)
    page.goto(server.link)
    page.wait_for_selector(WHOLE)
    return page


def state(page: Any) -> Any:
    return json.loads(page.evaluate("document.body.dataset.state"))


def drag(page: Any, label: str, steps: int) -> None:
    """Move a slider by the keyboard, as a hand that does not rest."""
    page.get_by_label(label, exact=True).focus()
    for _ in range(abs(steps)):
        page.keyboard.press("ArrowRight" if steps > 0 else "ArrowLeft")


def drawn(page: Any, kind: str, key: str, value: Any) -> None:
    """Wait until an answer of a kind is drawn for a setting."""
    page.wait_for_function(
        """([kind, key, value]) => {
            const { drawn, state } = document.body.dataset;
            const found = JSON.parse(state).settings[key] ?? null;
            return drawn === kind && JSON.stringify(found) === JSON.stringify(value);
        }""",
        arg=[kind, key, value],
    )


def tile(page: Any, name: str) -> float:
    cell = page.locator(".tile", has=page.locator("dt", has_text=name)).first.locator("dd")
    return float(cell.get_attribute("data-value"))


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_slider_moves_the_curve_by_a_sample_and_then_by_the_whole_run(
    browser: Browser, server: Server
) -> None:
    page = opened(browser, server)
    curve = page.locator("#distributions path.line").first
    before = curve.get_attribute("d")
    drag(page, "Instances", 2)
    drawn(page, "sample", "num_instances", 4)
    assert "SAMPLE" in page.evaluate("getComputedStyle(document.getElementById('label'), '::before').content")
    assert page.locator(".tile .expected").count() > 0
    sampled = curve.get_attribute("d")
    assert sampled != before
    drawn(page, "whole", "num_instances", 4)
    assert curve.get_attribute("d") != sampled
    assert "Whole run: 3,600 requests" in page.locator("#label").inner_text()
    assert page.locator(".tile .expected").count() == 0


def test_the_copied_command_gives_the_numbers_on_the_page(
    browser: Browser, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened(browser, server)
    drag(page, "Instances", 1)
    drawn(page, "whole", "num_instances", 3)
    page.locator("#copy-command").click()
    command = page.evaluate("navigator.clipboard.readText()")
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command)[1:], "--out", "again", "--no-plots"]) == 0
    summary = json.loads(Path("again/summary.json").read_text())
    assert tile(page, "TTFT p99") == summary["cluster"]["ttft_ms"]["p99"]
    assert tile(page, "Output tokens") == summary["cluster"]["throughput"]["output_tokens_per_s"]
    page.locator("#copy-yaml").click()
    Path("config.yaml").write_text(page.evaluate("navigator.clipboard.readText()"))
    assert main(["run", "--config", "config.yaml", "--out", "yaml", "--no-plots"]) == 0
    assert json.loads(Path("yaml/summary.json").read_text()) == summary


def test_a_pinned_configuration_is_compared(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_label("Scheduler").select_option("sjf")
    drawn(page, "whole", "scheduler.policy", "sjf")
    page.wait_for_selector("#compared table")
    assert "scheduler.policy: fcfs → sjf" in page.locator("#compared").inner_text()
    assert page.locator("#distributions .legend", has_text="pinned").count() == 3
    page.get_by_role("button", name="Unpin").click()
    assert page.locator("#pinned-section").is_hidden()


def test_the_points_are_drawn_at_the_latency_that_is_chosen(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    assert page.locator("#y option").all_inner_texts() == ["TTFT p99", "TPOT p99", "E2E p99"]
    page.locator("#y").select_option("E2E p99")
    page.wait_for_selector("#points >> text=E2E p99 against output tokens/s")
    headings = page.locator("#classes thead th").all_inner_texts()
    assert headings[1:] == ["requests", "TTFT p50, ms", "TTFT p99, ms", "TPOT p99, ms", "E2E p99, ms"]


def test_undo_redo_and_the_link_restore_the_state(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    drag(page, "Instances", 3)
    drawn(page, "whole", "num_instances", 5)
    page.get_by_label("Router").select_option("least-loaded")
    drawn(page, "whole", "routing.policy", "least-loaded")
    link = page.url
    page.get_by_role("button", name="Undo").click()
    drawn(page, "whole", "routing.policy", None)
    assert state(page)["settings"] == {"num_instances": 5}
    page.keyboard.press("Control+z")
    drawn(page, "whole", "num_instances", None)
    page.get_by_role("button", name="Redo").click()
    drawn(page, "whole", "num_instances", 5)
    other = browser.page()
    other.goto(link)
    other.wait_for_selector(WHOLE)
    assert state(other)["settings"] == {"num_instances": 5, "routing.policy": "least-loaded"}
    assert other.get_by_label("Router").input_value() == "least-loaded"


def test_a_plan_finds_the_cheapest_and_its_candidates_can_be_chosen(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    drag(page, "Requests", -3)
    drawn(page, "whole", "workload.num_requests", 500)
    page.get_by_role("button", name="Find the cheapest that holds").click()
    page.wait_for_selector("#found button", timeout=90_000)
    assert "The cheapest so far" in page.locator("#found").inner_text()
    page.wait_for_selector("#points .choice")
    choice = page.locator("#points .choice[aria-label*='TP1, ']").first
    choice.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => 'num_instances' in JSON.parse(document.body.dataset.state).settings")
    assert {"num_instances", "tp", "gpu"} <= set(state(page)["settings"])


def test_a_plan_can_be_stopped(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    before = len(children(server.process.pid))
    page.get_by_label("Choose").select_option("gpu")
    page.get_by_role("button", name="Find the cheapest that holds").click()
    page.get_by_role("button", name="Stop").click()
    page.wait_for_function("() => document.getElementById('progress').textContent.startsWith('Stopped')")
    assert page.get_by_role("button", name="Find the cheapest that holds").is_enabled()
    for _ in range(100):
        if len(children(server.process.pid)) == before:
            break
        page.wait_for_timeout(100)
    assert len(children(server.process.pid)) == before, "the process of the plan goes on"


def test_the_report_is_downloaded_and_opens_from_disk(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    page = opened(browser, server)
    p99 = tile(page, "TTFT p99")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download report").click()
    file = tmp_path / "report.html"
    download.value.save_as(file)
    report = browser.page()
    report.goto(file.as_uri())
    cell = report.locator("dd[data-source='summary.json: cluster.ttft_ms.p99']")
    assert float(cell.get_attribute("data-value")) == p99


def test_nonsense_is_a_message_and_the_page_goes_on(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    box = page.get_by_label("Targets")
    box.fill("nonsense")
    box.press("Tab")
    page.wait_for_selector("#verdict.bad:has-text('nonsense')")
    box.fill("ttft.p99=1s")
    box.press("Tab")
    drawn(page, "whole", "slo", ["ttft.p99=1s"])
    # the browser notes every refused request, that for the sample and that for the whole
    browser.errors[:] = [error for error in browser.errors if "422" not in error]


def test_the_page_is_accessible_in_light_and_dark_and_on_a_phone(browser: Browser, server: Server) -> None:
    for options in ({}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}):
        page = opened(browser, server, **options)
        page.wait_for_selector("#ledger .bar")
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert {url.split("/")[2] for url in browser.requests if url.startswith("http")} == {
        server.link.split("/")[2]
    }


def test_the_main_thread_is_free_while_the_page_waits(browser: Browser, server: Server) -> None:
    """Its own work never takes long; how many frames come in time is for benchmarks/ui_latency.py."""
    page = opened(browser, server)
    page.evaluate("""() => {
        window.tasks = [];
        window.began = performance.now();
        new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
            .observe({ type: 'longtask', buffered: false });
    }""")
    drag(page, "Instances", 4)
    drawn(page, "whole", "num_instances", 6)
    busy_ms, waited_ms = page.evaluate("[tasks.reduce((a, b) => a + b, 0), performance.now() - began]")
    assert busy_ms < waited_ms / 2


def test_what_is_shown_is_marked_until_the_next_answer_comes(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    page.route("**/api/job", lambda route: None)
    drag(page, "Instances", 1)
    page.wait_for_selector("#label.stale")
    page.unroute("**/api/job")
    drag(page, "Instances", 1)
    drawn(page, "whole", "num_instances", 4)
    assert page.locator("#label.stale").count() == 0


def test_a_server_that_ends_is_a_message(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    page.route("**/api/job", lambda route: route.abort())
    drag(page, "Instances", 1)
    page.wait_for_selector("#verdict.bad:has-text('does not answer')")
    browser.errors.clear()
