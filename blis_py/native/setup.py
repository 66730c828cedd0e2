"""A process of its own for mypyc and setuptools, which take over command line, output and exit code.

    python -m blis_py.native.setup SCRATCH SOURCE... -- SOURCE...

The libraries come to SCRATCH/library; SCRATCH/mypy.ini is the configuration of mypy. The sources behind the
dashes are optimised less, which takes the C compiler half the time.
"""

from __future__ import annotations

import sys

from mypyc.build import mypycify
from setuptools import setup  # type: ignore[import-untyped]


def main(scratch: str, *sources: str) -> None:
    dashes = sources.index("--")
    often, seldom = list(sources[:dashes]), list(sources[dashes + 1 :])
    extensions = mypycify(
        ["--config-file", f"{scratch}/mypy.ini", *often, *seldom],
        opt_level="2",
        debug_level="0",
        target_dir=scratch,
        separate=[(often, "often"), (seldom, "seldom")],  # two libraries, compiled side by side
    )
    for extension in extensions:
        # Python rounds after every operation. (The extensions share one list.)
        level = ["-O1"] if extension.name == "seldom__mypyc" else []
        extension.extra_compile_args = [*extension.extra_compile_args, "-ffp-contract=off", *level]
    places = ["--build-lib", f"{scratch}/library", "--build-temp", scratch]
    setup(
        name="native",
        packages=[],
        ext_modules=extensions,
        script_args=["build_ext", *places, "--parallel", "2"],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
