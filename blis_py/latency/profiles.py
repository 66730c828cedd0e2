"""Finding a bundled profile by any of the names people call it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from blis_py import data
from blis_py.errors import InputError

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
    stems = _spellings(kind)
    stem = stems.get(_squeeze(name)) or stems.get(_squeeze(name.rsplit("/", 1)[-1]))
    if stem is None:
        fix = f"use one of {', '.join(known_names(kind))}, or {_OWN_FILE[kind]}"
        raise InputError(f"unknown {kind[:-1]}", key=_FLAGS[kind], value=name, fix=fix)
    return _folder(kind) / (stem + _SUFFIXES[kind])


def known_names(kind: str) -> list[str]:
    """The bundled profiles, by file name."""
    return sorted(path.stem for path in _folder(kind).glob("*" + _SUFFIXES[kind]) if path.stem != "names")


@cache
def _spellings(kind: str) -> dict[str, str]:
    """Squeezed spelling -> file stem."""
    stems = {_squeeze(stem): stem for stem in known_names(kind)}
    for stem, others in _further_names(kind).items():
        for other in others:
            stems[_squeeze(other)] = stem
            stems[_squeeze(other.rsplit("/", 1)[-1])] = stem
    return stems


def _further_names(kind: str) -> dict[str, list[str]]:
    import yaml

    names: dict[str, list[str]] = yaml.safe_load((_folder(kind) / "names.yaml").read_text(encoding="utf-8"))
    return names


def _folder(kind: str) -> Path:
    return data.root("profiles") / kind


def _squeeze(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
