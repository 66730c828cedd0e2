"""Runs one reader or one command on a file, and says how it went."""

from __future__ import annotations

import contextlib
import io
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from blis_py.cli import main
from blis_py.errors import InputError

PATIENCE_S = 10.0


class Hang(BaseException):
    """It takes too long."""


@dataclass(frozen=True)
class Verdict:
    """`fine` and `refused` are good ends."""

    end: str
    """fine, refused, traceback, hang, exit code, noise"""
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.end in ("fine", "refused")


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Raises `Hang` in the midst of what takes longer: of the processor, for the machine may be busy with
    others, or sixty times as long by the clock on the wall, for something may be waited for in vain.
    """

    def give_up(number: int, frame: FrameType | None) -> None:
        raise Hang

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, 60 * seconds),
    )
    before = [signal.signal(number, give_up) for number, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def of_reader(read: Callable[[], Any], seconds: float = PATIENCE_S) -> Verdict:
    """A reader gives data or raises `InputError` of one line."""
    try:
        with patience(seconds), warnings.catch_warnings():
            warnings.simplefilter("error")
            read()
    except InputError as error:
        text = str(error)
        if not text.isprintable() or len(text) > 4000:
            return Verdict("noise", f"message of {len(text)} characters: {text[:200]!r}")
        return Verdict("refused", text)
    except Hang:
        return Verdict("hang")
    except BaseException:
        return Verdict("traceback", traceback.format_exc())
    return Verdict("fine")


def of_command(arguments: list[str], seconds: float = PATIENCE_S, codes: tuple[int, ...] = (0, 2)) -> Verdict:
    """A command ends with 0 and data on stdout, or with 2, nothing there, and one line that says why."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with patience(seconds), warnings.catch_warnings(), contextlib.redirect_stdout(out):
            warnings.simplefilter("error")
            with contextlib.redirect_stderr(err):
                code = main(arguments)
    except Hang:
        return Verdict("hang")
    except BaseException:
        return Verdict("traceback", traceback.format_exc())
    return judged(code, out.getvalue(), err.getvalue(), codes)


def judged(code: int, out: str, err: str, codes: tuple[int, ...] = (0, 2)) -> Verdict:
    """What exit code and output of a command come to."""
    last = err.splitlines()[-1] if err else ""
    if "Traceback" in err or "Warning" in err:
        return Verdict("noise", err[-2000:])
    if code not in codes:
        return Verdict("exit code", f"{code}: {err[-500:]}")
    if code == 2 and (out or not last.startswith("error: ")):
        return Verdict("noise", f"stdout {out[:200]!r}, stderr ends with {last!r}")
    return Verdict("fine") if code == 0 else Verdict("refused", last)
