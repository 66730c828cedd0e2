"""The `blis` command: stdout is data, stderr is talk; exits 0, 1 failure, 2 bad input, 130 interrupted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from blis_py.cli.replay import replay
from blis_py.cli.run import run
from blis_py.errors import InputError

OK, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

_NOT_YET = ("observe", "calibrate", "convert", "compose", "sweep", "plan", "explain", "report", "engine")
_COMMAND_LINE_ERROR: type[BaseException] = typer.BadParameter.__mro__[2]
"""The base of what typer raises about a command line; its public name depends on typer's version."""

app = typer.Typer(
    name="blis",
    help="Simulate clusters that serve large language models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.command("run")(run)
app.command("replay")(replay)


@app.callback(invoke_without_command=True)
def _blis(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from blis_py import __version__

        print(__version__)
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit code."""
    arguments = spread(list(sys.argv[1:] if argv is None else argv))
    try:
        if arguments and arguments[0] in _NOT_YET:
            return _complain(f"`blis {arguments[0]}` is not available yet; there are `run` and `replay`")
        return app(args=arguments, prog_name="blis", standalone_mode=False) or OK
    except InputError as error:
        return _complain(str(error))
    except _COMMAND_LINE_ERROR as error:
        return _complain(_one_line(error))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        _complain(f"{error.filename or 'output'}: {error.strerror or error}")
        return FAILURE


def spread(arguments: list[str], many: Sequence[str] = ("--goodput", "--slo")) -> list[str]:
    """`--goodput ttft:500 tpot:50`, as vLLM takes it, with the flag before every value."""
    result: list[str] = []
    flag = None
    for argument in arguments:
        if argument.startswith("-"):
            flag = argument if argument in many else None
        elif flag is not None and result[-1] != flag:
            result.append(flag)
        result.append(argument)
    return result


def _complain(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT


def _one_line(error: BaseException) -> str:
    near = getattr(error, "possibilities", None)
    message: str = error.message if near else error.format_message()  # type: ignore[attr-defined]
    message = message[:1].lower() + message[1:].rstrip(".")
    return f"{message}; did you mean {' or '.join(sorted(near))}?" if near else message
