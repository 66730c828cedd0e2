"""The simulator's inner loop as native code: the very same modules, translated by mypyc.

The commands that simulate (`blis run`, `blis replay`) use it, and print the same bytes in half to three
quarters of the time. It is made by `make run`, for a wheel (`hatch_build.py`), or where a C compiler, mypy
and setuptools are, by `python -m blis_py.native`. It is used only while it is a translation of the present
sources: after a change, and without it, the modules are interpreted as ever. So they are, with a word,
where a file of it is missing or not as it was made: a damaged library would take the process down. So they
are where `BLIS_INTERPRETED` is set in the environment; `BLIS_NATIVE` names another folder for the
translation.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

EVERY_STEP = (
    "core.features",
    "core.request",
    "core.counters",
    "core.blocks",
    "core.decoding",
    "core.kv",
    "core.emission",
    "core.kv_source",
    "core.kv_loads",
    "core.hash_kv",
    "core.grouped_kv",
    "core.step",
    "core._fifo",
    "core.deadlines",
    "core.lifecycle",
    "core.state_chunks",
    "core.batch_former",
    "core.prefill_only",
    "core.step_scheduler",
    "core.step_progress",
    "core.scheduler",
    "core.rank_features",
    "core.rank_choice",
    "core._rank_views",
    "core.ranks",
    "metrics.step_ends",
    "metrics.steps_table",
    "cluster.recording.visit_columns",
    "cluster.recording.client_times",
    "cluster.recording.recorder",
    "cluster.recording.instance_log",
    "cluster.time.lookahead",
    "cluster.time.events",
    "cluster.time.wakeups",
    "cluster.instances.dirty_set",
    "cluster.instances.instance",
    "cluster.instances.decode_horizon",
    "cluster.instances.autoregressive",
    "cluster.instances.overlapped",
    "latency.step_run",
    "latency.decode_line",
    "latency.line_model",
    "latency.rank_prices",
    "latency.trained_physics",
)
"""Modules that most simulated steps pass through. Other queues derive from built-in types, and stay
interpreted."""
SOME = (
    "core.diffusion_features",
    "core.diffusion_request",
    "core.radix_node",
    "core.radix",
    "core.radix_kv",
    "core.leaf_tree",
    "core.leaf_kv",
    "core.diffusion",
    "cluster.recording.diffusion_recorder",
    "cluster.routing.prefixes",
    "cluster.routing.signals",
    "cluster.routing.affinity",
    "cluster.routing.rng",
    "cluster.routing.least_load",
    "cluster.routing.router",
    "cluster.routing.scorers",
    "cluster.routing._weighted",
    "cluster.ingress.admission",
    "cluster.ingress.source",
    "cluster.ingress.gateway",
    "cluster.ingress.admission_gateway",
    "cluster.routing.dispatcher",
    "cluster.routing.pair_dispatcher",
    "cluster.instances.network",
    "cluster.instances.pairs",
    "cluster.instances.handoff",
    "cluster.instances.handoffs",
    "cluster.routing.deciders",
    "cluster.instances.diffusion",
)
"""Modules that some steps pass through, or requests only."""
MODULES = EVERY_STEP + SOME

MANIFEST = "manifest.json"
"""In the folder of the translation: the digests of the sources, the file of each module, and its digest."""
PACKAGE = Path(__file__).parents[1]
_PIECE_BYTES = 1 << 16
"""Read at a time: memory for a whole library would have to be got first, which takes as long as reading."""


class Damaged(Exception):
    """A file of the translation is missing, or not as it was made."""


def activate() -> bool:
    """Import the modules from native code from now on; returns whether it is possible.

    They will not where there is none that is up to date, and where one of them has been imported already:
    native and interpreted ones do not work together.
    """
    if any(f"{PACKAGE.name}.{name}" in sys.modules for name in MODULES):
        return False
    try:
        files = current()
    except Damaged as error:
        print(f"note: {error}; interpreted, until `python -m blis_py.native` makes it again", file=sys.stderr)
        return False
    if files:
        sys.meta_path.insert(0, _Finder(files))
    return bool(files)


def current() -> dict[str, str]:
    """Modules and their files, if they are a translation of the present sources and wanted; or nothing.

    Raises:
        Damaged: they would be, but cannot be used.
    """
    if os.environ.get("BLIS_INTERPRETED"):
        return {}
    home = folder()
    try:
        manifest = json.loads((home / MANIFEST).read_bytes())
        if manifest["sources"] != digests():
            return {}
        files, made = dict(manifest["files"]), dict(manifest["digests"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        raise Damaged(f"the native code is damaged ({home / MANIFEST})") from None
    for file in files.values():
        if digest(home / file) != made.get(file):
            raise Damaged(f"the native code is damaged ({home / file})")
    return {name: str(home / file) for name, file in files.items()}


def folder() -> Path:
    """Folder of the translation for this interpreter."""
    return Path(os.environ.get("BLIS_NATIVE") or Path(__file__).with_name(str(sys.implementation.cache_tag)))


def digests() -> dict[str, str]:
    """Digests of the present modules."""
    paths = {name: PACKAGE.joinpath(*name.split(".")).with_suffix(".py") for name in MODULES}
    return {name: sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}


def digest(file: Path) -> str:
    """Digest of one file of the translation; empty where it cannot be read."""
    hashed = sha256()
    try:
        with file.open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE_BYTES):
                hashed.update(piece)
    except OSError:
        return ""
    return hashed.hexdigest()


class _Finder:
    """Finder of modules in files that stand elsewhere."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)
