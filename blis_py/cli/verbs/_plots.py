"""The figures of `blis plot`: which, of what, and where they go."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from blis_py.cli.flags.flag import Flags
from blis_py.config.layers import did_you_mean
from blis_py.errors import InputError
from blis_py.figures.saving import OF_SEVERAL, figures
from blis_py.figures.style import KINDS, Picture
from blis_py.files.paths import is_file, is_folder
from blis_py.outputs.complete import PICTURES
from blis_py.outputs.pictures import belong
from blis_py.outputs.places import check_folder
from blis_py.report.saved import SavedResult, load

_SWEEP = "sweep.csv"
_AGAINST = "predicted_measured"


def draw(given: Sequence[str], flags: Flags) -> None:
    """Draw the figures that flags name of results, and print the files.

    Args:
        given: result folders, or the table of a sweep.

    Raises:
        InputError: no such figure or format, or it does not fit what is given.
    """
    names, kinds = _words(flags.get("--figure", ())), _kinds(flags.get("--format", "png"))
    table = _table(given[0])
    if table is not None and len(given) > 1:
        raise InputError("a table of runs stands alone", value=given[1], fix="give one table, or folders")
    _check(names, alone=table is None and len(given) == 1, flags=flags)
    target = _target(flags, table, given)
    check_folder(target, "--out")
    runs = [] if table is not None else _loaded(given)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, picture in _drawn(names, runs, table, flags):
        written += [picture.save(target / f"{name}.{kind}") for kind in kinds]
    if len(runs) == 1 and runs[0].folder in target.resolve().parents:
        belong(runs[0].folder, [path.resolve() for path in written])
    sys.stdout.write("".join(f"{path}\n" for path in written))


def _drawn(
    names: Sequence[str], runs: Sequence[SavedResult], table: str | None, flags: Flags
) -> Iterator[tuple[str, Picture]]:

    alone = table is None and len(runs) == 1
    for name in names or (figures() if alone else OF_SEVERAL):
        if name in OF_SEVERAL:
            yield name, OF_SEVERAL[name](table or runs, _words(flags.get("--by", ())))
        elif name == _AGAINST:
            yield name, runs[0].plot.predicted_measured(flags["--measured"])
        elif (picture := figures()[name](runs[0].view)) is not None:
            yield name, picture
        elif names:
            fix = "save the run again, with its steps"
            raise InputError("this result has no table of steps", key=f"--figure {name}", fix=fix)
        else:
            print(f"note: no {name}: this result has no table of steps", file=sys.stderr)


def _table(path: str) -> str | None:
    """The table of a sweep, given as a file or as the folder it is in."""
    if is_file(path):
        return path
    inside = Path(path) / _SWEEP
    return str(inside) if is_file(inside) else None


def _loaded(given: Sequence[str]) -> list[SavedResult]:

    return [load(folder) for folder in given]


def _check(names: Sequence[str], *, alone: bool, flags: Flags) -> None:
    """Refuse unknown figures, and figures of another number of runs."""

    known = (*figures(), _AGAINST, *OF_SEVERAL)
    for name in names:
        if name not in known:
            raise InputError("no such figure", key="--figure", value=name, fix=did_you_mean(name, known))
        if name not in OF_SEVERAL and not alone:
            raise InputError("is a figure of one run", key="--figure", value=name, fix="give one folder")
    if (_AGAINST in names) != ("--measured" in flags):
        fix = f"give --figure {_AGAINST} and --measured PATH together"
        raise InputError("one needs the other", key="--measured", value=flags.get("--measured"), fix=fix)
    if "--by" in flags and not any(name in OF_SEVERAL for name in names or ("" if alone else OF_SEVERAL)):
        raise InputError("has a meaning for several runs only", key="--by", fix="drop it")


def _target(flags: Flags, table: str | None, given: Sequence[str]) -> Path:
    if "--out" in flags:
        return Path(flags["--out"])
    if table is None and len(given) == 1:
        return Path(given[0]) / PICTURES if is_folder(given[0]) else Path(PICTURES)
    raise InputError("where the figures of several runs go is not clear", key="--out", fix="add --out DIR")


def _kinds(text: str) -> list[str]:

    kinds, known = _words([text]), [kind.removeprefix(".") for kind in KINDS]
    for kind in kinds:
        if kind not in known:
            raise InputError("unknown format", key="--format", value=kind, fix=did_you_mean(kind, known))
    return kinds


def _words(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(word for text in texts for word in text.replace(",", " ").split()))
