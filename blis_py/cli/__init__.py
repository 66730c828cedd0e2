"""The `blis` command: stdout is data, stderr is talk.

Exit codes: 0, 1 failure, 2 bad input, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from blis_py.cli._dispatch import dispatch
from blis_py.cli.program import BLIS
from blis_py.errors import InputError
from blis_py.outputs.stopping import INTERRUPTED, TERMINATED, Terminated
from blis_py.version import __version__

OK, FAILURE, BAD_INPUT = 0, 1, 2

COMPLETION_VARIABLE = "_BLIS_COMPLETE"
"""In the environment while a shell completes a command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts sooner; no linear algebra to share
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
    except InputError as error:
        return _complain(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except OSError as error:
        return _cannot(error)
    except MemoryError as error:
        return _complain(f"not enough memory: {error}", FAILURE)
    except Exception as error:
        from blis_py.cli._crash import report

        return _complain(report(error), FAILURE)
    if code in (INTERRUPTED, TERMINATED):
        print("interrupted" if code == INTERRUPTED else "terminated", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    """Run the verb."""
    if COMPLETION_VARIABLE in os.environ:
        from blis_py.cli.completion import complete

        return complete()
    verb = next(iter(arguments), "")
    if arguments == ["--version"]:
        print(__version__)
        return OK
    if verb == "engine":
        from blis_py.cli.engine import run_engine

        return run_engine(arguments[1:])
    if verb in ("--show-completion", "--install-completion"):
        from blis_py.cli.completion import set_up

        return set_up(arguments)
    return dispatch(BLIS, arguments)


def _cannot(error: OSError) -> int:
    """A file could not be read or written; where none is named, it is standard output."""
    if error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again in the end
        if isinstance(error, BrokenPipeError):
            return FAILURE  # the reader closed the pipe: no message
    return _complain(f"{error.filename or 'standard output'}: {error.strerror or error}", FAILURE)


def _complain(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
