"""Reports opened from disk: no request, no error, accessible, for a phone, in the dark, on paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Browser, serious

A4_MARGINS = 703
"""CSS pixels between the margins."""
KINDS = ("run", "comparison", "plan", "sweep", "calibration")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_opens_from_disk_and_is_accessible(
    browser: Browser, reports: dict[str, Path], kind: str, scheme: str
) -> None:
    page = browser.page(color_scheme=scheme)
    page.goto(reports[kind].as_uri())
    assert page.locator("figure svg, figure .bar-row").count() > 0
    assert serious(page) == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_fits_a_phone(browser: Browser, reports: dict[str, Path], kind: str) -> None:
    page = browser.page(viewport={"width": 360, "height": 740})
    page.goto(reports[kind].as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_dark_mode_is_that_of_the_system_or_the_button(browser: Browser, reports: dict[str, Path]) -> None:
    page = browser.page(color_scheme="dark")
    page.goto(reports["run"].as_uri())
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light colours").click()
    light = page.evaluate(ground)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 28)")


def test_tables_sort_by_a_click_or_the_keyboard(browser: Browser, reports: dict[str, Path]) -> None:
    page = browser.page()
    page.goto(reports["run"].as_uri())
    table = page.locator("table", has=page.get_by_text("By SLO class"))

    def column() -> list[float]:
        cells = table.locator("tbody tr td:nth-child(2)")
        return [float(cell.get_attribute("data-value") or "nan") for cell in cells.all()]

    table.get_by_role("button", name="requests", exact=True).focus()
    page.keyboard.press("Enter")
    assert column() == sorted(column(), reverse=True)
    page.keyboard.press("Enter")
    assert column() == sorted(column())


def test_charts_are_read_by_the_arrow_keys(browser: Browser, reports: dict[str, Path]) -> None:
    page = browser.page()
    page.goto(reports["run"].as_uri())
    page.locator("figure svg[role=group]").first.focus()
    page.keyboard.press("End")
    assert "all requests 100" in page.locator("figure .readout").first.inner_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_prints_on_a4(browser: Browser, reports: dict[str, Path], kind: str) -> None:
    page = browser.page(color_scheme="dark")
    page.goto(reports[kind].as_uri())
    data = page.pdf(prefer_css_page_size=True)
    assert data.startswith(b"%PDF")
    assert b"/MediaBox [0 0 594.95996 841.91998]" in data or b"595" in data
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": A4_MARGINS, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= A4_MARGINS
    wide = (
        "[...document.querySelectorAll('table, pre, figure')].filter((one) => one.scrollWidth > innerWidth)"
    )
    assert page.evaluate(f"{wide}.length") == 0
    assert page.locator("details:not([open])").count() == 0
    widths = "(one) => [one.viewBox.baseVal.width, one.clientWidth]"
    for drawn, shown in page.evaluate(f"[...document.querySelectorAll('svg[role=group]')].map({widths})"):
        assert shown == pytest.approx(drawn, rel=0.1)
