"""A headless Chromium, the page and reports in it: run by `make test-ui`, left out of other runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(os.environ.get("BLIS_AXE") or ROOT / ".venv" / "axe" / "package" / "axe.min.js")
if not os.environ.get("BLIS_BROWSER_TESTS"):
    collect_ignore_glob = ["test_*.py"]

STATE = "() => document.body.dataset"


@dataclass
class Browser:
    """Pages of one browser, with whatever went wrong in them."""

    browser: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def page(self, **options: Any) -> Any:
        context = self.browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))
        return page


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="Playwright is not installed (make test-ui installs it)")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    found = Browser(chromium)
    yield found
    for context in chromium.contexts:
        context.close()
    assert not found.errors


@dataclass(frozen=True)
class Server:
    link: str
    process: subprocess.Popen[str]
    base: dict[str, Any]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """`blis ui` on 3,600 requests."""
    base = {
        "model": "llama-3.1-8b",
        "rate": 12,
        "num_requests": 3600,
        "output_tokens": 64,
        "num_instances": 2,
    }
    words = [word for name, value in base.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += ["--slo", "ttft.p99=400ms"]
    command = [sys.executable, "-m", "blis_py", "ui", "--no-browser", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield Server(process.stdout.readline().strip(), process, base)
        process.terminate()


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One report of each kind."""
    from blis_py.cli import main
    from blis_py.pages.opening import report_of

    folder = tmp_path_factory.mktemp("reports")
    os.environ["BLIS_CACHE"] = str(folder / "cache")
    runs = []
    for scheduler in ("fcfs", "priority-fcfs"):
        result = blis.run(
            workload="mixed-slo",
            num_requests=600,
            model="qwen3-14b",
            num_instances=2,
            scheduler=scheduler,
            slo="critical.ttft.p99=500ms",
        )
        result.save(folder / scheduler, plots=False)
        runs.append(folder / scheduler)
    small = {"model": "llama-3.1-8b", "slo": "ttft.p99=500ms", "workers": 1}
    blis.plan(rate=20, num_requests=80, instances="1:3", draws=2, **small).save(
        str(folder / "plan"), plots=False
    )
    blis.sweep(vary={"rate": [5, 10, 20]}, num_requests=60, **small).save(folder / "sweep", plots=False)
    calibration = folder / "calibration.json"
    assert main(["calibrate", str(runs[0]), "--results", str(runs[1]), "--report", str(calibration)]) == 0
    given = {"run": runs[:1], "comparison": runs, "plan": [folder / "plan"], "sweep": [folder / "sweep"]}
    found = {}
    for name, paths in {**given, "calibration": [calibration]}.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(report_of(paths), encoding="utf-8")
    return found


def serious(page: Any) -> list[str]:
    """What axe-core finds that is serious or critical."""
    if not AXE.exists():
        pytest.skip(f"axe-core is not there ({AXE}; make test-ui fetches it from npm)")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
