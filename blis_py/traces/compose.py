"""Several recordings played together, each at its own rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.core.flag_texts import decimal
from blis_py.errors import InputError
from blis_py.requests.table import MODALITIES, Content, Ints, Labels, RequestTable


def merged(tables: Sequence[RequestTable], names: Sequence[str]) -> RequestTable:
    """The requests of all tables, in order of arrival; ties in the order of the tables.

    Sharing within a table is preserved; nothing is shared between tables, whose texts differ even under equal
    names.

    Args:
        names: distinct names of the tables, which become part of request names.
    """
    if len(tables) == 1:
        return tables[0]
    own = [_named(table, name) for table, name in zip(tables, names, strict=True)]
    offsets = np.cumsum([0, *(len(table.contents) for table in own)])
    content = [
        np.where(table.content >= 0, table.content + offset, -1)
        for table, offset in zip(own, offsets.tolist(), strict=False)
    ]
    together = RequestTable(
        arrival_ns=np.concatenate([table.arrival_ns for table in own]),
        prompt_tokens=np.concatenate([table.prompt_tokens for table in own]),
        output_tokens=np.concatenate([table.output_tokens for table in own]),
        max_tokens=np.concatenate([table.max_tokens for table in own]),
        deadline_ns=np.concatenate([table.deadline_ns for table in own]),
        slo_class=_joined([table.slo_class for table in own]),
        tenant=_joined([table.tenant for table in own]),
        client=_joined([table.client for table in own]),
        model=_joined([table.model for table in own]),
        prefix_group=_joined([table.prefix_group for table in own]),
        prefix_tokens=np.concatenate([table.prefix_tokens for table in own]),
        content=np.concatenate(content),
        contents=tuple(runs for table in own for runs in table.contents),
        streaming=np.concatenate([table.streaming for table in own]),
        slo_target_ns=np.concatenate([table.slo_target_ns for table in own]),
        request_id=[table.id_of(row) for table in own for row in range(len(table))],
        ends_by_eos=_flags([table.ends_by_eos for table in own], own),
        constrained=_flags([table.constrained for table in own], own),
        extra_key=_labels([table.extra_key for table in own], own),
        session=_sessions(own),
        session_names=_session_names(own),
        round_index=_numbers([table.round_index for table in own], own, 0),
        modality_tokens=_modalities(own),
        network_ns=_networks(own),
        think_ns=_numbers([table.think_ns for table in own], own, -1),
    )
    return together.sorted_by_arrival()


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Source names: file stems, numbered where equal."""
    stems = [Path(path).name.split(".")[0] or "source" for path in paths]
    return [f"{stem}-{index}" if stems.count(stem) > 1 else stem for index, stem in enumerate(stems)]


def scales(text: str | None, count: int) -> list[float]:
    """Rate factor of each source.

    Raises:
        InputError: not one positive number for each source.
    """
    if text is None:
        return [1.0] * count
    try:
        numbers = [decimal(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(0 < number < float("inf") for number in numbers):
        fix = f"give {count} positive numbers: {','.join(['1'] * count)}"
        raise InputError("must be a factor for every source", key="--scale", value=text, fix=fix)
    return numbers


def _named(table: RequestTable, name: str) -> RequestTable:
    """A table with ids, prefix groups and texts made unique by `name`."""
    groups = tuple(f"{name}/{group}" if group else "" for group in table.prefix_group.names)
    contents: list[Content] = [
        tuple((f"{name}/{segment}", tokens) for segment, tokens in runs) for runs in table.contents
    ]
    return replace(
        table,
        prefix_group=Labels(table.prefix_group.codes, groups),
        contents=contents,
        request_id=[f"{name}/{id}" for id in table.ids()],
        session_names=None
        if table.session_names is None
        else [f"{name}/{session}" for session in table.session_names],
    )


def _joined(columns: Sequence[Labels]) -> Labels:
    names: dict[str, int] = {}
    codes = []
    for column in columns:
        numbers = [names.setdefault(name, len(names)) for name in column.names]
        codes.append(np.array(numbers, dtype=np.int32)[column.codes])
    return Labels(np.concatenate(codes), tuple(names))


def _labels(columns: Sequence[Labels | None], tables: Sequence[RequestTable]) -> Labels | None:
    """A column that some tables have; unset in the rows of the others."""
    if all(column is None for column in columns):
        return None
    both = zip(columns, tables, strict=True)
    return _joined([Labels.constant("", len(table)) if column is None else column for column, table in both])


def _sessions(tables: Sequence[RequestTable]) -> Ints | None:
    """Session numbers, distinct between tables."""
    if all(table.session is None for table in tables):
        return None
    columns: list[Ints] = []
    known = 0
    for table in tables:
        own = np.full(len(table), -1, dtype=np.int64) if table.session is None else table.session
        columns.append(np.where(own >= 0, own + known, -1))
        known += int(own.max(initial=-1)) + 1
    return np.concatenate(columns)


def _session_names(tables: Sequence[RequestTable]) -> list[str] | None:
    """Session names by the numbers of `_sessions`; `None` if no table has any."""
    if all(table.session_names is None for table in tables):
        return None
    names: list[str] = []
    for table in tables:
        count = 0 if table.session is None else int(table.session.max(initial=-1)) + 1
        own = table.session_names or [f"session_{len(names) + number}" for number in range(count)]
        names += list(own[:count])
    return names


def _numbers(columns: Sequence[Ints | None], tables: Sequence[RequestTable], default: int) -> Ints | None:
    """A column of some tables, with a default in the rows of the others."""
    if all(column is None for column in columns):
        return None
    both = zip(columns, tables, strict=True)
    return np.concatenate(
        [np.full(len(table), default, dtype=np.int64) if c is None else c for c, table in both]
    )


def _modalities(tables: Sequence[RequestTable]) -> Ints | None:
    """Prompt modalities, if any table has them."""
    if all(table.modality_tokens is None for table in tables):
        return None
    nothing = (np.zeros((len(table), len(MODALITIES)), dtype=np.int64) for table in tables)
    both = zip(tables, nothing, strict=True)
    return np.concatenate(
        [none if own.modality_tokens is None else own.modality_tokens for own, none in both]
    )


def _networks(tables: Sequence[RequestTable]) -> NDArray[np.float64] | None:
    """Client networks, if any table has them."""
    if all(table.network_ns is None for table in tables):
        return None
    own = [np.zeros((len(table), 2)) if table.network_ns is None else table.network_ns for table in tables]
    return np.concatenate(own)


Flags = NDArray[np.bool_]


def _flags(columns: Sequence[Flags | None], tables: Sequence[RequestTable]) -> Flags | None:
    """Flags of the tables with such a column; false for the others."""
    if all(column is None for column in columns):
        return None
    both = zip(columns, tables, strict=True)
    return np.concatenate(
        [np.zeros(len(table), dtype=np.bool_) if column is None else column for column, table in both]
    )
