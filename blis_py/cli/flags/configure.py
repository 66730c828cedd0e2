"""Configuration of a run from flags as given."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from blis_py.cli.flags import vllm_flags
from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.launched import launched, print_launch
from blis_py.cli.flags.limits import with_limits
from blis_py.cli.flags.options import COMMON, WORKLOAD
from blis_py.config.loader import load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError

_SETTINGS: tuple[Flag, ...] = (*(flag for _, flags in COMMON for flag in flags), *WORKLOAD)
_FLAGS = {spelling: flag for flag in _SETTINGS for spelling in flag.spellings if flag.key}


def overrides(flags: Flags, without: Sequence[str] = ()) -> list[tuple[str, str, Any]]:
    """The settings that flags make, and those of a launch file under them, as (flag, key, value).

    Args:
        without: keys that the command chooses itself, whatever a launch file says.
    """
    given = [
        (name, _FLAGS[name].key, _FLAGS[name].value(name, value))
        for name, value in flags.items()
        if name in _FLAGS
    ]
    given = vllm_flags.widened([*with_limits(given, flags), *vllm_flags.settings(flags)], flags)
    return [*launched(flags, given, without), *given]


def configure(flags: Flags) -> RunConfig:
    """The configuration file (if any) with everything else laid over it.

    Raises:
        InputError: a flag or a key of the file is unknown or does not fit, or flags contradict each other.
    """
    print_launch(flags)
    for note in vllm_flags.notes(flags):
        print(f"note: {note}", file=sys.stderr)
    bundle = flags.get("--policy-config")
    config = load_config(
        flags.get("--config"), overrides(flags), sets=flags.get("--set", ()), policy_config=bundle
    )
    if "--summarize-trace" in flags and config.routing.trace_level == "none":
        fix = "add --trace-level decisions"
        raise InputError("needs decisions that are kept", key="--summarize-trace", fix=fix)
    if bundle is not None:
        from blis_py.config.policy import bundle_notes

        by_target = config.gateway.flow_control and config.gateway.dispatch_order == "slo-deadline"
        for note in bundle_notes(bundle, config.routing.policy, config.admission.policy, by_target):
            print(f"note: {note}", file=sys.stderr)
    return config
