"""A server as a script or a manifest starts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from blis_py.launch.images import NO_IMAGE, ContainerImage


def _no_file(path: str) -> str | None:
    return None


@dataclass
class LaunchedServer:
    """A server, or several alike ones.

    Attributes:
        engine: `vllm`, `sglang` or `trtllm`.
        where: its place in the file, for messages.
        words: its flags and the words among them.
        environment: variables that it is started with.
        file: text of a file that its flags name; None if it is not there.
        count: number of alike servers.
        role: `prefill` or `decode`; empty if its flags say it, or it does both.
        gpu: the GPU, if it is named.
        gpus: GPUs that it is given; 0 = not said.
    """

    engine: str
    where: str
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    image: ContainerImage = NO_IMAGE
    file: Callable[[str], str | None] = _no_file
    count: int = 1
    role: str = ""
    gpu: str = ""
    gpus: int = 0
