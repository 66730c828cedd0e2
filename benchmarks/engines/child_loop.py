"""Loop of a child process: scenarios in, traces out, one JSON object a line, within limits.

Runs in a bare interpreter, so this file imports the standard library alone.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks.engines.scenario import Scenario, StepTrace

_SCENARIO_S = 60
"""Of processor time, so that other processes do not matter."""
_LAST_CHARACTERS = 600


class ScenarioTimeout(BaseException):
    """A scenario took too long; no engine's `except Exception` swallows it."""


def _interrupt(signal_number: int, frame: Any) -> None:
    raise ScenarioTimeout(f"took longer than {_SCENARIO_S} s")


def limit_memory(max_bytes: int) -> None:
    """Limit the address space of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))


def serve(drive: Callable[[Scenario], list[StepTrace]], about: dict[str, Any]) -> None:
    """Answer each scenario on stdin with its trace on stdout, until stdin ends.

    Args:
        drive: run one scenario.
        about: first line of the output.
    """
    replies, sys.stdout = sys.stdout, sys.stderr  # what an engine prints is no reply
    signal.signal(signal.SIGPROF, _interrupt)
    replies.write(json.dumps(about) + "\n")
    replies.flush()
    for line in sys.stdin:
        replies.write(json.dumps(_outcome(drive, json.loads(line))) + "\n")
        replies.flush()


def _outcome(drive: Callable[[Scenario], list[StepTrace]], scenario: Scenario) -> Any:
    signal.setitimer(signal.ITIMER_PROF, _SCENARIO_S)
    try:
        return drive(scenario)
    except (Exception, ScenarioTimeout) as error:  # a scenario that fails is a result, too
        where = traceback.format_exc()[-_LAST_CHARACTERS:]
        return {"error": f"{type(error).__name__}: {error}", "where": where}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
