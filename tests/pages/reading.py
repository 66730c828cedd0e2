"""An HTML report as its parts: embedded data, cells with numbers, text, everything that would be fetched."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

VOID = ("meta", "link", "br", "input", "img")


class Page(HTMLParser):
    """What a report holds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.cells: list[tuple[str, float, str]] = []
        """Source, value and text of each number."""
        self.links: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self._cell: tuple[str, float] | None = None
        self._words = ""
        self.feed(html)
        assert not self.open, f"unclosed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value for name in ("src", "href", "srcset", "action") if (value := found.get(name))]
        if found.get("data-value") and found.get("data-source"):
            self._cell, self._words = (str(found["data-source"]), float(str(found["data-value"]))), ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("td", "dd") and self._cell is not None:
            self.cells.append((*self._cell, self._words.strip()))
            self._cell = None

    def handle_data(self, data: str) -> None:
        self._words += data
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        found = re.search(r'id="data">(.*?)</script>', self.html, re.DOTALL)
        assert found is not None
        return json.loads(found[1])


def at(values: Any, path: str) -> Any:
    """The value at a path such as `instances[0].ttft_ms.p99`."""
    for name in re.findall(r"[^.\[\]]+", path):
        values = values[int(name)] if isinstance(values, list) else values[name]
    return values
