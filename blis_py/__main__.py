"""`blis`, which is `python -m blis_py`."""

import gc
import sys

from blis_py import native


def main() -> int:
    """Runs the command line of this process and returns the exit code."""
    if sys.argv[1:2] in (["run"], ["replay"]):
        native.activate()
        gc.disable()  # what such a process leaves behind in cycles is little, and soon it is over
    from blis_py import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
