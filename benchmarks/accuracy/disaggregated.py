"""Errors of disaggregated operating points, and the order of their layouts.

    python benchmarks/accuracy/disaggregated.py ../shared/data [--seconds 240] [--most 1000] [--only sglang]

Writes benchmarks/results/disaggregated.json: of every point its errors or the reason of its refusal, and of
pairs of layouts whether their order is right. A run continues where the last one ended: points whose settings
have not changed since are kept. Renews the section of results/accuracy.md. No measured figure is kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any

from disaggregated_page import PAGE, RESULTS, Entry, put, section

from blis_py import native

native.activate()  # ahead of the modules that it replaces

from disaggregated_points import Apart, inferencemax, silicon  # noqa: E402
from points import NotExpressed, _reason  # noqa: E402

from blis_py.errors import InputError  # noqa: E402

_SAVE_S = 20
"""Between two intermediate results."""
APART_BY = 0.1
"""Layouts closer than this are no pair."""


def points(data: Path) -> list[Apart]:
    """All points, each measurement once: some are listed again under another model's name, and the row whose
    label says most stands for them."""
    found: dict[tuple[Any, ...], Apart] = {}
    for point in (*silicon(data), *inferencemax(data)):
        p = point.of
        key = (p.engine, p.gpu, p.concurrency, p.measured["ttft.mean"], p.measured["tpot.mean"])
        if key not in found or _said(found[key]) < _said(point):
            found[key] = point
    return list(found.values())


def contradicted(of: Iterable[Apart]) -> set[str]:
    """Points of which another run of the same engine, model, format and layout says otherwise: its first
    tokens took less than half the time at the same load. The rule of points with prefill and decode
    together."""
    sound = [point for point in of if not point.refused]
    least: dict[tuple[Any, ...], float] = {}
    for point in sound:
        least[_alike(point)] = min(point.measured["ttft.mean"], least.get(_alike(point), float("inf")))
    return {point.of.id for point in sound if point.measured["ttft.mean"] > 2 * least[_alike(point)]}


def _alike(point: Apart) -> tuple[Any, ...]:
    p = point.of
    load = p.prompt_tokens, p.output_tokens, p.concurrency
    return p.engine, p.gpu, p.precision, "gpt-oss" in p.model, point.layout, *load


def _said(point: Apart) -> tuple[bool, bool]:
    """How much is known of a point."""
    return not point.refused, point.labelled


def digest(point: Apart) -> str:
    """Of all settings, for points that are kept."""
    said = json.dumps([point.settings(), point.of.prompt_tokens, point.of.output_tokens])
    return sha256(said.encode()).hexdigest()[:16]


def about(point: Apart) -> Entry:
    """A point without its outcome."""
    p = point.of
    entry: Entry = {"id": p.id, "source": p.source, "engine": p.engine, "gpu": p.gpu, "model": p.model}
    entry |= {"precision": p.precision, "layout": point.layout, "gpus": point.gpus}
    return entry | {"lengths": [p.prompt_tokens, p.output_tokens], "concurrency": p.concurrency}


def entry_of(point: Apart, known: dict[str, dict[str, float]]) -> Entry:
    """Errors of a point; equal settings are simulated once."""
    p, entry = point.of, about(point)
    try:
        if point.refused:
            raise NotExpressed(point.refused)
        entry["digest"] = digest(point)
        predicted = known.get(entry["digest"] + p.source) or point.predict()
    except NotExpressed as reason:
        return {**entry, "refused": str(reason)}
    known[entry["digest"] + p.source] = predicted
    errors = {name: round(value / point.measured[name] - 1, 4) for name, value in predicted.items()}
    return {**entry, "errors": errors, "throughput": round(predicted["throughput"], 2)}


def pending(point: Apart) -> Entry:
    """A point that can be simulated, and was not yet; or the reason why it cannot."""
    try:
        point.simulation()
    except (NotExpressed, InputError) as error:
        return {**about(point), "refused": str(error) if isinstance(error, NotExpressed) else _reason(error)}
    return {**about(point), "pending": True}


def run(options: argparse.Namespace) -> list[Entry]:
    """All entries, old and new, until the time is used up; smallest runs first."""
    old = {entry["id"]: entry for entry in read()}
    known, begin, saved = dict[str, dict[str, float]](), time.monotonic(), time.monotonic()
    for point in sorted(points(options.data), key=lambda point: point.of.concurrency):
        kept, id_ = old.get(point.of.id), point.of.id
        if kept is not None and not options.again and kept.get("digest", "") == _digest(point):
            continue
        late = time.monotonic() - begin > options.seconds
        large = point.of.concurrency > options.most and not point.refused
        if late or large or options.only not in f"{point.of.engine} {point.of.gpu} {point.of.model}":
            if kept is None:
                old[id_] = pending(point)
            continue
        old[id_] = entry_of(point, known)
        if time.monotonic() - saved > _SAVE_S:
            save(options.data, list(old.values()))
            saved = time.monotonic()
    ids = {point.of.id for point in points(options.data)}
    return [entry for id_, entry in old.items() if id_ in ids]


def _digest(point: Apart) -> str:
    try:
        return digest(point)
    except NotExpressed:
        return ""


def read() -> list[Entry]:
    """Entries of the last run."""
    if not RESULTS.exists():
        return []
    found: list[Entry] = json.loads(RESULTS.read_text())["points"]
    return found


# --- the order of layouts ----------------------------------------------------------------------------


def pairs(data: Path, entries: Iterable[Entry], most_apart: float) -> list[Entry]:
    """Pairs of different layouts that are alike otherwise, by throughput per GPU.

    Args:
        most_apart: ratio of their requests in flight, at most.
    """
    measured = {point.of.id: point.measured["throughput"] for point in points(data) if not point.refused}
    groups: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        if "errors" in entry:
            groups[load_of(entry)].append(entry)
    found = []
    for group in groups.values():
        for one, other in combinations(group, 2):
            real = measured[one["id"]] / measured[other["id"]]
            load = one["concurrency"] / other["concurrency"]
            if max(load, 1 / load) > most_apart:
                continue
            if one["layout"] != other["layout"] and max(real, 1 / real) > 1 + APART_BY:
                right = (one["throughput"] > other["throughput"]) == (real > 1)
                found.append({"pair": [one["id"], other["id"]], "right": right})
    return found


def load_of(entry: Entry) -> tuple[Any, ...]:
    """Equal GPUs, model, lengths."""
    names = ("engine", "gpu", "precision", "gpus")
    return (*(entry[name] for name in names), *entry["lengths"], "gpt-oss" in entry["model"])


def save(data: Path, entries: list[Entry]) -> None:
    both = {
        "any number of requests in flight": pairs(data, entries, float("inf")),
        "requests in flight within a factor of 2": pairs(data, entries, 2.0),
        "as many requests in flight": pairs(data, entries, 1.0),
    }
    wrong = contradicted(points(data))
    entries = [{**entry, "contradicted": True} if entry["id"] in wrong else entry for entry in entries]
    rows = ",\n".join(json.dumps(entry) for entry in entries)
    RESULTS.write_text(f'{{"pairs": {json.dumps(both)}, "points": [\n{rows}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--most", type=int, default=10**9, help="requests in flight, at most")
    parser.add_argument("--only", default="", help="points whose engine, GPU and model contain this")
    parser.add_argument("--again", action="store_true", help="keep nothing of the last run")
    options = parser.parse_args()
    save(options.data, run(options))
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print("\n".join(section()))


if __name__ == "__main__":
    main()
