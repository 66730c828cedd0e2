"""`--out` and `--force`: the folder that a command writes."""

from __future__ import annotations

import sys

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.errors import InputError
from blis_py.files.packages import installed

FORCE = Flag("--force", bool, "", "Replace the result that is in the folder of --out.")
NO_PLOTS = "--no-plots"
_OF_THE_FOLDER = (FORCE.name, NO_PLOTS, "--record-itl")
"""Flags that mean nothing without a folder."""
_FIX = "add --out DIR"


def out_folder(contents: str, *, needed: bool = False) -> Flag:
    """`--out` of a command that writes a folder with these contents."""
    return Flag("--out", str, "", f"Folder for {contents}.{' Needed.' if needed else ''}", metavar="DIR")


def required_out(flags: Flags) -> str:
    """The folder of a command that cannot do without one.

    Raises:
        InputError: it is missing.
    """
    if "--out" not in flags:
        raise InputError("needs a folder to write to", key="--out", fix=_FIX)
    folder: str = flags["--out"]
    return folder


def check_out(flags: Flags, *, others: bool = False) -> None:
    """Refuse a folder that could not be written, before any work.

    Args:
        others: whether there are other folders that are written.

    Raises:
        InputError: the folder cannot be written, or a flag needs a folder to write to.
    """
    if "--out" in flags:
        from blis_py.outputs.places import writable

        writable(flags["--out"], force=FORCE.name in flags)
        return
    for name in _OF_THE_FOLDER:
        if name in flags and not (others and name == FORCE.name):
            raise InputError("needs a folder to write to", key=name, fix=_FIX)


def draws(flags: Flags) -> bool:
    """Whether the folder gets pictures; a note where they are left out for want of a package."""
    if NO_PLOTS in flags:
        return False
    drawn = installed("matplotlib", "pandas")
    if not drawn:
        print(
            f"note: no pictures in {flags['--out']}: they need pip install 'blis-py[plots]'", file=sys.stderr
        )
    return drawn
