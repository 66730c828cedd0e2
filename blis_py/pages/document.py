"""A document as one HTML file: no external request, charts drawn by the modules embedded in it."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from blis_py.files.packages import extra
from blis_py.pages.parts import Document
from blis_py.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<name>[\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|const|class)\b)", re.MULTILINE)


def html(document: Document) -> str:
    """The document as HTML.

    Raises:
        InputError: Jinja2 is not installed.
    """
    charts = [chart for section in document.sections for chart in section.charts]
    data = {"charts": charts, "files": document.data}
    return (
        _environment()
        .get_template("report.html")
        .render(
            document=document,
            style=asset("style.css"),
            script=bundle("report.js"),
            data=embedded(data),
            version=__version__,
        )
    )


@cache
def _environment() -> Environment:
    with extra("report", "a report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    return Environment(
        loader=PackageLoader("blis_py.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def embedded(data: Any) -> str:
    """JSON that is safe within a script element."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def asset(name: str) -> str:
    """A file of `assets`."""
    return (files("blis_py.pages") / "assets" / name).read_text(encoding="utf-8")


@cache
def bundle(name: str) -> str:
    """A JavaScript module and all it imports as one script; their top-level names are distinct."""
    order: list[str] = []

    def add(each: str) -> None:
        for match in _IMPORT.finditer(asset(each)):
            if match["name"] not in order:
                add(match["name"])
        if each not in order:
            order.append(each)

    add(name)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", asset(each))) for each in order)
