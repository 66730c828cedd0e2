"""Some hundred tiny runs and what comes of them: `python tests/golden/battery/battery.py [FILE ...]`
pins them anew.

A line of `runs/*.txt` is a name and command lines, with `{in}`, `{formats}` and `{out}` for folders, or
`call PIECE ...` for one of `pieces.py`. Of each file that a run leaves, and of what it prints,
`expected/*.txt` keeps a digest and the means of its numbers, in nine digits: enough to see what has changed.
A line that begins with `fit` is a regression, whose last digits depend on the processor (SIMD, BLAS): its
numbers are compared within a tolerance, and only the text around them has a digest.
A change there is a change of results. It is right only if it is meant; a reviewer looks at every
line that the command prints.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from tolerance import is_near, with_numbers

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
FOLDERS = {"in": HERE / "inputs", "formats": TESTS / "traces" / "formats", "repository": TESTS.parent}
KINDS = (".csv", ".json", ".txt", ".yaml", ".sh", ".jsonl")
"""Files with text."""
BINARY = (".pftrace",)
"""Files of which every byte counts."""
SETTINGS = ("scheduler", "schedulers")
"""Parts of a summary without results."""
LEFT_OUT = ("complete.json", "config.yaml")
"""Files without results."""
NAME_OF_A_CACHED_RUN = 64
"""Length of a digest of a configuration and of the program: the name of an entry that a plan keeps."""
LONGEST = 700
"""Characters of a line of a piece; of longer ones a digest follows."""
NOT_A_TIE = 1 + 3e-11
"""Moves averages off the middle between two roundings, where the machine's last bit would decide."""


@cache
def runs() -> dict[str, str]:
    """Command lines by name."""
    found: dict[str, str] = {}
    for path in sorted((HERE / "runs").glob("*.txt")):
        common = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("with "):
                common = line.removeprefix("with ")
            elif line and not line.startswith("#"):
                name, _, command = line.removeprefix("fit ").partition(": ")
                found[f"{path.stem}/{name}"] = command.replace("...", common)
    return found


@cache
def fits() -> frozenset[str]:
    """Names of the runs that are compared within a tolerance."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (HERE / "runs").glob("*.txt")}
    return frozenset(
        f"{stem}/{line.removeprefix('fit ').partition(': ')[0]}"
        for stem, text in texts.items()
        for line in text.splitlines()
        if line.startswith("fit ")
    )


@cache
def expected() -> dict[str, list[str]]:
    """What comes of each run."""
    found: dict[str, list[str]] = {}
    for path in sorted((HERE / "expected").glob("*.txt")):
        lines: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):
                lines.append(line.strip())
            else:
                lines = found[f"{path.stem}/{line}"] = []
    return found


def outcome(name: str) -> list[str]:
    """What comes of a run, a line for each file."""
    line = runs()[name]
    if line.startswith("call "):
        return list(_called(*line.split()[1:]))
    with tempfile.TemporaryDirectory() as place:
        return list(_commands(line, Path(place), with_numbers if name in fits() else condensed))


def agrees(name: str, lines: list[str], pinned: list[str]) -> bool:
    """Whether the outcome of a run is the pinned one: to the digit, or of a fit within a tolerance."""
    if name not in fits():
        return lines == pinned
    return len(lines) == len(pinned) and all(map(is_near, lines, pinned))


def _commands(line: str, place: Path, condensed: Callable[[str, str], Iterator[str]]) -> Iterator[str]:
    from blis_py.cli import main

    folders = {**FOLDERS, "out": place}

    def named(text: str) -> str:
        for name, folder in folders.items():
            text = text.replace(str(folder), f"{{{name}}}")
        return text

    for command in line.split(" ; "):
        for name, folder in folders.items():
            command = command.replace(f"{{{name}}}", str(folder))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), described_pictures():
            code = main(shlex.split(command))
        if not (place / "run" / "summary.json").exists():  # else the same once more
            yield from condensed("out", named(out.getvalue()))
        if code:
            yield f"exit {code}: {named(err.getvalue())[:90]!r}"
    for path in sorted(place.rglob("*")):
        kept = len(path.stem) == NAME_OF_A_CACHED_RUN
        if path.suffix in KINDS and path.name not in LEFT_OUT and not kept:
            yield from condensed(str(path.relative_to(place)), named(path.read_text(encoding="utf-8")))
        if path.suffix in BINARY:
            content = path.read_bytes()
            yield f"{path.relative_to(place)} {len(content)} bytes #{sha256(content).hexdigest()[:6]}"


def condensed(name: str, text: str) -> Iterator[str]:
    if not text:
        return
    if text.startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            yield from _of_json(name, json.loads(text))
            return
    if name.endswith(".csv"):
        yield _of_csv(name, text)
        return
    yield f"{name} {len(text.splitlines())} lines #{_digest(text)}"


def _of_csv(name: str, text: str) -> str:
    rows = list(csv.reader(text.splitlines()))
    cells = [[_number(cell) for cell in row] for row in rows]
    means = []
    for column, *values in zip(*cells, strict=False):
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if len(set(numbers)) > 1 and "request_id" not in str(column):
            means.append(f"{column}={sum(numbers) / len(numbers) * NOT_A_TIE:.6g}")
    return f"{name} {len(rows) - 1} rows #{_digest(_rounded(cells))} {' '.join(means)}".strip()


def _number(cell: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(cell)
    return cell


def _of_json(name: str, data: Any) -> Iterator[str]:
    """A digest for each part, in one line."""
    parts = data.items() if isinstance(data, dict) and len(data) < 40 else [("", data)]
    shown = [f"{part}#{_digest(_rounded(value))}" for part, value in parts if part not in SETTINGS]
    yield f"{name} {' '.join(shown)}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value * NOT_A_TIE:.9g}"
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


def _digest(value: Any) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:6]


def _called(name: str, *arguments: str) -> Iterator[str]:
    from pieces import DRAWN, piece

    text = "\n".join(piece(name)(*arguments))
    for folder_name, folder in FOLDERS.items():
        text = text.replace(str(folder), f"{{{folder_name}}}")
    if name in DRAWN:
        for line in text.splitlines():
            yield line if len(line) < LONGEST else f"{line[:LONGEST]} #{_digest(line)}"
        return
    yield f"{len(text.splitlines())} lines of {len(text)} characters #{_digest(text)}"


@contextlib.contextmanager
def described_pictures() -> Iterator[None]:
    """Instead of drawing: a text with everything that a picture shows."""
    from blis_py.figures.style import Picture

    saved = Picture.savefig

    def described(picture: Any, file: Any, **_: Any) -> None:
        Path(file).write_text("")
        place = Path(str(file)).parent / "pictures.txt"
        with place.open("a", encoding="utf-8") as out:
            print(*_shown(picture), sep="\n", file=out)

    Picture.savefig = described  # type: ignore[method-assign]
    try:
        yield
    finally:
        Picture.savefig = saved  # type: ignore[method-assign]


def _shown(picture: Any) -> Iterator[str]:
    yield " ".join(text.get_text() for text in picture.texts)
    for ax in picture.axes:
        titles = [ax.get_title(loc) for loc in ("left", "center", "right")]
        grids = [line.get_visible() for axis in (ax.xaxis, ax.yaxis) for line in axis.get_gridlines()[:1]]
        yield f"{grids} {[(name, spine.get_visible()) for name, spine in ax.spines.items()]}"
        yield f"{titles} {ax.get_xlabel()} {ax.get_ylabel()} {ax.get_xscale()} {ax.get_yscale()}"
        yield _numbers([ax.get_xlim(), ax.get_ylim(), ax.get_xticks(), ax.get_yticks()])
        ticks = (*ax.get_xticklabels(), *ax.get_yticklabels())
        yield str([(tick.get_text(), tick.get_fontsize()) for tick in ticks])
        for line in ax.lines:
            yield f"{line.get_label()} {line.get_color()} {line.get_linestyle()}"
            yield _numbers(line.get_xydata())
        for patch in ax.patches:
            yield f"{patch.get_label()} {patch.get_facecolor()} {_numbers(patch.get_extents().bounds)}"
        for text in ax.texts:
            offset = getattr(text, "xyann", "")
            yield f"{text.get_text()} {text.get_position()} {text.get_ha()} {text.get_fontsize()} {offset}"
        for collection in ax.collections:
            yield f"{collection.get_label()} {_numbers(collection.get_offsets())}"
        legend = ax.get_legend()
        yield str([text.get_text() for text in legend.get_texts()] if legend else [])


def _numbers(values: Any) -> str:
    return json.dumps(
        _rounded([[float(x) for x in part] if hasattr(part, "__iter__") else float(part) for part in values])
    )


def update(stems: list[str]) -> None:
    """Write what comes of the runs of some files, or of all, and print what has changed."""
    sys.path[:0] = [str(TESTS.parent), *(str(TESTS / folder) for folder in ("", "cluster", "extension"))]
    before = expected()
    after = {
        name: outcome(name) if not stems or name.partition("/")[0] in stems else before.get(name, [])
        for name in runs()
    }
    for name in {**before, **after}:
        old, new = before.get(name, []), after.get(name, [])
        if old and new and agrees(name, new, old):
            after[name] = old
        elif old:
            print(f"{name}: {runs().get(name, 'no longer there')}")
            print(*(f"  - {line}" for line in old if line not in new), sep="\n")
            print(*(f"  + {line}" for line in new if line not in old), sep="\n")
    (HERE / "expected").mkdir(exist_ok=True)
    for path in (HERE / "expected").glob("*.txt"):
        path.unlink()
    for name, lines in after.items():
        stem, _, run = name.partition("/")
        with (HERE / "expected" / f"{stem}.txt").open("a", encoding="utf-8") as file:
            print(run, *(f" {line}" for line in lines), sep="\n", file=file)
    print(f"{len(after)} runs, {len(after.keys() - before.keys())} of them new")


if __name__ == "__main__":
    update(sys.argv[1:])
