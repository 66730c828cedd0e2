"""Outputs of `explain` and `compare`: the figures as JSON, and one picture as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_py.cli.flags.flag import Flags
from blis_py.cli.flags.out import draws

if TYPE_CHECKING:
    from blis_py.figures.style import Picture


def write_out(flags: Flags, name: str, text: str, draw: Callable[[], Picture]) -> None:
    """The folder of --out, as a whole."""
    from blis_py.outputs.staging import Outputs

    with Outputs() as outputs:
        folder = outputs.folder(flags["--out"], force="--force" in flags)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
        if draws(flags):
            picture = draw()
            for kind in ("png", "svg"):
                picture.savefig(folder / f"{name}.{kind}")
