"""Makes every picture in the README and the guides, by running the program: `make docs`.

The same code gives the same bytes: runs are seeded, and the files carry no metadata.
"""

from __future__ import annotations

import sys
from pathlib import Path

import blis_py as blis
from blis_py.report import plots

FOLDER = Path(__file__).resolve().parent / "img"


def overview(folder: Path) -> Path:
    """The run of `make run`: an hour of mixed traffic on 4 × H100, by priority."""
    result = blis.run(
        workload="mixed-slo", model="qwen3-14b", gpu="h100", num_instances=4, scheduler="priority-fcfs"
    )
    path = folder / "overview.png"
    plots.overview(result.record).savefig(path, dpi=plots.DPI, metadata={"Software": None})
    return path


def diffusion(folder: Path) -> Path:
    """Block diffusion: request slots over rounds in both modes, and what FDFO saves."""
    from diffusion_picture import figure

    path = folder / "diffusion.png"
    figure().savefig(path, dpi=plots.DPI, metadata={"Software": None})
    return path


def autopsy(folder: Path) -> Path:
    """A recorded run of the engine, predicted rightly and with a mistake, and what the autopsy says of it."""
    from autopsy_picture import figure

    path = folder / "autopsy.png"
    figure().savefig(path, dpi=plots.DPI, metadata={"Software": None})
    return path


def journey(folder: Path) -> Path:
    """The parts of a cluster, and the way through them."""
    from architecture_picture import journey

    path = folder / "journey.png"
    journey().savefig(path, dpi=plots.DPI, metadata={"Software": None})
    return path


def step(folder: Path) -> Path:
    """The parts of a step."""
    from architecture_picture import step

    path = folder / "step.png"
    step().savefig(path, dpi=plots.DPI, metadata={"Software": None})
    return path


def overlap_pipeline(folder: Path) -> Path:
    """Host and device in recorded steps of the engine, synchronous and overlapped."""
    from overlap_picture import pipeline

    path = folder / "overlap-pipeline.png"
    pipeline().savefig(path, dpi=plots.DPI, metadata={"Software": None})
    return path


def overlap_load(folder: Path) -> Path:
    """TTFT, TPOT and throughput over the rate of requests, synchronous and overlapped."""
    from overlap_picture import load

    path = folder / "overlap-load.png"
    load().savefig(path, dpi=plots.DPI, metadata={"Software": None})
    return path


def routing(folder: Path) -> Path:
    """Prefix hits and waiting over the rate of requests, by routing policy."""
    from routing_picture import figure

    path = folder / "routing.png"
    figure().savefig(path, dpi=plots.DPI, metadata={"Software": None})
    return path


PICTURES = (overview, diffusion, autopsy, journey, step, overlap_pipeline, overlap_load, routing)


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        print(picture(folder), file=sys.stderr)


if __name__ == "__main__":
    main()
