"""Autopsy of two folders: a run of the engine, and the simulation that predicted it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from blis_py.calibrate.autopsy import Autopsy, autopsy
from blis_py.calibrate.kinds import Blocks, blocks_of
from blis_py.calibrate.read_times import TRACE_NAMES, read_token_times
from blis_py.calibrate.recorded import Lengths, recorded_lengths
from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError
from blis_py.files.paths import is_file
from blis_py.latency.base import LatencyModel
from blis_py.outputs.complete import check_complete
from blis_py.traces import header_of
from blis_py.traces.steplog import StepLog, read_step_log
from blis_py.traces.tracev2_header import kind_of
from blis_py.traces.tracev2_write import request_numbers

STEP_LOG_NAMES = ("steps.csv.gz", "steps.csv", "steps.parquet")


@dataclass(frozen=True)
class Prediction:
    """The inputs of a simulated run."""

    scheduler: SchedulerConfig
    latency: LatencyModel
    lengths: dict[int, tuple[int, int]]
    """Prompt and output tokens of its requests, by id."""
    blocks: Blocks | None = None
    """Execution of blocks and the rounds they took, where answers come in blocks."""


def autopsy_of_runs(
    measured: str | Path,
    results: str | Path,
    *,
    itl: str | Path | None = None,
    network_rtt_s: float = 0.0,
    warm_up_requests: int = 0,
    skip_first_s: float = 0.0,
) -> Autopsy:
    """See `autopsy`.

    Args:
        measured: the folder of a run of the engine: its step log, and the client's trace.
        results: the `--out` folder of the simulated run.
        itl: times of all measured tokens, if they are not in the folder.
        network_rtt_s: added to every predicted TTFT and E2E.
        warm_up_requests: requests with a smaller id do not count in the metrics.
        skip_first_s: requests sent in this initial period do not count either.

    Raises:
        InputError: something is missing or cannot be read; the simulation has several instances, or is of
            another kind of requests than the engine's run.
    """
    log = read_run_log(measured)
    made = read_prediction(results)
    other: Lengths | None = None
    recorded = recorded_lengths(log)
    if any(made.lengths.get(i, lengths) != lengths for i, lengths in recorded.items()):
        other = made.lengths
    return autopsy(
        log,
        made.scheduler,
        made.latency,
        other,
        predicted=read_token_times(results),
        client=read_token_times(measured, itl),
        blocks=made.blocks,
        network_rtt_s=network_rtt_s,
        warm_up_requests=warm_up_requests,
        skip_first_s=skip_first_s,
    )


def has_step_log(folder: str | Path) -> bool:
    """Whether the folder contains an engine's step log; the steps of a simulated run are none."""
    simulated = is_file(Path(folder) / "config.yaml")
    return not simulated and any(is_file(Path(folder) / name) for name in STEP_LOG_NAMES)


def read_run_log(folder: str | Path) -> StepLog:
    """The step log in the folder of an engine's run.

    Raises:
        InputError: there is none.
    """
    log_path = next((path for name in STEP_LOG_NAMES if is_file(path := Path(folder) / name)), None)
    if log_path is None:
        fix = "give the folder that `blis engine run --out` wrote, not only a trace"
        raise InputError("contains no step log of the engine", file=folder, fix=fix)
    return read_step_log(log_path)


def read_prediction(folder: str | Path) -> Prediction:
    """Settings, latency model and lengths of a simulated run, from its `--out` folder.

    Raises:
        InputError: not the folder of a simulated run, or a run with several instances.
    """
    from blis_py.config.loader import load_config
    from blis_py.config.models import descriptions
    from blis_py.config.workload import WorkloadSection
    from blis_py.setup.setup import Setup

    folder = Path(folder)
    check_complete(folder)
    path = folder / "config.yaml"
    trace = next((p for name in TRACE_NAMES if is_file(p := folder / name)), None)
    if not is_file(path) or trace is None:
        fix = "give the folder that `blis run --out` or `blis replay --out` wrote"
        raise InputError("not the folder of a simulated run", file=folder, fix=fix)
    config = load_config(path)
    if config.instances != 1:
        fix = "simulate one instance, like the engine"
        raise InputError("an autopsy covers exactly one instance", file=path, key="num_instances", fix=fix)
    header = header_of(trace)
    if header is None or kind_of(header[1]) is None or any(name is not None for name in descriptions(config)):
        # Its own trace has the requests, wherever they once came from.
        config = replace(config, workload=WorkloadSection(trace=str(trace)))
    simulation = Setup.of(config)
    table, executed, blocks = simulation.table, simulation.kind, None
    if executed is not None:
        blocks = blocks_of(executed, request_numbers(table).tolist())
    lengths = zip(table.prompt_tokens.tolist(), table.output_tokens.tolist(), strict=True)
    return Prediction(
        simulation.scheduler,
        simulation.latency,
        dict(zip(request_numbers(table).tolist(), lengths, strict=True)),
        blocks,
    )
