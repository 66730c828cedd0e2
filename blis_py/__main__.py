"""The command `blis`, equal to `python -m blis_py`."""

import sys

from blis_py.outputs import stopping


def main() -> int:
    """Run the command line of this process and return the exit code."""
    stopping.listen()  # before any slow import
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
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # scanning for plugins is slow
        gc.disable()  # a short-lived process leaves few reference cycles
    from blis_py import cli

    code = cli.main()
    if simulates:
        gc.freeze()  # spares the interpreter a full collection at exit
    return code


if __name__ == "__main__":
    sys.exit(main())
