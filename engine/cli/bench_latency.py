"""`blis engine bench latency`: the time of one batch from its prompts to its last tokens."""

from __future__ import annotations

import numpy as np

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.requests.table import RequestTable
from engine.cli.bench_throughput import OUTPUT, complete, finish
from engine.cli.options import ENGINE, engine_config

WORKLOAD = (
    Flag("--batch-size", int, "", "Requests at a time. Default 8."),
    Flag("--input-len", int, "", "Tokens of a prompt. Default 32."),
    Flag("--output-len", int, "", "Tokens of an output. Default 128."),
    Flag("--num-iters", int, "", "Measured repetitions. Default 10."),
    Flag("--num-iters-warmup", int, "", "Repetitions before these. Default 2."),
)
GROUPS = (("Workload", WORKLOAD), *ENGINE, ("Output", OUTPUT))
_PERCENTAGES = (10, 25, 50, 75, 90, 99)


def latency(flags: Flags) -> None:
    """Latency of one batch, in the shape of `vllm bench latency`."""
    from engine.build import build_engine
    from engine.driver import serve
    from engine.synthetic import synthetic_prompts

    batch = flags.get("--batch-size", 8)
    engine = build_engine(engine_config(flags))
    table = RequestTable.build(
        np.zeros(batch, dtype=np.int64),
        np.full(batch, flags.get("--input-len", 32)),
        np.full(batch, flags.get("--output-len", 128)),
    )
    latencies = []
    warm_up = flags.get("--num-iters-warmup", 2)
    for repetition in range(warm_up + flags.get("--num-iters", 10)):
        prompts = synthetic_prompts(table, engine.vocab_size, repetition)
        engine.reset()
        complete(serve(engine, table, prompts, at_once=True))
        if repetition >= warm_up:
            latencies.append(engine.recorder.log().steps["end_ns"][-1] / 1e9)
    result: dict[str, object] = {
        "avg_latency": float(np.mean(latencies)),
        "latencies": latencies,
        "percentiles": {str(p): float(np.percentile(latencies, p)) for p in _PERCENTAGES},
        "clock": engine.clock.name,
        "kernels_compiled": engine.compilations.while_serving.kernels,
    }
    finish(result, flags, engine.recorder.write)
