"""Finding a bundled profile by any of the names people call it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.yaml_files import load_mapping

_SUFFIXES = {"gpus": ".yaml", "models": ".json"}
_FLAGS = {"gpus": "--gpu", "models": "--model"}
_OWN_FILE = {"gpus": "a path to your own .yaml", "models": "--model-config with a HuggingFace config.json"}


def find_profile(kind: str, name: str) -> Path:
    """The file of a GPU or model.

    Case, punctuation and the organisation before a slash do not matter. `names.yaml` beside the
    profiles lists further spellings.

    Raises:
        InputError: nothing of that name; lists what there is.
    """
    short = squeeze(name.rsplit("/", 1)[-1])
    stem = _stems(kind).get(short) or _further_names(kind).get(short)
    if stem is None:
        fix = f"use one of {', '.join(known_names(kind))}, or {_OWN_FILE[kind]}"
        raise InputError(f"unknown {kind[:-1]}", key=_FLAGS[kind], value=name, fix=fix)
    return _folder(kind) / (stem + _SUFFIXES[kind])


def known_names(kind: str) -> list[str]:
    """The bundled profiles, by file name."""
    return sorted(path.stem for path in _folder(kind).glob("*" + _SUFFIXES[kind]) if path.stem != "names")


@cache
def _stems(kind: str) -> dict[str, str]:
    """Squeezed file name -> file name."""
    return {squeeze(stem): stem for stem in known_names(kind)}


@cache
def _further_names(kind: str) -> dict[str, str]:
    """Squeezed spelling, without the organisation -> file name."""
    names: dict[str, list[str]] = load_mapping(_folder(kind) / "names.yaml")
    return {squeeze(name.rsplit("/", 1)[-1]): stem for stem, all_of in names.items() for name in all_of}


def _folder(kind: str) -> Path:
    return bundled.root("profiles") / kind


def squeeze(name: str) -> str:
    """A name without case and punctuation."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
