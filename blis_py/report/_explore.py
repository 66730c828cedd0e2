"""The interactive page of a result, in a process of its own: `result.explore()`."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml

_HEIGHT = 820


class Exploration:
    """A running page; it shows itself in a notebook cell, and ends with the process or by `close`.

    Args:
        settings: the configuration as plain data.
        open_browser: open the link in a browser.

    Raises:
        InputError: the page cannot be served.
    """

    def __init__(self, settings: Mapping[str, Any], *, open_browser: bool = False) -> None:
        self._folder = TemporaryDirectory(prefix="blis-explore-")
        file = Path(self._folder.name) / "config.yaml"
        file.write_text(dump_yaml(dict(settings)), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "blis_py",
            "ui",
            "--config",
            str(file),
            "--end-with",
            str(os.getpid()),
        ]
        if not open_browser:
            command.append("--no-browser")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.close)
        assert self._process.stdout is not None
        self.link = self._process.stdout.readline().strip()
        """Address of the page, with its token."""
        if not self.link:
            _, output = self._process.communicate()
            raise InputError(f"the page does not start: {output.strip().removeprefix('error: ')}")

    def close(self) -> None:
        """End the page."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(10)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._folder.cleanup()
        atexit.unregister(self.close)

    def __repr__(self) -> str:
        return f"Exploration({self.link})"

    def _repr_html_(self) -> str:
        link = escape(self.link, quote=True)
        return (
            f'<iframe src="{link}" width="100%" height="{_HEIGHT}" title="blis-py" style="border:0"></iframe>'
        )
