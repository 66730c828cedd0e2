"""Server commands among the words of a shell command, behind whatever starts them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from blis_py.launch.images import NO_IMAGE, ContainerImage, image_of

_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "sglang_router.launch_server": "sglang",
    "tensorrt_llm.commands.serve": "trtllm",
    "dynamo.vllm": "vllm",
    "dynamo.sglang": "sglang",
    "dynamo.sglang.worker": "sglang",
    "dynamo.sglang.decode_worker": "sglang",
    "dynamo.trtllm": "trtllm",
}
_PROGRAMS = {("vllm", "serve"): "vllm", ("sglang", "serve"): "sglang", ("trtllm-serve", ""): "trtllm"}
_NO_START = (
    *(
        "echo",
        "printf",
        "pkill",
        "pgrep",
        "grep",
        "which",
        "pip",
        "pip3",
        "cat",
        "tee",
        "ps",
        "killall",
        "kill",
    ),
    *(
        "ls",
        "rm",
        "cp",
        "mv",
        "sed",
        "awk",
        "command",
        "type",
        "export",
        "conda",
        "apt-get",
        "git",
        "curl",
        "wget",
    ),
)
_CONTAINERS = ("docker", "podman", "nerdctl")
_OF_CLUSTERS = ("apptainer", "singularity")
_IMAGE_FILE = re.compile(r"docker://.+|.+\.(sif|sqsh)")
_OF_RELEASE = re.compile(r"(vllm|sglang)(?:\[[\w,]*\])?(?:==|@)v?(\d[\w.]*)")
"""A program of a release, as `uvx` takes it."""
_CONTAINER_SWITCHES = re.compile(
    r"-[dit]+|--(rm|privileged|init|detach|interactive|tty|read-only|no-healthcheck)"
)
_RELEASES = re.compile(r"(vllm|sglang|tensorrt[_-]llm)(?:\[[\w,]*\])?==v?(\d[\w.]*)")
_OF_PACKAGES = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm", "tensorrt-llm": "trtllm"}


class ServerCommand(NamedTuple):
    """The engine, what follows its command, and what stands before it of environment and image."""

    engine: str
    words: list[str]
    environment: dict[str, str]
    image: ContainerImage


class ContainerCommand(NamedTuple):
    """The image, the environment and the words that a container is started with."""

    image: ContainerImage
    environment: dict[str, str]
    words: list[str]


def server_command(words: Sequence[str], image: ContainerImage = NO_IMAGE) -> ServerCommand | None:
    """The server that a command starts; None for any other.

    Args:
        image: container that it runs in.
    """
    words = list(words)
    if words and PurePosixPath(words[0]).name in _NO_START:
        return None
    for at, word in enumerate(words):
        if match := _OF_RELEASE.fullmatch(word):
            words[at], image = match[1], ContainerImage(word, match[1], match[2])
    found = _server_at(words)
    if found is not None:
        at, engine, rest = found
        environment, around = surroundings(words[:at])
        return ServerCommand(engine, list(rest), environment, around or image)
    if "vllm-openai" in image.name and (not words or words[0].startswith("-")):
        return ServerCommand("vllm", words, {}, image)  # the image's own command
    return None


def surroundings(words: Sequence[str]) -> tuple[dict[str, str], ContainerImage | None]:
    """The environment and the container that the words before a command give it."""
    image = None
    for at, word in enumerate(words):
        if word.startswith("--container-image"):
            image = image_of(word.partition("=")[2] or next(iter(words[at + 1 : at + 2]), ""))
        elif _IMAGE_FILE.fullmatch(word):
            image = image_of(word)
    named = [word.partition("=") for word in words if re.match(r"[A-Za-z_]\w*=", word)]
    return {name: text for name, _, text in named}, image


def _server_at(words: Sequence[str]) -> tuple[int, str, Sequence[str]] | None:
    """Place, engine and arguments of the server command."""
    for at, word in enumerate(words):
        name, following = PurePosixPath(word).name, words[at + 1] if at + 1 < len(words) else ""
        if word == "-m" and following in _MODULES:
            return at, _MODULES[following], words[at + 2 :]
        for (program, verb), engine in _PROGRAMS.items():
            if name == program and verb in ("", following):
                rest = words[at + 1 + bool(verb) :]
                return at, engine, rest[1:] if list(rest[:1]) in (["serve"], ["grpc"]) else rest
    return None


def container_command(words: Sequence[str]) -> ContainerCommand | None:
    """The container that `docker run OPTIONS IMAGE WORDS` starts; None for other commands."""
    for at, word in enumerate(words):
        if PurePosixPath(word).name in _OF_CLUSTERS and list(words[at + 1 : at + 2]) == ["run"]:
            place = next((n for n, each in enumerate(words) if n > at and _IMAGE_FILE.fullmatch(each)), 0)
            return ContainerCommand(image_of(words[place]), {}, list(words[place + 1 :])) if place else None
        if PurePosixPath(word).name in _CONTAINERS and list(words[at + 1 : at + 2]) == ["run"]:
            return _container(list(words[at + 2 :]))
    return None


def _container(words: list[str]) -> ContainerCommand | None:
    environment: dict[str, str] = {}
    entrypoint: list[str] = []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        name, equals, text = option.partition("=")
        if _CONTAINER_SWITCHES.fullmatch(option):
            continue
        if not equals:
            text = words.pop(0) if words else ""
        if name in ("-e", "--env"):
            variable, given, value = text.partition("=")
            environment |= {variable: value} if given else {}
        elif name == "--entrypoint":
            entrypoint = text.split()
    if not words:
        return None
    return ContainerCommand(image_of(words[0]), environment, [*entrypoint, *words[1:]])


def installed_release(words: Sequence[str]) -> tuple[str, str] | None:
    """Engine and release that `pip install` installs."""
    if "install" not in words:
        return None
    for word in words:
        match = _RELEASES.match(word.lower())
        if match is not None:
            return _OF_PACKAGES[match[1]], match[2]
    return None
