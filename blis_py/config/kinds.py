"""Descriptions of sections by kind of requests; see `blis_py.config.models.KIND_SECTIONS`."""

from collections.abc import Mapping
from typing import NamedTuple


class KindSection(NamedTuple):
    """A section of settings that only one kind of requests has a use for."""

    title: str
    """Heading of its flags."""
    files: tuple[str, ...]
    """Settings that name files."""
    description: str
    """The one among them that names a description of all requests, as being of this kind."""
    also_called: Mapping[str, str]
    """Short names of its settings, and their flags without dashes."""
