"""Outputs of `explain` and `compare`: the figures as JSON, and one picture as PNG and SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_py.cli.flags.flag import Flags
from blis_py.errors import InputError

if TYPE_CHECKING:
    from blis_py.figures.style import Picture


def check_out(flags: Flags) -> None:
    """Refuse outputs that could not be written, before any work.

    Raises:
        InputError: a flag needs a folder to write to, or the folder cannot be written.
    """
    if "--out" in flags:
        from blis_py.outputs.places import writable

        writable(flags["--out"], force=flags.get("--force", False))
    elif "--force" in flags:
        raise InputError("needs a folder to write to", key="--force", fix="add --out DIR")


def write_out(flags: Flags, name: str, text: str, picture: Picture) -> None:
    """The folder of --out, as a whole."""
    from blis_py.outputs.staging import Outputs

    with Outputs() as outputs:
        folder = outputs.folder(flags["--out"], force=flags.get("--force", False))
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
        for kind in ("png", "svg"):
            picture.savefig(folder / f"{name}.{kind}")
