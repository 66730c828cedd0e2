"""The tests that need a GPU: a row for each test that does not pass, and one for all of them.

python benchmarks/gpu/gpu_tests.py tests/gpu/test_ops_gpu.py... [--processes N] [--out DIR]

Where it is stopped, what had been found by then is reported. `--device cpu` shows that the tests are found;
they are skipped.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rows import Rows
from timing import begin, common_options

_LONGEST = 2000


class Teller:
    """A pytest plugin that writes rows; with several processes it sits in the one that leads them."""

    def __init__(self, rows: Rows, name: str) -> None:
        self._rows, self._name = rows, name
        self._counts: Counter[str] = Counter()
        self._began_s = time.monotonic()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._counts[report.outcome] += 1
        if report.outcome == "failed":
            fields = {"outcome": "failed", "why": report.longreprtext[-_LONGEST:]}
            self._rows.add(report.nodeid, fields)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        seconds = time.monotonic() - self._began_s
        self._rows.add(self._name, {**self._counts, "exit_status": int(exitstatus), "seconds": seconds})


def main() -> int:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("file", nargs="+", type=Path)
    parser.add_argument("--processes", type=int, default=6, help="of pytest-xdist, where that is installed")
    options = parser.parse_args()
    rows = begin(options, "gpu_tests")
    several = options.processes > 1 and find_spec("xdist") is not None
    arguments = [*map(str, options.file), "-q", "-rf", "--tb=short", "-p", "no:cacheprovider"]
    arguments += ["-n", str(options.processes)] if several else []
    name = " ".join(path.name for path in options.file)
    return int(pytest.main(arguments, plugins=[Teller(rows, name)]))


if __name__ == "__main__":
    sys.exit(main())
