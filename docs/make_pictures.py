"""Makes every picture in the README and the guides, by running the program: `make docs`.

The same code gives the same bytes: runs are seeded, and the files carry no metadata.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import architecture_picture
import autopsy_picture
import day_picture
import diffusion_picture
import fleet_pictures
import gallery
import overlap_picture
import overload_picture
import routing_picture
import trust_picture

import blis_py as blis
from blis_py.figures import Picture

_BUSY = {"workload": "mixed-slo", "model": "qwen3-14b", "num_instances": 3, "num_requests": 2000}
FOLDER = Path(__file__).resolve().parent / "img"


def overview() -> Picture:
    """The run of `make run`: an hour of mixed traffic on 4 × H100, by priority."""
    settings = {"workload": "mixed-slo", "model": "qwen3-14b", "gpu": "h100"}
    return blis.run(**settings, num_instances=4, scheduler="priority-fcfs").plot.overview()


def plan() -> Picture:
    """Which GPU and TP degree for a chat of 40 requests/s: the example of the guide."""
    from blis_py.planning.pictures import draw

    found = blis.plan(
        workload="chat",
        rate=40,
        num_requests=1000,
        model="llama-3.1-8b",
        vary={"gpu": ["h100", "l40s"], "tp": [1, 2]},
        slo="ttft.p99=500ms tpot.p99=40ms",
        draws=10,
    )
    return draw(found)


def sweep() -> Picture:
    """Two schedulers over the rate, with several seeds: the example of the guide."""
    from blis_py.planning.curves import curves

    done = blis.sweep(
        model="qwen3-14b",
        num_requests=200,
        slo="ttft.p99=500ms",
        vary={"scheduler": ["fcfs", "sjf"], "rate": "20:60:20", "tp": [1, 3]},
        seeds=3,
    )
    picture = curves(done.table, done.axes_values(), done.foot)
    assert picture is not None
    return picture


def explain() -> Picture:
    """Why a critical request waits under fcfs, and what would have changed it: the run of the guide."""
    return blis.explain(**_BUSY, metric="critical.ttft.p99").plot()


def compare() -> Picture:
    """The same requests under fcfs and by priority: who got better, and who paid."""
    runs = [blis.run(**_BUSY, scheduler=policy) for policy in ("fcfs", "priority-fcfs")]
    return blis.compare(*runs, names=("fcfs", "priority-fcfs")).plot()


PICTURES: dict[str, Callable[[], Picture]] = {
    "overview": overview,
    "diffusion": diffusion_picture.figure,
    "autopsy": autopsy_picture.figure,
    "journey": architecture_picture.journey,
    "step": architecture_picture.step,
    "overlap-pipeline": overlap_picture.pipeline,
    "overlap-load": overlap_picture.load,
    "routing": routing_picture.figure,
    "day": day_picture.figure,
    "overload": overload_picture.figure,
    "disaggregation": fleet_pictures.apart,
    "two-kinds-of-gpus": fleet_pictures.two_kinds,
    "trust": trust_picture.figure,
    "plan": plan,
    "sweep": sweep,
    "explain": explain,
    "compare": compare,
}


def made() -> Iterator[tuple[str, Picture]]:
    """Every picture and its name."""
    for name, draw in PICTURES.items():
        yield name, draw()
    for name, picture in gallery.all_figures():
        yield f"figures/{name}", picture


def main(folder: Path = FOLDER) -> None:
    for name, picture in made():
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        print(picture.save(path), file=sys.stderr)


if __name__ == "__main__":
    main()
