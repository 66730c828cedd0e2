"""`blis`, which is `python -m blis_py`."""

import sys

from blis_py import stopping


def main() -> int:
    """Run the command line of this process and returns the exit code."""
    stopping.listen()  # before anything is imported that takes time
    code = _run()
    stopping.ignore()
    return code


def _run() -> int:
    import gc
    import os

    from blis_py import native

    simulates = sys.argv[1:2] in (["run"], ["replay"])
    if simulates or sys.argv[1:2] in (["explain"], ["plan"], ["sweep"]):
        native.activate()
    if simulates:
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them takes long
        gc.disable()  # what such a process leaves behind in cycles is little, and soon it is over
    from blis_py import cli

    code = cli.main()
    if simulates:
        gc.freeze()  # so that the interpreter does not look through all of it before it ends
    return code


if __name__ == "__main__":
    sys.exit(main())
