"""A process of its own for mypyc and setuptools, which take over command line, output and exit code.

    python -m blis_py.native.setup SCRATCH SOURCE...

The libraries come to SCRATCH/library; SCRATCH/mypy.ini is the configuration of mypy.
"""

from __future__ import annotations

import sys

from mypyc.build import mypycify
from setuptools import setup  # type: ignore[import-untyped]


def main(scratch: str, *sources: str) -> None:
    core = [source for source in sources if "core" in source]
    others = [source for source in sources if "core" not in source]
    extensions = mypycify(
        ["--config-file", f"{scratch}/mypy.ini", *sources],
        opt_level="2",
        debug_level="0",
        target_dir=scratch,
        separate=[(core, "core"), (others, "others")],  # two libraries, compiled side by side
    )
    for extension in extensions:
        # Python rounds after every operation. (The extensions share one list.)
        extension.extra_compile_args = [*extension.extra_compile_args, "-ffp-contract=off"]
    places = ["--build-lib", f"{scratch}/library", "--build-temp", scratch]
    setup(
        name="native",
        packages=[],
        ext_modules=extensions,
        script_args=["build_ext", *places, "--parallel", "2"],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
