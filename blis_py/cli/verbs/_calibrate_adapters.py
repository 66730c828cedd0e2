"""`blis calibrate --adapter-reference`: runs with LoRA adapters against a reference's totals, as in BLIS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.verbs._execute import say
from blis_py.errors import InputError
from blis_py.result import to_json

if TYPE_CHECKING:
    from blis_py.calibrate.adapter_reference import AdapterComparison

_REFERENCE, _BLIND, _LIMIT = "--adapter-reference", "--sim-metrics-blind", "--adapter-mape-threshold"
_METRICS = "--sim-metrics"
ADAPTER_FLAGS = (
    Flag(
        _REFERENCE,
        str,
        "",
        "Compare --sim-metrics of a BLIS run with LoRA adapters with this reference: mean TTFT, throughput.",
        metavar="FILE",
    ),
    Flag(_BLIND, str, "", "With it: the same run without the cost of adapters.", metavar="FILE"),
    Flag(_LIMIT, float, "", "With it: limit of the error, a share. Default 0.2."),
)
_USED = {_REFERENCE, _BLIND, _LIMIT, _METRICS, "--report", "--format"}


def concerns_adapters(flags: Flags) -> bool:
    """Whether the comparison is that with an adapter reference.

    Raises:
        InputError: a flag of that comparison without its reference.
    """
    for name in (_BLIND, _LIMIT):
        if name in flags and _REFERENCE not in flags:
            raise InputError(f"belongs to {_REFERENCE}", key=name, fix="drop it, or give the reference")
    return _REFERENCE in flags


def print_adapters(flags: Flags, style: str) -> None:
    """Compare, print, and write the report."""
    from blis_py.outputs.staging import Outputs

    comparison = _compared(flags)
    if style == "json":
        sys.stdout.write(to_json(comparison.as_dict()))
    else:
        print(f"{comparison.model or flags[_REFERENCE]}: runs with LoRA adapters against the reference")
        print(*comparison.metrics, sep="\n")
    with Outputs() as outputs:
        if "--report" in flags:
            outputs.file(flags["--report"]).write_text(to_json(comparison.as_dict()), encoding="utf-8")


def _compared(flags: Flags) -> AdapterComparison:
    from blis_py.calibrate.adapter_reference import THRESHOLD, compare_adapters

    if _METRICS not in flags:
        fix = f"give {_METRICS} FILE, written by BLIS with --metrics-path"
        raise InputError("needs the run with adapters", key=_METRICS, fix=fix)
    if "--plot" in flags:
        raise InputError("draws requests; a reference has totals alone", key="--plot", fix="drop it")
    limit = flags.get(_LIMIT, THRESHOLD)
    if not 0 < limit < 1e12:
        raise InputError("must be a number above 0", key=_LIMIT, value=limit)
    unused = [name for name in flags if name not in _USED]
    if unused:
        say(f"note: {_REFERENCE} compares totals alone; not used: {', '.join(unused)}")
    blind = Path(flags[_BLIND]) if _BLIND in flags else None
    comparison = compare_adapters(Path(flags[_REFERENCE]), Path(flags[_METRICS]), blind, limit)
    if blind is not None:
        for name in comparison.without_ratio:
            say(f"note: no ratio of {name}: it is 0 without adapters")
    return comparison
