"""`blis engine bench throughput`: tokens per second with all requests present from the start."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.progress import Progress
from blis_py.errors import InputError
from blis_py.outputs.staging import Outputs
from blis_py.requests.table import RequestTable
from blis_py.traces.steplog import StepLog, write_step_log
from engine.cli import kinds
from engine.cli.compare_overlap import COMPARE, compare
from engine.cli.options import ENGINE, STEP_LOG, say
from engine.sequence import Sequence as Running

WORKLOAD = (
    Flag("--num-prompts", int, "", "Requests. Default 100."),
    Flag("--input-len", int, "", "Tokens of a prompt. Default 128."),
    Flag("--output-len", int, "", "Tokens of an output. Default 128."),
    Flag("--prefix-len", int, "", "Further tokens in front that all prompts share. Default 0."),
)
OUTPUT = (Flag("--output-json", str, "", "Write the result to a file as well.", metavar="FILE"), STEP_LOG)
GROUPS = (("Workload", (*WORKLOAD, COMPARE)), *ENGINE, *kinds.GROUPS, ("Output", OUTPUT))


def throughput(flags: Flags) -> None:
    """Offline throughput, in the shape of `vllm bench throughput`."""
    if COMPARE.name in flags:
        finish(compare(flags, measured), flags, write_log=_no_log)
    else:
        result, log = measured(flags)
        finish(result, flags, partial(write_step_log, log))


def measured(flags: Flags) -> tuple[dict[str, object], StepLog]:
    """Serve the requests after a short warm-up; return the result and the step log."""
    from engine.driver import serve
    from engine.engine import LLMEngine
    from engine.synthetic import synthetic_prompts

    count, shared = flags.get("--num-prompts", 100), flags.get("--prefix-len", 0)
    inputs, outputs = flags.get("--input-len", 128) + shared, flags.get("--output-len", 128)
    engine = kinds.build(flags)
    table = RequestTable.build(
        np.zeros(count, dtype=np.int64),
        np.full(count, inputs),
        np.full(count, outputs),
        content=np.zeros(count, dtype=np.int64) if shared else None,
        contents=((("shared", shared),),) if shared else (),
    )
    prompts = synthetic_prompts(table, engine.vocab_size, flags.get("--seed", 0))
    say(f"KV cache: {engine.scheduler.config.num_kv_blocks:,} blocks ({engine.recorder.meta['kv_capacity']})")

    def answer(count: int, progress: Progress | None = None) -> Sequence[Running | InputError]:
        return serve(engine, table.limited(count), prompts[:count], at_once=True, progress=progress)

    answer(min(count, 4))  # warm-up
    engine.reset()
    with Progress(sys.stderr) as progress:
        outcomes = answer(count, progress)
    complete(outcomes)
    elapsed_s = engine.recorder.log().steps["end_ns"][-1] / 1e9
    tokens = count * (inputs + outputs)
    result: dict[str, object] = {
        "elapsed_time": elapsed_s,
        "num_requests": count,
        "total_num_tokens": tokens,
        "requests_per_second": count / elapsed_s,
        "tokens_per_second": tokens / elapsed_s,
        "output_tokens_per_second": count * outputs / elapsed_s,
        "clock": engine.clock.name,
        "kernels_compiled": engine.compilations.while_serving.kernels,
    }
    if not isinstance(engine, LLMEngine):
        result |= kinds.throughput(engine)
    return result, engine.recorder.log()


def _no_log(path: str) -> None:
    raise AssertionError("there are two")


def complete(outcomes: Sequence[Running | InputError]) -> None:
    """Raise the error of the first request that was not completed.

    Raises:
        RuntimeError: a request ended with an error; or the error itself.
    """
    for outcome in outcomes:
        if isinstance(outcome, InputError):
            raise outcome
        if outcome.error is not None:
            raise RuntimeError(outcome.error)


def finish(result: dict[str, object], flags: Flags, write_log: Callable[[str], None]) -> None:
    """Write the result to stdout and the other requested outputs."""
    text = json.dumps(result, indent=2)
    try:
        print(text, flush=True)
    finally:
        with Outputs() as outputs:
            if "--output-json" in flags:
                outputs.file(flags["--output-json"]).write_text(text + "\n", encoding="utf-8")
        if "--step-log" in flags:
            write_log(flags["--step-log"])
