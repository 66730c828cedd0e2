"""Look-up of bundled profiles by any of their names."""

from __future__ import annotations

import re
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path

from blis_py.errors import InputError
from blis_py.files import bundled
from blis_py.files.yaml_files import load_mapping

_SUFFIXES = {"gpus": ".yaml", "models": ".json"}
_FLAGS = {"gpus": "--gpu", "models": "--model"}
_OWN_FILE = {"gpus": "a path to your own .yaml", "models": "--model-config with a HuggingFace config.json"}
_FAMILY, _MOST_PROPOSED = 5, 4
"""Letters that the names of a family have in common, and names that are proposed at most."""
_FIRST, _ALIKE = 3, 0.6
"""Letters of a first word that leads to its family, and similarity from which a spelling is proposed."""
_VARIANT = (
    r"(?i)^meta[-_](?=llama)|[-_](instruct|chat|base|hf|it|thinking[-_]2507|\d{4})(?=([-_](fp8|nvfp4))?$)"
)
"""Prefixes and suffixes of model names that change neither the architecture nor the storage of weights:
organisation, training variant, year and month. `Thinking` alone does: Kimi-K2-Thinking has 4 bits."""
_FORMAT = re.compile(
    r"(?i)(?:^|[-_.])(nvfp4|mxfp4|mxfp8|fp[468]|int[48]|bf16|fp16|[48][-_]?bits?|w\d+a\d+(?:kv\d+)?|awq|gptq|gguf"
    r"|q\d(?:_\w+)?|bnb|exl[23]|mlx|hqq|aqlm|marlin|autoround|quantized|dynamic|kv)(?=$|[-_.])"
)
"""Words of a name that say how its weights are stored."""


def find_profile(kind: str, name: str) -> Path:
    """The file of a GPU or model.

    Case, punctuation and the organisation before a slash do not matter. `names.yaml` beside the
    profiles lists further spellings. A model that is not listed may still be a variant of one that is
    (`-Instruct`, `-2507`).

    Raises:
        InputError: unknown name; lists the known ones.
    """
    stem = stem_of(kind, name)
    if stem is None:
        raise _unknown(kind, name)
    return _files(kind)[stem]


def stem_of(kind: str, name: str) -> str | None:
    """Stem of the profile with that name, or of a variant's base model; None if unknown."""
    short = name.rsplit("/", 1)[-1]
    while True:
        stem = listed_as(kind, short)
        if stem is not None or kind != "models":
            return stem
        shorter = re.sub(_VARIANT, "", short)
        if shorter == short:
            return None
        short = shorter


def listed_as(kind: str, name: str) -> str | None:
    """Stem of the profile with exactly that name, in any spelling."""
    short = squeeze(name.rsplit("/", 1)[-1])
    return _stems(kind).get(short) or _further_names(kind).get(short)


def known_names(kind: str) -> list[str]:
    """Bundled profiles by file name."""
    return list(_files(kind))


def published_name(kind: str, stem: str) -> str:
    """Origin of the profile: its first further spelling."""
    names: dict[str, list[str]] = load_mapping(_folder(kind) / "names.yaml")
    return (names.get(stem) or [stem])[0]


@cache
def _files(kind: str) -> dict[str, Path]:
    """File name -> file, in order."""
    files = sorted(_folder(kind).glob("*" + _SUFFIXES[kind]), key=lambda path: path.stem)
    return {path.stem: path for path in files if path.stem != "names"}


@cache
def _stems(kind: str) -> dict[str, str]:
    """Squeezed file name -> file name."""
    return {squeeze(stem): stem for stem in _files(kind)}


@cache
def _further_names(kind: str) -> dict[str, str]:
    """Squeezed spelling, without the organisation -> file name."""
    names: dict[str, list[str]] = load_mapping(_folder(kind) / "names.yaml")
    return {squeeze(name.rsplit("/", 1)[-1]): stem for stem, all_of in names.items() for name in all_of}


def _folder(kind: str) -> Path:
    return bundled.root("profiles") / kind


def _unknown(kind: str, name: str) -> InputError:
    """Refusal that names the nearest profiles, and the format where the name states one."""
    short, nearest = name.rsplit("/", 1)[-1], nearest_names(kind, name)
    stored = [found[1] for found in _FORMAT.finditer(short)] if kind == "models" else []
    if not nearest:
        fix = f"use {_OWN_FILE[kind]}, or one that blis {kind} lists"
    else:
        of = "one is" if len(nearest) == 1 else "ones are"
        fix = f"use {_OWN_FILE[kind]} of {short}; the nearest bundled {of} {', '.join(nearest)}"
    if nearest and stored:
        fix += f", which may store {'its' if len(nearest) == 1 else 'their'} weights otherwise than "
        fix += "-".join(stored)
    return InputError(f"unknown {kind[:-1]}", key=_FLAGS[kind], value=name, fix=fix)


def nearest_names(kind: str, name: str) -> list[str]:
    """Profiles for the longest part of the name, up to a dash, that a profile has or begins with, the most
    alike first; those that are spelled alike where no part leads to one."""
    short = name.rsplit("/", 1)[-1]
    ends = [len(short), *(dash.start() for dash in reversed(list(re.finditer("[-_ ]", short))))]
    for end in ends:
        stem = stem_of(kind, short[:end])
        if stem in known_names(kind):
            return [str(stem)]
        begun = squeeze(short[:end])
        spellings = {**_further_names(kind), **_stems(kind)}
        among = [spelling for spelling in spellings if spelling.startswith(begun)]
        if not among and end == len(short):
            among = [spelling for spelling in spellings if begun in spelling]
        if among and len(begun) >= _FAMILY:
            among.sort(key=lambda spelling: -SequenceMatcher(None, squeeze(short), spelling).ratio())
            return list(dict.fromkeys(spellings[spelling] for spelling in among))[:_MOST_PROPOSED]
    spellings = {**_further_names(kind), **_stems(kind)}
    first = re.split("[-_ .]", short)[0].lower()
    alike = [each for each in spellings if len(first) >= _FIRST and each.startswith(first)]
    alike += get_close_matches(squeeze(short), spellings, n=2 * _MOST_PROPOSED, cutoff=_ALIKE)
    return list(dict.fromkeys(spellings[spelling] for spelling in alike))[:_MOST_PROPOSED]


def squeeze(name: str) -> str:
    """A name without case and punctuation."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
