"""`blis engine bench replay`: a workload spec or a trace, served as it comes."""

from __future__ import annotations

import sys
from dataclasses import replace

from blis_py.cli.options import TRACE, WORKLOAD, Flag, Flags
from blis_py.cli.progress import Progress
from engine.cli.bench_throughput import OUTPUT, finish
from engine.cli.options import ENGINE, engine_config, say

PACE = (
    Flag("--as-fast-as-possible", bool, "", "All requests at once, instead of at their times."),
    Flag("--no-warm-up", bool, "", "Measure from the first step on."),
    Flag("--horizon", str, "horizon", "Generate requests up to this time: 60s, 10m."),
)
GROUPS = (("Workload", (*TRACE, *WORKLOAD, *PACE)), *ENGINE, ("Output", OUTPUT))
_WARM_UP_REQUESTS = 4


def replay(flags: Flags) -> None:
    """Serve a workload spec or trace, with prompts made up; the result in the shape of `vllm bench serve`.

    Requests come at their times whatever the engine does.
    """
    import numpy as np

    from blis_py.cli.configure import configure
    from blis_py.report.vllm import vllm_result
    from blis_py.sources import requests
    from engine.build import build_engine
    from engine.cli.record import run_record
    from engine.driver import serve
    from engine.synthetic import synthetic_prompts

    workload = {flag.name for flag in (*TRACE, *WORKLOAD)} | {"--horizon", "--seed"}
    run = configure({name: value for name, value in flags.items() if name in workload})
    config = engine_config(flags)
    table = requests(run)
    at_once = "--as-fast-as-possible" in flags
    if at_once:
        table = replace(
            table,
            arrival_ns=np.zeros_like(table.arrival_ns),
            deadline_ns=np.where(table.deadline_ns < 0, -1, table.deadline_ns - table.arrival_ns),
        )
    engine = build_engine(config)
    prompts = synthetic_prompts(table, engine.vocab_size, config.seed)
    say(f"KV cache: {engine.scheduler.config.num_kv_blocks:,} blocks ({engine.recorder.meta['kv_capacity']})")
    if "--no-warm-up" not in flags:
        few = table.limited(_WARM_UP_REQUESTS)
        serve(engine, replace(few, arrival_ns=np.zeros_like(few.arrival_ns)), prompts)
        engine.reset()
    else:
        engine.clock.restart()
    with Progress(sys.stderr) as progress:
        outcomes = serve(engine, table, prompts, progress=progress)
    record = run_record(engine, table, outcomes)
    record.config = {"model": config.model}
    result = vllm_result(record, detailed=False, request_rate="inf" if at_once else run.workload.rate)
    finish({**result, "clock": engine.clock.name}, flags, engine.recorder.write)
