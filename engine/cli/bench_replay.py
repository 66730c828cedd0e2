"""`blis engine bench replay`: serve a workload spec or a trace in real time."""

from __future__ import annotations

import sys

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.progress import Progress
from engine.cli.bench_throughput import OUTPUT, finish
from engine.cli.served import FORM, LOAD, SERVED, make_ready, measuring

PACE = Flag("--as-fast-as-possible", bool, "", "All requests at once, instead of at their times.")
GROUPS = (("Workload", (*LOAD, PACE)), FORM, *SERVED, ("Output", OUTPUT))


def replay(flags: Flags) -> None:
    """Serve a workload spec or trace, with prompts made up; the result in the shape of `vllm bench serve`.

    Requests come at their times whatever the engine does.
    """
    from blis_py.report.vllm import vllm_result
    from engine.cli.record import run_record
    from engine.driver import serve

    at_once = PACE.name in flags
    ready = make_ready(flags, at_once=at_once)
    engine = ready.engine
    with Progress(sys.stderr) as progress, measuring(engine.clock):
        outcomes = serve(engine, ready.table, ready.prompts, structured=ready.structured, progress=progress)
    record = run_record(engine, ready.table, outcomes)
    record.config = {"model": ready.config.model}
    rate = "inf" if at_once else ready.run.workload.rate
    result = vllm_result(record, detailed=False, request_rate=rate)
    more = {"clock": engine.clock.name, "kernels_compiled": engine.compilations.while_serving.kernels}
    finish({**result, **more}, flags, engine.recorder.write)
