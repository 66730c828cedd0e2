"""Engine and release of a container image, by its name and tag."""

from __future__ import annotations

import re
from typing import NamedTuple

_RELEASE = re.compile(r"(?:^|[-_v])(\d+\.\d+(?:\.\d+)?(?:rc\d+)?(?:\.post\d+)?)(?=$|[-_+.])")
_OF_IMAGES = (
    ("tensorrtllm-runtime", "trtllm", False),
    ("tensorrt-llm", "trtllm", True),
    ("trtllm", "trtllm", False),
    ("vllm-runtime", "vllm", False),
    ("sglang-runtime", "sglang", False),
    ("llm-d", "vllm", False),
    ("nvidia/vllm", "vllm", False),
    ("sglang", "sglang", True),
    ("sgl-dev", "sglang", True),
    ("vllm", "vllm", True),
)
"""Part of the name, engine, and whether tags are releases of that engine; the first that fits counts."""


class ContainerImage(NamedTuple):
    """A container image.

    Attributes:
        engine: `vllm`, `sglang` or `trtllm`; empty if it is of none of them.
        release: of the engine; empty if the tag does not say it.
    """

    name: str
    engine: str = ""
    release: str = ""


NO_IMAGE = ContainerImage("")


def image_of(name: str) -> ContainerImage:
    """The engine and the release of an image, as far as its name says."""
    plain = name.strip().replace("#", "/").partition("@")[0].lower()
    plain = re.sub(r"^[a-z]+://", "", plain)
    path, colon, tag = plain.rpartition(":")
    if not colon or "/" in tag:
        path, tag = plain, plain.rpartition("/")[2] if plain.endswith((".sif", ".sqsh")) else ""
    for part, engine, tagged in _OF_IMAGES:
        if part in path:
            release = _RELEASE.search(tag) if tagged else None
            return ContainerImage(name, engine, release[1] if release else "")
    return ContainerImage(name)
