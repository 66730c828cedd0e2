"""Conversion of requests to other formats, reporting what a format cannot represent.

A new format is a function that writes a table, and a line in `WRITERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from blis_py.errors import InputError
from blis_py.files.paths import exists
from blis_py.requests.sessions import waits
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces.mooncake import BLOCK_TOKENS
from blis_py.traces.tracev2_write import write


@dataclass(frozen=True)
class Writer:
    """A writable format.

    Attributes:
        title: display name.
        suffixes: file suffixes that select the format by default.
        writes: module and function.
        holds: keys of `FEATURES` that the format can represent.
    """

    title: str
    suffixes: tuple[str, ...]
    writes: str
    holds: frozenset[str]

    def write(self, table: RequestTable, path: Path) -> None:
        module, _, name = self.writes.partition(":")
        function: Callable[[RequestTable, Path], None] = getattr(
            import_module(f"blis_py.traces.{module}"), name
        )
        function(table, path)


def _named(labels: Labels) -> int:
    return int(np.isin(labels.codes, [code for code, name in enumerate(labels.names) if name]).sum())


FEATURES: dict[str, tuple[str, Callable[[RequestTable], int]]] = {
    "max_tokens": (
        "limits on answers other than their length",
        lambda table: int((table.max_tokens != table.output_tokens).sum()),
    ),
    "deadline": ("deadlines", lambda table: int((table.deadline_ns >= 0).sum())),
    "slo_target": ("latency targets", lambda table: int((table.slo_target_ns > 0).sum())),
    "slo_class": ("SLO classes", lambda table: _named(table.slo_class)),
    "tenant": ("tenants", lambda table: _named(table.tenant)),
    "client": ("clients", lambda table: _named(table.client)),
    "model": ("models", lambda table: _named(table.model)),
    "prefix_group": ("names of prefix groups", lambda table: _named(table.prefix_group)),
    "streaming": ("streaming", lambda table: int(table.streaming.sum())),
    "content": ("shared beginnings of prompts", lambda table: int((table.content >= 0).sum())),
    "small_content": (
        f"shared tokens beyond whole blocks of {BLOCK_TOKENS}",
        lambda table: _beyond_blocks(table),
    ),
    "eos": (
        "ends that no scheduler foresees",
        lambda table: 0 if table.ends_by_eos is None else int(table.ends_by_eos.sum()),
    ),
    "session": (
        "sessions that requests belong to",
        lambda table: 0 if table.session is None else int((table.session >= 0).sum()),
    ),
    "round_index": (
        "places of turns in their sessions",
        lambda table: 0 if table.round_index is None else int((table.round_index > 0).sum()),
    ),
    "modality_tokens": (
        "tokens of images, audio and video as such",
        lambda table: (
            0 if table.modality_tokens is None else int((table.modality_tokens[:, 1:].sum(axis=1) > 0).sum())
        ),
    ),
    "network": (
        "networks between clients and cluster",
        lambda table: 0 if table.network_ns is None else int(table.network_ns.any(axis=1).sum()),
    ),
    "think": ("pauses of turns that wait for answers", lambda table: int(waits(table).sum())),
    "constrained": (
        "structured outputs",
        lambda table: 0 if table.constrained is None else int(table.constrained.sum()),
    ),
    "extra_key": (
        "extra cache keys",
        lambda table: 0 if table.extra_key is None else sum(map(bool, table.extra_key.to_list())),
    ),
    "request_id": ("names of requests", lambda table: 0 if table.request_id is None else len(table)),
}
"""Table features beyond arrivals and lengths, with the number of requests that have each."""


def _beyond_blocks(table: RequestTable) -> int:
    shared = np.array([sum(tokens for _, tokens in runs) for runs in table.contents] + [0], dtype=np.int64)
    tokens = np.minimum(shared[table.content], table.prompt_tokens)
    return int(((tokens % BLOCK_TOKENS > 0) & (tokens < table.prompt_tokens)).sum())


_NAMES = {"small_content", "slo_class", "tenant", "client", "model", "request_id"}
WRITERS: dict[str, Writer] = {
    "tracev2": Writer("TraceV2", (".yaml", ".yml"), "convert:write_tracev2", frozenset(FEATURES) - {"eos"}),
    "azure": Writer(
        "Azure LLM trace", (".csv", ".csv.gz"), "azure_write:write", frozenset({*_NAMES, "small_content"})
    ),
    "mooncake": Writer(
        "Mooncake trace",
        (".jsonl", ".jsonl.gz"),
        "mooncake_write:write",
        frozenset({"content", "request_id"}),
    ),
    "parquet": Writer(
        "Parquet",
        (".parquet",),
        "parquet:write",
        frozenset(FEATURES)
        - {"eos", "constrained", "extra_key", "session", "round_index", "think"}
        - {"modality_tokens", "network"},
    ),
}


def writer_for(path: Path, named: str | None) -> Writer:
    """The named writer, or the one for the file's suffix.

    Raises:
        InputError: neither is known.
    """
    if named is not None:
        if named not in WRITERS:
            raise InputError("unknown format", key="--to", value=named, fix=f"use {', '.join(WRITERS)}")
        return WRITERS[named]
    for writer in WRITERS.values():
        if path.name.endswith(writer.suffixes):
            return writer
    endings = ", ".join(f"{' '.join(writer.suffixes)} ({writer.title})" for writer in WRITERS.values())
    raise InputError("which format?", file=path, fix=f"give --to, or let the name end in {endings}")


def check_apart(source: str | Path, target: Path) -> None:
    """Refuse to overwrite the source.

    Raises:
        InputError: an output file is the source, or belongs to it.
    """
    stem = target.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".yaml").removesuffix(".yml")
    written = {target, *(target.with_name(stem + suffix) for suffix in (".yaml", ".csv", ".csv.gz"))}
    for path in written:
        if exists(path) and exists(source) and path.samefile(source):
            raise InputError("would be written over", file=source, fix="give the target another name")


def losses(table: RequestTable, writer: Writer) -> list[str]:
    """Features the format cannot represent, in words, with the number of requests that have each."""
    lost = []
    for feature, (what, count) in FEATURES.items():
        if feature not in writer.holds and (requests := count(table)):
            lost.append(f"{what} (of {requests:,} of {len(table):,} requests)")
    return lost


def write_tracev2(table: RequestTable, path: Path) -> None:
    """Write both files: the header under the given name, the CSV beside it."""
    name = path.name
    packed = name.endswith(".gz")
    stem = name.removesuffix(".gz").removesuffix(".csv").removesuffix(".yaml").removesuffix(".yml")
    header = path if path.suffix in (".yaml", ".yml") else path.with_name(f"{stem}.yaml")
    write(table, header, path.with_name(f"{stem}.csv.gz" if packed else f"{stem}.csv"))
