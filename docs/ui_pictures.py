"""Makes the screenshots of the page and of a report, in a headless Chromium: `make docs-ui`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

import blis_py as blis
from blis_py.pages.opening import report_of

FOLDER = Path(__file__).resolve().parent / "img" / "ui"
_COLOURS = 128
_RUN = {"workload": "mixed-slo", "num_requests": 4000, "model": "qwen3-14b", "num_instances": 4}
_CHAT = {"workload": "chat", "num_requests": 8000, "rate": 30, "model": "llama-3.1-8b", "num_instances": 3}
_CHAT_SLO = ["ttft.p99=300ms", "tpot.p90=12ms"]
_SLO = ["critical.ttft.p99=500ms", "tpot.p90=50ms"]


def main() -> None:
    """Write every picture."""
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page_pictures(browser)
        report_pictures(browser)
        browser.close()


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process with the block."""
    try:
        yield
    finally:
        process.terminate()


@contextmanager
def opened(browser: Any, run: dict[str, Any], slo: list[str]) -> Iterator[Any]:
    """The page of a run, after its first answer."""
    flags = [word for key, value in run.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "blis_py", "ui", "--no-browser", *flags, "--slo", *slo]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ending(process):
        assert process.stdout is not None
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(180_000)
        page.goto(process.stdout.readline().strip())
        page.wait_for_selector("body[data-drawn=whole]")
        page.wait_for_selector("#ledger .bar")
        page.wait_for_timeout(4000)
        yield page
        page.close()


def page_pictures(browser: Any) -> None:
    """The page: as opened, and after a plan; and while a slider is moved beside a pinned configuration."""
    with opened(browser, _RUN, _SLO) as page:
        keep(page.screenshot(), "page")
        page.get_by_role("button", name="Find the cheapest that holds").click()
        page.wait_for_selector("#found button")
        page.wait_for_function("() => document.querySelectorAll('#points .choice').length > 4")
        page.locator("#x").select_option("dollars")
        page.evaluate("document.querySelector('#t-points').scrollIntoView()")
        keep(page.screenshot(), "plan")
    with opened(browser, _CHAT, _CHAT_SLO) as page:
        page.get_by_role("button", name="Pin", exact=True).click()
        page.get_by_label("Rate", exact=True).focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.wait_for_function("() => document.body.dataset.drawn === 'sample'")
        keep(page.screenshot(), "sample")
        page.wait_for_selector("#compared table")
        page.locator("#pinned-section").scroll_into_view_if_needed()
        keep(page.screenshot(), "pinned")


def report_pictures(browser: Any) -> None:
    """A report in light colours, and on a phone in dark ones."""
    with TemporaryDirectory() as folder:
        blis.run(**_RUN, scheduler="priority-fcfs", slo=_SLO).save(f"{folder}/run", plots=False)
        file = Path(folder) / "report.html"
        file.write_text(report_of([f"{folder}/run"]), encoding="utf-8")
        looks = {"report": ("light", 1180, 900), "report-phone": ("dark", 390, 844)}
        for name, (scheme, width, height) in looks.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(file.as_uri())
            keep(page.screenshot(), name)
            page.close()


def keep(data: bytes, name: str) -> None:
    """Write a screenshot in few colours, the rare ones of thin lines among them."""
    method = Image.Quantize.MAXCOVERAGE
    picture = Image.open(BytesIO(data)).convert("RGB").quantize(_COLOURS, method, dither=Image.Dither.NONE)
    picture.save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
