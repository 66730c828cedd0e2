"""Small parts by themselves: random values, among them those that just fill or cross a limit."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from inspect import isfunction, signature
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from drawing import nameless

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError

METRICS_TESTS = str(Path(__file__).parents[2] / "metrics")
if METRICS_TESTS not in sys.path:
    sys.path.append(METRICS_TESTS)


def parts(first: str, count: str) -> Iterator[str]:
    """A line for each seed, with a digest for each part."""
    every = (
        _pipeline,
        _verdicts,
        _emitted,
        _hand_overs,
        _cells,
        _strategies,
        _early,
        _work,
        _terms,
        _windows,
        _grids,
    )
    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"parts {seed}")
        yield f"{seed} {' '.join(f'{part.__name__[1:]} {nameless(list(part(rng)))}' for part in every)}"


def _pipeline(rng: Random) -> Iterator[Any]:
    """Steps of a host that is at times slower than its GPU."""
    from blis_py.latency.launch_pipeline import LaunchPipeline

    for _ in range(6):
        gpu, host, launching = (rng.choice((0, 3, 10)) for _ in range(3))

        def in_parts(f: StepFeatures, gpu: int = gpu, host: int = host, launching: int = launching) -> Any:
            prompt, kv = f.prefill_tokens, f.decode_kv_tokens
            return gpu * f.decode_seqs + prompt + kv // 4, host + f.emitted_rows, launching + prompt // 8

        pipeline, now_ns, end_ns = LaunchPipeline(in_parts), 0, 0
        for _ in range(12):
            tokens, rows, kv = rng.choice((0, 8, 40)), rng.choice((0, 1, 3)), rng.choice((0, 7))
            features = StepFeatures(
                decode_seqs=rows, prefill_tokens=tokens, emitted_rows=rows, decode_kv_tokens=kv
            )
            kind = rng.randrange(4)
            if kind == 0:
                end_ns = pipeline.filled_ns(
                    features, now_ns, now_ns + sum(in_parts(features)), rng.random() < 0.5
                )
            elif kind == 1:
                end_ns = pipeline.prompt_end_ns(features, end_ns)
            else:
                steps: int = rng.choice((1, 2, 5))
                now_ns, end_ns = end_ns, end_ns + steps * rng.choice((3, 9))
                step: Any = SimpleNamespace(features=features)
                pipeline.decoded(step, steps, now_ns, end_ns)
            yield [end_ns, pipeline._busy_until_ns(), pipeline._read_ns]


def _verdicts(rng: Random) -> Iterator[Any]:
    """Whether runs of one server keep up, by records with what such runs leave."""
    from record_builders import instance, record, table

    from blis_py.metrics import load as module
    from blis_py.metrics.load import load
    from blis_py.metrics.record import Outcome

    ends = (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.LENGTH_CAPPED, Outcome.TIMED_OUT, Outcome.EVICTED)
    for _ in range(16):
        rows, gap_ns = rng.choice((0, 1, 2, 99, 100, 101, 201, 201, 300)), rng.choice((0, 10**7, 10**9))
        gaps = rng.choice(((0, gap_ns, 2 * gap_ns), (gap_ns,)))
        arrivals = np.cumsum([rng.choice(gaps) for _ in range(rows)], dtype=np.int64)
        found = record(table(arrivals), [instance([10**9])], [(0, []) for _ in range(rows)])
        visits, waited_ns = found.visits, 0
        service_ns, more_ns = (
            rng.choice((10**6, 10**8, 2 * 10**8, 10**10)),
            rng.choice((0, 10**6, 10**9, 4 * 10**9)),
        )
        loses = rng.choice((0.0, 0.0, 0.005, 0.3))
        for row in range(rows):
            waited_ns = max(0, waited_ns + rng.choice((-1, 1, 1)) * more_ns)
            visits.scheduled_ns[row] = arrivals[row] + waited_ns
            visits.finish_ns[row] = visits.scheduled_ns[row] + service_ns
            visits.outcome[row] = rng.choice(ends) if rng.random() < loses else Outcome.COMPLETED
            if rng.random() < loses / 2:
                visits.outcome[row], visits.finish_ns[row] = Outcome.RUNNING, -1
            if rng.random() < loses / 2:
                visits.outcome[row] = Outcome.QUEUED
                visits.finish_ns[row] = visits.scheduled_ns[row] = -1
        if rows == 201 and rng.random() < 0.5:
            visits.outcome[-1] = Outcome.EVICTED  # one of the hundred of the second half
        found.end_ns = int(max([*visits.finish_ns.tolist(), 0])) + rng.choice((0, 10**9))
        loops = rng.choice((None, None, -1, 5, "some"))
        if loops is not None and rows:
            due_ns = np.full(rows, -1 if loops == "some" else loops, dtype=np.int64)
            due_ns[: rows // 4] = 7 if loops == "some" else loops
            object.__setattr__(found.table, "due_ns", due_ns)
        yield [load(found), module._needed(rows, rng.choice((0.1, 1.0, 9.09, 12.3)))]
        span_ns = int(arrivals[-1] - arrivals[0]) if rows else 0
        yield [module._falls_behind(found, span_ns), module._overloaded_s(found)]
        yield module._low(np.array([rng.choice((-1.0, 0.0, 2.0)) for _ in range(40)]))


def _emitted(rng: Random) -> Iterator[Any]:
    """Tokens of visits whose steps are interrupted, and emit other numbers."""
    from blis_py.metrics.emission import EmittedTokens, ranges, rows_of

    for _ in range(6):
        visits, per_step = rng.choice((1, 2, 5)), rng.choice((1, 4))
        steps = [sorted(rng.sample(range(12), rng.choice((0, 1, 3, 7)))) for _ in range(visits)]
        breaks = [(v, a, b) for v, own in enumerate(steps) for a, b in pairwise(own) if b > a + 1]
        others = [
            (v, step, rng.choice((2, 9))) for v, own in enumerate(steps) for step in own if rng.random() < 0.3
        ]
        emitted = EmittedTokens(
            np.array([own[0] if own else -1 for own in steps], dtype=np.int64),
            np.array([own[-1] if own else -1 for own in steps], dtype=np.int64),
            np.array(breaks, dtype=np.int64).reshape(-1, 3),
            np.array(others, dtype=np.int64).reshape(-1, 3),
            per_step,
        )
        chosen = np.array(rng.sample(range(visits), rng.randint(0, visits)), dtype=np.intp)
        for each in (emitted, emitted.take(chosen)):
            every = np.arange(len(each.first_step))
            yield [each, each.steps(), each.tokens(), each.first_tokens(), each.sizes(every)]
        pairs = np.array([(v, step) for v, own in enumerate(steps) for step in own], dtype=np.int64).reshape(
            -1, 2
        )
        yield [emitted.sizes(chosen), emitted.rank(pairs[:, 0], pairs[:, 1]), rows_of(emitted.breaks, chosen)]
        yield ranges(np.array([3, 0, 7]), np.array([rng.randrange(3) for _ in range(3)]))


def _hand_overs(rng: Random) -> Iterator[Any]:
    from blis_py.metrics.handovers import HandOver, HandOvers

    for _ in range(4):
        rows = [[rng.randrange(9) for _ in HandOver._fields] for _ in range(rng.choice((0, 1, 4)))]
        for row, own in zip(rng.sample(range(6), len(rows)), rows, strict=True):
            own[0] = row
        found = HandOvers.of_bytes(np.array(rows, dtype=np.int64).tobytes())
        taken = found.take(np.array(rng.sample(range(7), rng.choice((0, 1, 4))), dtype=np.int64))
        for each in (found, taken):
            yield [each, len(each), each.reservation_ns, [each.of(row) for row in range(7)]]


def _cells(rng: Random) -> Iterator[Any]:
    """Columns of Parquet files, each with cells at the limits of what is allowed; and tables written."""
    import pyarrow as pa

    from blis_py.traces import parquet
    from blis_py.traces.reading import Reading

    century_s = LAST_NS / 1e9
    values = (
        0,
        1,
        -1,
        2,
        0.5,
        None,
        MAX_TOKENS,
        MAX_TOKENS + 1,
        century_s,
        1.001 * century_s,
    )
    for role in ("arrival", "input", "output", "max_tokens", "slo_class", "request_id"):
        column = pa.array([None if value is None else float(value) for value in rng.sample(values, 6)])
        for each in (column, pa.array(["a", None, "1"]), pa.array([True, False]), pa.array([0, 1, 2])):
            for unit in ("s", "ns"):
                yield _of_cells(role, each, Reading(time_unit=unit))
        yield _of_cells(role, pa.array([-1, 0, 10**18, None], pa.timestamp("us")), Reading())
    for seed in range(2):
        from random_tables import drawn  # beside tests of metrics

        table = drawn(Random(f"{seed} {rng.random()}"), rng.choice((1, 5)))
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "t.parquet")
            parquet.write(table, file)
            yield _raw(file)


def _of_cells(role: str, column: Any, reading: Any) -> Any:
    from blis_py.traces import parquet

    try:
        cells, bad, problem = parquet._cells(role, column, parquet.TraceClock(reading, "s"))
    except (InputError, ValueError, TypeError) as error:
        return type(error).__name__
    return [cells, bad, problem]


def _raw(file: Path) -> Any:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file)
    return {name: column.to_pylist() for name, column in zip(table.column_names, table.columns, strict=True)}


def _strategies(rng: Random) -> Iterator[Any]:
    """Limits on requests in flight, as recorded by benchmarks, some of which are none."""
    from blis_py.traces.guidellm import _STRATEGIES, _note_strategy
    from blis_py.traces.reading import Reading

    for _ in range(20):
        benchmark: dict[str, Any] = {}
        strategy: dict[str, Any] = {
            rng.choice(("type_", "type")): rng.choice(("synchronous", "concurrent", "throughput", "poisson"))
        }
        for name in ("streams", "max_concurrency"):
            if rng.random() < 0.6:
                strategy[name] = rng.choice((0, 1, 7, True, None, "3", -1))
        inside = benchmark
        *above, last = rng.choice(_STRATEGIES)
        for name in above:
            inside = inside.setdefault(name, {})
        inside[last] = strategy
        reading = Reading()
        _note_strategy(benchmark, reading)
        reading.left_out(rng.choice((0, 1, 2, 1000)), "they failed")
        yield [reading.concurrency, reading.paced, reading.stated()]


def _early(rng: Random) -> Iterator[Any]:
    """Early verdicts on the first part of a run."""
    from record_builders import instance, record, table

    from blis_py.metrics.record import Outcome
    from blis_py.metrics.slo import SloCheck
    from blis_py.planning import early_stop

    for _ in range(6):
        rows = rng.choice((1, 49, 50, 51, 399, 400))
        arrivals = np.sort([rng.randrange(100) for _ in range(rows)])
        classes = [rng.choice(("", "standard", "critical")) for _ in range(rows)]
        built = [instance([40, 90, 130])]
        built[0].num_kv_blocks, built[0].peak_kv_blocks = 10, rng.choice((4, 5, 6))
        found = record(table(arrivals, slo_class=classes), built, [(0, [1]) for _ in range(rows)])
        shift = rng.choice((0, 10, 60))
        found.visits.first_token_ns[:] = arrivals + shift
        found.visits.finish_ns[:] = found.visits.last_token_ns[:] = arrivals + 3 * shift
        for row in range(rows):
            if rng.random() < 0.02:
                found.visits.outcome[row] = rng.choice((Outcome.QUEUED, Outcome.RUNNING, Outcome.EVICTED))
                found.visits.first_token_ns[row] = -1
        found.end_ns = 200
        whole = table(np.sort([rng.randrange(800) for _ in range(rows * 2)]))
        yield [early_stop.horizon_ns(whole), early_stop.worth_it(whole, []), early_stop.worth_it(whole, [1])]  # type: ignore[list-item]
        for _ in range(8):
            metric, stat = (
                rng.choice(("ttft", "e2e", "itl")),
                rng.choice(("mean", "p50", "p99", "max", "min", "median", "std")),
            )
            limit, name = (
                rng.choice((9.0, 10.0, 20.0, 59.0, 60.0, 120.0)),
                rng.choice((None, "critical", "x", "standard")),
            )
            check = SloCheck("", metric, stat, limit, name)
            yield early_stop.judge(
                found, whole if rng.random() < 0.5 else found.table, [check], rng.choice((0.0, 0.01))
            )


def _work(rng: Random) -> Iterator[Any]:
    """All formulas of bytes and operations, for arguments drawn by their names."""
    from blis_py.hardware.gpu import load_gpu
    from blis_py.latency import graph_sizes, operator_work, work
    from blis_py.models.model_shape import load_model

    names = ("qwen3-14b", "mixtral-8x7b", "deepseek-v3", "llama-4-scout", "gpt-oss-120b", "llama-3.1-70b-fp8")
    shapes = [load_model(rng.choice(names)) for _ in range(2)]
    sizes = [np.array([1.0, 8.0, 130.0]), np.array([2.0, 64.0, 5000.0]), 3.0]
    values: dict[str, tuple[Any, ...]] = {
        "shape": tuple(shapes),
        "gpu": tuple(load_gpu(name) for name in ("h100", "b200", "a100-80", "l40s")),
        **dict.fromkeys(("tp", "ranks", "gpus", "ep"), (1, 2, 4, 8)),
        **dict.fromkeys(
            ("tokens", "rows", "seqs"), (0, 1, *(2**19 // (2 * shapes[0].hidden) + n for n in (-1, 0, 1)))
        ),
        **dict.fromkeys(("fabric", "padded", "graphs"), (True, False)),
        "experts": (8, 128),
        "per_token": (1, 8),
        **dict.fromkeys(("form", "kv_form"), ("bfloat16", "fp8", "fp8_block", "nvfp4", "w4a8_mxfp4_mxfp8")),
        **dict.fromkeys(
            ("m", "n", "k", "hidden", "width", "length", "past", "heads", "cached"), tuple(sizes)
        ),
        **dict.fromkeys(("kv_heads", "value_heads", "top_k", "message_bytes"), tuple(sizes)),
        **dict.fromkeys(("local", "dim"), (8.0, 128.0)),
        "window": (0, 100),
        "even": (True, False),
        "engine": ("vllm", "sglang", "trtllm", "blis"),
        "max_num_seqs": (1, 100, 256, 1000),
        "most": (None, 8, 300),
    }
    for module in (work, operator_work, graph_sizes):
        for name, function in sorted(vars(module).items()):
            if isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_"):
                for _ in range(4):
                    yield [name, _of_names(function, values, rng)]


def _of_names(function: Any, values: dict[str, tuple[Any, ...]], rng: Random) -> Any:
    given = {}
    for name, parameter in signature(function).parameters.items():
        if name in values and (parameter.default is parameter.empty or rng.random() < 0.5):
            given[name] = rng.choice(values[name])
    try:
        return function(**given)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return type(error).__name__


def _terms(rng: Random) -> Iterator[Any]:
    """Terms of servers, and files of coefficients with numbers at the limits of what they may be."""
    from blis_py.latency.trained import COEFFICIENT_NAMES, Coefficients, ServerTerms, read_training

    learned = Coefficients(**{name: 10.0 * n for n, name in enumerate(COEFFICIENT_NAMES)})

    for _ in range(8):
        terms = ServerTerms(
            rng.choice((1.0, 1.25)),
            rng.choice((0.0, 5e4)),
            rng.choice((0.0, 70.0)),
            most_seqs=rng.choice((0, 8)),
        )
        yield [
            terms.describe(),
            terms.on(learned),
            [terms.beyond_ns(n) for n in (0, 8, 9)],
        ]
    whole: dict[str, Any] = dict.fromkeys(COEFFICIENT_NAMES, 0)
    for _ in range(8):
        name, value = rng.choice(COEFFICIENT_NAMES), rng.choice((0, 0.5, -1, True, "1", None, 1e9, 9.9e8))
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "trained.yaml")
            more = rng.choice(({}, {}, {"nosuch": 1}))
            file.write_text(json.dumps({"coefficients": {**whole, name: value, **more}, "gpus": ["h100"]}))
            try:
                yield read_training(file)
            except InputError as error:
                yield str(error).replace(place, "")


def _windows(rng: Random) -> Iterator[Any]:
    """Step times fitted to windows of a server's metrics, some of which say nothing."""
    from blis_py.traces.from_metrics import _MIN_STEPS, _fitted

    for _ in range(6):
        rows = rng.choice((3, 4, 5, 9))
        steps = np.array([float(rng.choice((0, _MIN_STEPS - 1, _MIN_STEPS, 900))) for _ in range(rows)])
        generated = np.array([rng.choice((0.0, 500.0, 9000.0, 20_000.0)) for _ in range(rows)])
        computed = np.array([rng.choice((0.0, 100.0, 9e4)) for _ in range(rows)])
        itl = np.array([rng.choice((np.nan, 0.01, 0.02, 0.05)) for _ in range(rows)])
        itl[0] = 0.03
        yield _fitted(itl, steps, generated, computed)


def _grids(rng: Random) -> Iterator[Any]:
    """Tables with cells that were not measured, filled from those that were."""
    from blis_py.latency.kernel_profile import extend, fill_gaps, slope_beyond
    from blis_py.latency.layer_profile import _fill_corners, _fill_mixed

    for _ in range(6):
        grid = np.array([[rng.choice((1.0, 2.0, 5.0, 9.0)) * (i + j) for j in range(1, 5)] for i in range(4)])
        for line in grid:
            line[: rng.choice((0, 0, 1, 2))] = np.nan
            line[rng.choice((3, 4, 4)) :] = np.nan
        _fill_corners(grid)
        axis, line = np.array([0.0, 1.0, 4.0, 16.0, 64.0]), np.array([1.0, 3.0, 4.0, 9.0, 10.0])
        gone = rng.sample(range(1, 5), rng.choice((0, 1, 2)))
        line[gone] = np.nan
        filled, longer = line.copy(), line.copy()
        fill_gaps(axis, filled)
        extend(axis, longer)
        yield [grid, filled, longer, slope_beyond(axis, np.nan_to_num(line, nan=2.0))]
        mixed = np.array([rng.choice((1.0, 2.0, 7.0)) for _ in range(3 * 2 * 3 * 3)]).reshape(3, 2, 3, 3)
        mixed[0] = np.maximum.accumulate(mixed[0], axis=-1)
        mixed[1:, :, 1:, 1:][np.array([rng.random() < 0.4 for _ in range(16)]).reshape(2, 2, 2, 2)] = np.nan
        try:
            _fill_mixed(np.array([0.0, 1.0, 8.0]), mixed)
        except InputError as error:
            yield str(error)
        yield mixed
