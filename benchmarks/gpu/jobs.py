"""What a campaign consists of: jobs, each worth its time alone, and their parts in order.

The limits of the parts of a job may sum to more than its own: a quick part leaves time to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = "benchmarks/gpu/"
MEASURED = ("qwen3-8b", "llama-3.1-8b", "qwen3-0.6b", "llada2.0-mini")
"""Models whose kernels are compiled ahead, beside those of the tests."""
AR, DIFFUSION = "engine/tiny/checkpoints/ar", "engine/tiny/checkpoints/diffusion"
_LIBRARY = "from engine.kernels.cuda import build; print(build.library())"
_ONE_KERNEL = ("--target", "cuda:90", "--model", "qwen3-0.6b", "--only", "rms_norm", "--jobs", "1")


@dataclass(frozen=True)
class Part:
    """One process.

    `{seconds}` in an argument stands for the time the part has, less what beginning and ending take,
    `{cores}` for the processor cores there are. A script of this folder also receives the device and where
    its rows go.
    """

    name: str
    command: tuple[str, ...]
    """Behind the Python interpreter."""
    limit_s: float
    on_cpu: tuple[str, ...] | None = None
    """Instead of `command` where the campaign is rehearsed without a GPU; `None` = left out there."""
    compiles: bool = False
    """Compiled kernels are packed when it is over."""


@dataclass(frozen=True)
class Job:
    """Parts that are run one after another, and the time they have together."""

    brings: str
    limit_s: float
    parts: tuple[Part, ...]


def script(name: str, limit_s: float, *arguments: str, on_cpu: tuple[str, ...] = ()) -> Part:
    """A script of this folder under its own name; on a CPU with other arguments."""
    path = f"{SCRIPTS}{name}.py"
    return Part(name.replace("_", "-"), (path, *arguments), limit_s, (path, *on_cpu))


def gpu_tests(limit_s: float) -> tuple[Part, ...]:
    """The tests that need a GPU, file by file; without one they are skipped, all in one process."""
    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    paths = [str(file.relative_to(ROOT)) for file in files]
    parts = [
        Part(
            f"tests-{file.stem.removeprefix('test_').removesuffix('_gpu')}",
            (f"{SCRIPTS}gpu_tests.py", path),
            limit_s,
        )
        for file, path in zip(files, paths, strict=True)
    ]
    on_cpu = (f"{SCRIPTS}gpu_tests.py", *paths, "--processes", "1")
    return (replace(parts[0], on_cpu=on_cpu), *parts[1:])


def profile(model: str, limit_s: float, on_cpu: bool = False) -> Part:
    """A profile that goes as far as its time reaches."""
    path, budget = f"{SCRIPTS}profile_campaign.py", ("--budget", "{seconds}")
    small = ("--quick", "--rounds", "1", "--max-num-seqs", "2", "--num-kv-blocks", "120")
    rehearsed = (path, "--model", AR, *budget, "--max-model-len", "256", *small)
    command = (path, "--model", model, *budget)
    return Part(f"profile-{model}", command, limit_s, rehearsed if on_cpu else None)


JOBS: dict[str, Job] = {
    "A": Job(
        "the machine, its bandwidth, compiled kernels, and whether the tests pass",
        360,
        (
            script("probe", 40),
            script("bandwidth", 40),
            Part(
                "warm",
                ("-m", "engine.kernels.warm", "--jobs", "{cores}", "--model", *MEASURED, AR, DIFFUSION),
                120,
                ("-m", "engine.kernels.warm", *_ONE_KERNEL),
                True,
            ),
            Part("cuda-library", ("-c", _LIBRARY), 80, compiles=True),
            *gpu_tests(90),
        ),
    ),
    "D": Job(
        "step-time profiles, and block diffusion",
        295,
        (
            profile("qwen3-8b", 165, on_cpu=True),
            profile("qwen3-0.6b", 75),
            script(
                "diffusion",
                80,
                *("--model", "llada2.0-mini", "--slots", "4", "16"),
                on_cpu=("--model", DIFFUSION, "--slots", "2", "--requests-per-slot", "1"),
            ),
        ),
    ),
    "C": Job(
        "whole decode steps beside their floor, and attention under other launch settings",
        230,
        (
            script(
                "decode_steps",
                160,
                *("--model", "qwen3-8b", "llama-3.1-8b", "qwen3-0.6b"),
                on_cpu=("--model", AR, "--batch", "1", "2", "--context", "24", "--steps", "6"),
            ),
            replace(script("attention", 90, "--only", "sweep", on_cpu=("--only", "sweep")), name="sweep"),
        ),
    ),
    "B": Job(
        "attention and every other kernel beside its floor",
        185,
        (script("attention", 110), script("ops", 110)),
    ),
    "E": Job(
        "both loops, throughput beside plain generation, kernels by their time, memory errors and races",
        245,
        (
            script(
                "overlap",
                80,
                *("--model", "qwen3-8b", "qwen3-0.6b"),
                on_cpu=("--model", AR, "--batch", "2", "--context", "24", "--steps", "6"),
            ),
            script(
                "throughput",
                100,
                *("--model", "qwen3-8b", "qwen3-0.6b"),
                on_cpu=("--model", AR, "--requests", "4", "--batch", "2", "--longest", "16"),
            ),
            script(
                "kernel_profile",
                60,
                *("--model", "qwen3-8b"),
                on_cpu=("--model", AR, "--batch", "2", "--context", "16", "--prompt", "32", "--steps", "2"),
            ),
            script("sanitizer", 150, "--seconds", "32", on_cpu=("--tool", "memcheck")),
        ),
    ),
}
"""In the order of their worth."""
CALLS = (("A",), ("D", "C"), ("B", "E"))
"""Jobs that go together where every call starts a machine of its own."""
CALL_S, START_S, LEASE_S = 540.0, 120.0, 1680.0
"""What a call may take, what starting a machine takes of the lease, and the lease."""
DEFAULT = tuple(name for call in CALLS for name in call)
