"""Checkpoints in formats that are not bundled, known by their names.

Each is a bundled model in 16 bits with the `quantization_config` that its publisher's checkpoints of such a
name have (`profiles/models/formats.yaml`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from blis_py.files import bundled
from blis_py.files.json_files import load_object
from blis_py.files.profiles import find_profile, published_name, stem_of
from blis_py.files.yaml_files import load_mapping
from blis_py.models.hf_config import ConfigFile

_QUANTISED = ("quantization_config", "compression_config")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class PublishedFormat(NamedTuple):
    """A format that publishers put on models of others.

    Attributes:
        organisations: publishers.
        ending: last words of the names of their checkpoints.
        own: whether it is put on models of these publishers alone.
        dense: whether it is known of dense models alone.
        config: `quantization_config` of these checkpoints.
    """

    organisations: tuple[str, ...]
    ending: str
    own: bool
    dense: bool
    config: dict[str, Any]


class PublishedCheckpoint(NamedTuple):
    """The bundled model that a checkpoint is of, and its `quantization_config`."""

    stem: str
    publisher: str
    section: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The HuggingFace config of the checkpoint."""
        return {**load_object(find_profile("models", self.stem)), "quantization_config": self.section}


@cache
def published_checkpoint(name: str) -> PublishedCheckpoint | None:
    """The checkpoint with this name; None if it is bundled, or its format not known.

    Without an organisation, or in a folder, it is the bundled one, else the checkpoint of the model's own
    publisher, or else of the only one with such a name.
    """
    path, _, short = name.rpartition("/")
    bundled_stem = stem_of("models", name)
    if bundled_stem is not None and (_is_local(path) or path.lower() == _own_publisher(bundled_stem)):
        return None
    found = list(_candidates(short))
    publishers = [path.lower()]
    if _is_local(path):
        publishers = [_own_publisher(stem) for stem, _ in found]
    for publisher in publishers:
        for stem, each in found:
            if publisher in map(str.lower, each.organisations):
                return PublishedCheckpoint(stem, publisher, each.config)
    if len(found) != 1 or not _is_local(path):
        return None
    ((stem, only),) = found
    return PublishedCheckpoint(stem, only.organisations[0], only.config)


def bundled_as(name: str) -> str | None:
    """Stem of the bundled model with this name; None of a checkpoint in another format, and of others."""
    return None if published_checkpoint(name) else stem_of("models", name)


def is_known(name: str) -> bool:
    """Whether a model's name says its configuration."""
    return stem_of("models", name) is not None or published_checkpoint(name) is not None


def publishers_of(name: str) -> list[str]:
    """Full names that a name without its publisher may stand for."""
    short = name.rpartition("/")[2]
    return [f"{each.organisations[0]}/{short}" for _, each in _candidates(short)]


def _is_local(path: str) -> bool:
    """Whether what stands before a name is no organisation of the hub: nothing, or folders."""
    return not path or "/" in path or path.startswith((".", "~"))


def _own_publisher(stem: str) -> str:
    return published_name("models", stem).partition("/")[0].lower()


def _candidates(short: str) -> Iterator[tuple[str, PublishedFormat]]:
    """Models and formats that a name may stand for, the longest ending first."""
    for each in sorted(_formats(), key=lambda form: -len(form.ending)):
        before = short[: -len(each.ending)]
        if not short.lower().endswith(each.ending.lower()) or before[-1:] not in ("-", "_", "."):
            continue
        stem = stem_of("models", before[:-1])
        if stem is None or not _in_16_bits(stem, dense=each.dense):
            continue
        if not each.own or _own_publisher(stem) in map(str.lower, each.organisations):
            yield stem, each


def _in_16_bits(stem: str, *, dense: bool) -> bool:
    config = ConfigFile.read(find_profile("models", stem))
    sparse = any(config.values.get(key) for key in _EXPERTS)
    return not any(map(config.has, _QUANTISED)) and not (dense and sparse)


@cache
def _formats() -> tuple[PublishedFormat, ...]:
    data = load_mapping(bundled.root("profiles") / "models" / "formats.yaml")
    return tuple(
        PublishedFormat(
            tuple(each["organisations"]),
            ending,
            each.get("own", False),
            each.get("dense", False),
            each["config"],
        )
        for each in data["formats"]
        for ending in each["endings"]
    )
