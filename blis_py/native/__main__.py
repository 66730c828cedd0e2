"""`python -m blis_py.native`: makes the native code, unless it is up to date."""

import sys
from contextlib import suppress

from blis_py.errors import InputError
from blis_py.native import Damaged, current
from blis_py.native.build import build


def main() -> int:
    """Compile the inner loop and return the exit code."""
    with suppress(Damaged):
        if current():
            return 0
    print("compiling the simulator's inner loop (once; up to a minute) …", file=sys.stderr, flush=True)
    try:
        build()
    except (InputError, OSError) as error:
        print(f"no native code, the simulator stays interpreted: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
