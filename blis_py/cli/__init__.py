"""The `blis` command: stdout is data, stderr is talk.

Exit codes: 0, 1 failure, 2 bad input, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from blis_py.cli.given import given
from blis_py.cli.verbs import FURTHER, VERBS, spread
from blis_py.errors import InputError
from blis_py.stopping import INTERRUPTED, TERMINATED, Terminated
from blis_py.version import __version__

OK, FAILURE, BAD_INPUT = 0, 1, 2

_NOT_YET = ("observe", "report")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts sooner; no linear algebra to share
    try:
        code = _dispatch(spread(list(sys.argv[1:] if argv is None else argv)) or ["--help"])
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
        from blis_py.cli.crash import report

        return _complain(report(error), FAILURE)
    if code in (INTERRUPTED, TERMINATED):
        print("interrupted" if code == INTERRUPTED else "terminated", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    """Runs the verb."""
    if os.environ.get("_BLIS_COMPLETE"):
        from blis_py.cli.completion import complete

        return complete()
    verb = arguments[0]
    if arguments == ["--version"]:  # without importing what every verb can do
        print(__version__)
        return OK
    if verb in _NOT_YET:
        raise InputError(f"`blis {verb}` is not available yet", fix=_there_are())
    if verb == "engine":
        from blis_py.cli.engine import run_engine

        return run_engine(arguments[1:])
    if verb == "profile":
        from blis_py.cli.profile import run_profile

        return run_profile(arguments[1:])
    if verb in VERBS:
        return _run_verb(verb, arguments[1:])
    if not verb.startswith("-"):
        from difflib import get_close_matches

        near = get_close_matches(verb, (*VERBS, *FURTHER), n=1)
        raise InputError(
            f"no such command {verb!r}", fix=f"did you mean {near[0]}?" if near else _there_are()
        )
    from blis_py.cli.apps import everything, launch

    return launch(everything(), arguments, "blis")


def _run_verb(verb: str, arguments: list[str]) -> int:
    """Only this one is imported, and typer only if it is needed."""
    module = import_module(f"blis_py.cli.{verb}")
    flags = given(arguments, module.GROUPS)
    if flags is not None:
        return getattr(module, verb)(flags) or OK
    from blis_py.cli.apps import app_of, launch

    return launch(app_of([verb], arguments), arguments, f"blis {verb}")


def _there_are() -> str:
    return f"there are {', '.join((*VERBS, *FURTHER))}"


def _cannot(error: OSError) -> int:
    """A file could not be read or written; where none is named, it is standard output."""
    if error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again in the end
        if isinstance(error, BrokenPipeError):
            return FAILURE  # whoever read it has seen enough
    return _complain(f"{error.filename or 'standard output'}: {error.strerror or error}", FAILURE)


def _complain(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
