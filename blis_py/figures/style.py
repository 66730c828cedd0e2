"""The house style: colour-blind-safe colours, margins in inches, the settings at the foot.

The colours are those of Okabe and Ito, distinguishable with every common kind of colour blindness; lines also
differ in their dashes, for black-and-white copies.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from blis_py.figures._matplotlib import Figure, rc_context

if TYPE_CHECKING:
    from matplotlib.axes import Axes

P = ParamSpec("P")
T = TypeVar("T")

DPI = 120
WIDTH = 10.0
"""Width in inches: 1200 pixels."""
LEGEND_COLUMNS = 6

INK, QUIET, FAINT = "#222222", "#666666", "#e4e4e4"
BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, GREY, EARTH = "#56B4E9", "#CC79A7", "#8c8c8c", "#7a5c00"
SERIES = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, EARTH, GREY)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.5, 1.5)))
MARKERS = "osD^vPX*"
CLASS_LINES: dict[str, dict[str, Any]] = {
    "critical": {"color": VERMILLION},
    "standard": {"color": BLUE},
    "batch": {"color": GREEN, "linestyle": (0, (5, 1.5))},
    "sheddable": {"color": ORANGE, "linestyle": (0, (5, 1.5, 1.5, 1.5))},
    "background": {"color": GREY, "linestyle": (0, (1.5, 1.2))},
}
_OTHER_COLOURS = (PURPLE, SKY, EARTH)
SEQUENTIAL = "cividis"
"""Colour map from low to high values."""

_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "grid.linestyle": "-",
    "lines.linewidth": 1.8,
    "text.color": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0.2,
    "legend.columnspacing": 1.2,
    "legend.handlelength": 1.8,
    "legend.handletextpad": 0.5,
    "svg.hashsalt": "blis",
    "svg.fonttype": "path",
}
_UNSIGNED: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""File metadata to suppress, which would differ from one file to the next."""
KINDS = tuple(_UNSIGNED)
_FOOT_SIZE, _FOOT_LINE, _FOOT_CHARACTERS = 8.0, 0.16, 145


@contextmanager
def style() -> Iterator[None]:
    """Apply the house style within the block, overriding matplotlib's current settings.

    Names may have characters that the font lacks: a box stands for them, without a warning.
    """
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def in_house_style(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorator that draws in the house style."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        with style():
            return draw(*args, **kwargs)

    return drawn


class Picture(Figure):
    """A figure that is saved without date and version, and shows itself in a notebook."""

    def savefig(self, fname: Any, **kwargs: Any) -> None:
        """Save as matplotlib does; the same picture gives the same bytes."""
        kind = f".{kwargs['format']}" if kwargs.get("format") else Path(str(fname)).suffix.lower()
        given = {"dpi": DPI, "metadata": _UNSIGNED.get(kind), **kwargs}
        with style():
            super().savefig(fname, **given)

    def save(self, path: str | Path) -> Path:
        """Write the picture atomically; the extension selects the format: .png, .svg or .pdf.

        Raises:
            InputError: another extension.
        """
        from blis_py.errors import InputError
        from blis_py.outputs.staging import replacing

        if Path(path).suffix.lower() not in KINDS:
            fix = f"let the name end in {', '.join(KINDS)}"
            raise InputError("unknown kind of picture", value=str(path), fix=fix)
        with replacing(path) as file:
            self.savefig(file)
        return Path(path)

    def _repr_png_(self) -> bytes:
        drawn = BytesIO()
        self.savefig(drawn, format="png")
        return drawn.getvalue()


def grid(
    rows: int,
    columns: int,
    *,
    height: float,
    foot: str = "",
    above: float = 0.0,
    gap: float = 0.85,
    left: float = 0.68,
    right: float = 0.3,
    beside: float = 0.75,
) -> tuple[Picture, list[Axes]]:
    """A figure `WIDTH` by `height` inches, plus the foot, with a grid of axes.

    Margins are fixed: measuring every label, as matplotlib's layout engines do, takes as long as drawing.

    Args:
        foot: the settings; see `blis_py.figures.facts`.
        above: room above the axes, in inches.
        gap: between rows of axes; `beside` between columns.
        left, right: margins.
    """
    lines = textwrap.wrap(foot, _FOOT_CHARACTERS, break_on_hyphens=False)
    room = _FOOT_LINE * len(lines) + 0.06 if lines else 0.0
    height += room
    top, bottom = 0.35 + above, 0.55 + room
    wide = (WIDTH - left - right - beside * (columns - 1)) / columns
    high = (height - top - bottom - gap * (rows - 1)) / rows
    figure = Picture(figsize=(WIDTH, height))
    figure.subplots_adjust(
        left=left / WIDTH,
        right=1 - right / WIDTH,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=beside / wide,
        hspace=gap / high,
    )
    written = "\n".join(lines)
    look: Any = {"size": _FOOT_SIZE, "color": QUIET, "va": "bottom", "parse_math": False}
    figure.text(0.12 / WIDTH, 0.07 / height, written, **look)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def panels(
    count: int, columns: int, row_height: float, above: float, **layout: Any
) -> tuple[Picture, list[Axes]]:
    """A grid with room for `count` axes, of `row_height` inches a row; places to spare stay empty."""
    rows = -(-count // columns)
    figure, axes = grid(rows, columns, height=row_height * rows + above, above=above, **layout)
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes[:count]


def sign(figure: Figure, foot: str) -> None:
    """Add the foot to a figure arranged by another layout."""
    figure.supxlabel(foot, x=0.01, ha="left", size=_FOOT_SIZE, color=QUIET, parse_math=False)


def headline(figure: Picture, text: str) -> None:
    """Add a headline above everything."""
    height = figure.get_figheight()
    figure.suptitle(text, x=0.012, y=1 - 0.12 / height, ha="left", va="top", fontsize=12, parse_math=False)


def say(ax: Axes, text: str) -> None:
    """Show a reason in axes without data."""
    look: Any = {"ha": "center", "va": "center", "color": QUIET, "parse_math": False}
    ax.text(0.5, 0.5, "\n".join(textwrap.wrap(text, 44)), transform=ax.transAxes, **look)
    ax.set(xticks=[], yticks=[], xlabel="", ylabel="")
    ax.grid(visible=False)


def label(name: str) -> str:
    """A user-supplied name as legend text: no formula, not hidden by an underscore, limited in length."""
    short = name if len(name) <= 40 else f"{name[:24]}…{name[-14:]}"
    return f"{'​' if short.startswith('_') else ''}{short}".replace("$", r"\$")


def class_lines(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and dashes of each SLO class."""
    others = [name for name in names if name not in CLASS_LINES]
    looks = {
        name: {
            "color": _OTHER_COLOURS[index % len(_OTHER_COLOURS)],
            "linestyle": DASHES[(index // len(_OTHER_COLOURS)) % len(DASHES)],
        }
        for index, name in enumerate(others)
    }
    return {name: CLASS_LINES.get(name) or looks[name] for name in names}


def series_lines(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of one of several series."""
    return {
        "color": SERIES[index % len(SERIES)],
        "linestyle": DASHES[index // len(SERIES) % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def legend_room(entries: int, columns: int = LEGEND_COLUMNS) -> float:
    """The height of a legend above the axes, in inches."""
    return 0.25 * math.ceil(entries / columns) + 0.05 if entries > 1 else 0.0


def legend_above(
    figure: Picture, axes: Sequence[Axes], from_top: float, columns: int = LEGEND_COLUMNS
) -> None:
    """One legend for all axes, above them: that of the axes with the most labelled lines."""
    handles, labels = max((ax.get_legend_handles_labels() for ax in axes), key=lambda each: len(each[1]))
    if len(labels) > 1:
        figure.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(0.012, 1 - from_top / figure.get_figheight()),
            ncols=min(len(labels), columns),
            borderaxespad=0,
        )


def legend_beside_title(ax: Axes) -> None:
    """Above the axes on the right, where no data can be."""
    labels = ax.get_legend_handles_labels()[1]
    if len(labels) > 1:
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(labels))
