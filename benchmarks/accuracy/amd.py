"""GPUs by AMD in `inferencemax`: half of their groups teach terms, the others judge them.

A group is a GPU with a length of prompts and of answers; in order, every other one teaches. So each GPU and
each length stands on both sides. Kernels of these GPUs were not measured: a step is what the datasheet and
the efficiencies of a related GPU say, times and plus what servers show. Servers of AMD's own engine (ATOM)
are not simulated, and those with a checkpoint whose formats are not known here (MXFP4-Preview) not priced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from outcomes import Outcome, by
from page_tables import table
from point_sets import AMD, inferencemax
from points import NotExpressed, Point

from blis_py.hardware.gpu import is_of_amd, load_gpu


def amd_points(data: Path) -> list[Point]:
    """Those of aggregated servers of engines that are simulated, without speculation."""
    return [replace(point, refused="") for point in inferencemax(data) if point.refused == AMD]


def teaching(points: Iterable[Point]) -> list[Point]:
    """Points of every other group of those that have a known checkpoint."""
    of = [point for point in points if _is_known(point)]
    groups = sorted({_group(point) for point in of})
    return [point for point in of if groups.index(_group(point)) % 2 == 0]


def section(outcomes: Sequence[Outcome]) -> list[str]:
    """Lines of the page: errors on the groups that judge, and on those that taught."""
    taught = {point.id for point in teaching(outcome.point for outcome in outcomes)}
    priced = [outcome for outcome in outcomes if outcome.errors]
    judged = [outcome for outcome in priced if outcome.point.id not in taught]
    rows = {
        "all, judged": judged,
        **{f"{name}, judged": of for name, of in sorted(by(judged, lambda o: o.point.gpu).items())},
        "all, taught": [outcome for outcome in priced if outcome.point.id in taught],
    }
    count = len(outcomes) - len(priced)
    beside = f" {count} more points are of a checkpoint whose formats are not known here." if count else ""
    said = (
        "SGLang with DeepSeek-R1 in FP8 on ROCm, not counted above. Terms were learned on every other group"
    )
    return [f"{said} (GPU, lengths);", f"the others judge.{beside}", "", *table("points", rows)]


def of_amd(point: Point) -> bool:
    return is_of_amd(load_gpu(point.gpu))


def _is_known(point: Point) -> bool:
    try:
        return bool(point.checkpoint)
    except NotExpressed:
        return False


def _group(point: Point) -> tuple[str, str, int, int]:
    return point.gpu, point.precision, point.prompt_tokens, point.output_tokens
