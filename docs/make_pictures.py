"""Makes every picture in the README and the guides, by running the program: `make docs`.

The same code gives the same bytes: runs are seeded, and the files carry no metadata.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import architecture_picture
import autopsy_picture
import diffusion_picture
import gallery
import overlap_picture
import trust_picture

import blis_py as blis
from blis_py.figures import Picture

_BUSY = {"workload": "mixed-slo", "model": "qwen3-14b", "num_instances": 3, "num_requests": 2000}
FOLDER = Path(__file__).resolve().parent / "img"


def overview() -> Picture:
    """The run of `make run`: an hour of mixed traffic on 4 × H100, by priority."""
    settings = {"workload": "mixed-slo", "model": "qwen3-14b", "gpu": "h100"}
    return blis.run(**settings, num_instances=4, scheduler="priority-fcfs").plot.overview()


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
    "trust": trust_picture.figure,
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
