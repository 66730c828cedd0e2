"""`result.explore()`: the page in a notebook, in a process that ends with it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

import blis_py as blis

pytest.importorskip("fastapi", reason="the extra ui is not installed")


def test_a_result_is_explored_in_a_cell_until_it_is_closed() -> None:
    page = blis.run(model="llama-3.1-8b", rate=5, num_requests=5).explore()
    try:
        assert page.link in page._repr_html_().replace("&amp;", "&")
        assert b"blis-py" in urlopen(page.link, timeout=600).read()
    finally:
        page.close()
    with pytest.raises(OSError, match=r"refused|reset"):
        urlopen(page.link, timeout=600)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state of processes in /proc")
def test_a_page_ends_with_a_process_that_is_killed() -> None:
    program = (
        "import blis_py, os; r = blis_py.run(model='llama-3.1-8b', rate=5, num_requests=3)\n"
        "print(r.explore()._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    found = re.search(r"\d+", done.stdout)
    assert found, done.stderr
    place = Path("/proc") / found[0]
    until_s = time.monotonic() + 600
    while place.exists() and "Z" not in (place / "stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < until_s
        time.sleep(0.05)
