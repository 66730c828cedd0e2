"""The picture of the guide to block diffusion: simulated slots over rounds, and the speed-up by spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.cluster.instances.diffusion import BlockDiffusion
from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import BatchOutcome, DenoiseBatch, DiffusionRequest
from blis_py.figures.style import BLUE, FAINT, GREEN, GREY, VERMILLION, Picture, in_house_style, sign
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.requests.table import RequestTable
from blis_py.workload.diffusion import draw_rounds
from blis_py.workload.diffusion_steps import MeanAndSpread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLOCK, MEAN_STEPS = 32, 12.5
SLOTS, CVS = (2, 4, 16, 64), (0.0, 0.1, 0.2, 0.25, 0.3, 0.4)
PUBLISHED = {4: 1.30, 16: 1.45}
ROUND = Linear(LinearCoefficients(LinearCosts(step=1)))
COLOURS = {2: GREY, 4: BLUE, 16: VERMILLION, 64: GREEN}


class Slots:
    """Observer of the slots at work in each round of the only instance."""

    def __init__(self, rounds: Sequence[Sequence[int]]) -> None:
        self.cells: list[tuple[int, int, int, bool]] = []
        """Round, slot, request, and whether its block was at work or only waited for others."""
        self._rounds, self._round, self._in_batch = rounds, 0, 0
        self._events: Any = None

    def beside(self, index: int, scheduler: Any, events: Any) -> Slots:
        self._events = events
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)

    def round(self, batch: DenoiseBatch, start_ns: int, end_ns: int) -> None:
        for request in batch.denoise:
            total = self._rounds[request.row][len(request.rounds_per_block)]
            at_work = request.block_rounds + self._in_batch < total
            self.cells.append((self._round, request.slot, request.row, at_work))
        self._round, self._in_batch = self._round + 1, self._in_batch + 1
        self._events.round(batch, start_ns, end_ns)

    def batch(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        self._in_batch = 0
        self._events.batch(batch, outcome)


def serve(slots: int, cv: float, count: int, fdfo: bool) -> tuple[int, Slots]:
    """Rounds to serve requests of one block each, all of them there from the beginning."""
    requests: list[Any] = [DiffusionRequest(str(row), 0, 0, BLOCK, row=row) for row in range(count)]
    rounds = draw_rounds(requests, MeanAndSpread(MEAN_STEPS, cv), block_tokens=BLOCK, seed=4)
    config = SchedulerConfig(num_kv_blocks=slots, max_model_len=BLOCK, block_size=BLOCK, max_num_seqs=slots)
    none = np.zeros(count, dtype=np.int64)
    table = RequestTable.build(none, none, none + BLOCK)
    cluster, log = Cluster.of(scheduler=config, latency=ROUND), Slots(rounds)
    record = simulate(table, cluster, kind=BlockDiffusion(rounds, DiffusionConfig(fdfo=fdfo)), observer=log)
    return record.instances[0].steps, log


def draw_slots(axes: Axes, fdfo: bool, until: int) -> None:
    rounds, log = serve(4, 0.28, 16, fdfo)
    shades = ["#2a6fdb", "#7fa8e8", "#1b4a94", "#a9c6f2"]
    for index, slot, row, at_work in log.cells:
        colour = shades[row // 4 % 4] if at_work else FAINT
        axes.add_patch(_cell(index, slot, colour))
    mode = "first done, first out" if fdfo else "synchronous"
    axes.set_title(f"{mode}: 16 blocks in {rounds} rounds", fontsize=10, loc="left")
    axes.set_xlim(0, until)
    axes.set_ylim(-0.5, 3.5)
    axes.set_yticks(range(4), [f"slot {slot}" for slot in range(4)])
    axes.invert_yaxis()
    axes.grid(visible=False)


def _cell(index: int, slot: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((index, slot - 0.4), 1, 0.8, color=colour, linewidth=0)


def draw_speed_ups(axes: Axes) -> None:
    for slots in SLOTS:
        ups = []
        for cv in CVS:
            sync, fdfo = (serve(slots, cv, 40 * slots, mode)[0] for mode in (False, True))
            ups.append(sync / fdfo)
        axes.plot(CVS, ups, marker="o", markersize=3, color=COLOURS[slots], label=f"{slots} slots")
    for slots, published in PUBLISHED.items():
        axes.axhline(published, color=COLOURS[slots], linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlabel("spread of rounds per block (standard deviation / mean)")
    axes.set_title("synchronous over FDFO rounds; dashed: published, 4 and 16 slots", fontsize=9, loc="left")
    axes.legend(frameon=False, fontsize=9)


@in_house_style
def figure() -> Picture:
    picture = Picture(figsize=(12, 4.4), layout="constrained")
    grid = picture.add_gridspec(2, 2, width_ratios=(1.25, 1))
    until = serve(4, 0.28, 16, False)[0] + 1
    for place, fdfo in ((0, False), (1, True)):
        draw_slots(picture.add_subplot(grid[place, 0]), fdfo, until)
    picture.axes[-1].set_xlabel("round; grey: a finished block that waits for the others")
    draw_speed_ups(picture.add_subplot(grid[:, 1]))
    sign(picture, "simulated: blocks that are all there from the beginning, every round equally long")
    return picture
