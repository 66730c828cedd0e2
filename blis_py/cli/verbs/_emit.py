"""`--emit FORM DIR` of a plan: manifests of its configuration, and the proof of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blis_py.api import run
from blis_py.cli.flags.flag import OF_SERVERS, Flags
from blis_py.errors import InputError
from blis_py.files.paths import expanded
from blis_py.outputs.places import writable
from blis_py.outputs.staging import Outputs, write_text
from blis_py.planning.emit import EMITTED
from blis_py.planning.emit.proof import write_proof
from blis_py.planning.result import PlanResult

_WHERE = ("--emit", "--out", "--force", "--no-plots", "--format", "--workers", "--dask", "--no-cache")
"""Flags that say how and where, and not what."""


def emitted_to(flags: Flags) -> dict[str, str]:
    """Forms by folder, checked before any work.

    Raises:
        InputError: an unknown form, no folder, or one that cannot be written.
    """
    words = flags["--emit"]
    found: dict[str, str] = {}
    for form, folder in zip(words[::2], [*words[1::2], ""][: len(words[::2])], strict=True):
        if form not in EMITTED:
            raise InputError("unknown form", key="--emit", value=form, fix=f"use {', '.join(EMITTED)}")
        if not folder:
            raise InputError("needs a folder", key="--emit", value=form, fix=f"write --emit {form} DIR")
        if folder in found:
            raise InputError("is given twice", key="--emit", value=folder, fix="give each form its folder")
        writable(folder, force="--force" in flags)
        found[folder] = form
    return found


def emit(plan: PlanResult, folders: Mapping[str, str], flags: Flags) -> None:
    """Write the manifests and the proof into each folder.

    Raises:
        InputError: the form cannot hold the configuration.
    """
    forms = {folder: EMITTED[form](plan.best) for folder, form in folders.items()}
    result = run(plan.config)
    with Outputs() as outputs:
        for name, texts in forms.items():
            folder = outputs.folder(expanded(name), force="--force" in flags)
            for file, text in texts.items():
                write_text(folder / file, text)
            (folder / "proof").mkdir()
            write_proof(folder / "proof", plan, result, ["plan", *_words(flags)])


def _words(flags: Flags) -> Iterator[str]:
    """The command line without the flags that say how and where."""
    for name, value in flags.items():
        if name in _WHERE:
            continue
        if name == OF_SERVERS:
            for flag, text in value:
                yield from (flag, text) if text else (flag,)
        elif value is True:
            yield name
        else:
            for each in value if isinstance(value, list) else [value]:
                yield from (name, str(each))
