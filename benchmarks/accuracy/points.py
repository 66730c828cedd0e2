"""Measured operating points of public benchmarks as servers and loads that can be simulated.

They are read by `point_sets`. A point is expressed by its own engine, version, precision,
width and flags; defaults apply where a flag was not published, and nothing is chosen per row. What cannot be
expressed has a reason.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from launch_lines import LaunchedRow
from point_models import checkpoint_of

from blis_py.api import Simulation, build
from blis_py.config.loader import load_config
from blis_py.config.models import NAMES
from blis_py.errors import InputError
from blis_py.files.profiles import stem_of
from blis_py.hardware.gpu import load_gpu
from blis_py.latency.base import unbounded
from blis_py.latency.engine_terms import EngineTerms
from blis_py.latency.operator_work import peak_flops
from blis_py.latency.operators import Operators
from blis_py.launch.reader import Launch
from blis_py.models.model_shape import ModelShape, load_model
from blis_py.models.published_formats import published_checkpoint
from blis_py.requests.table import RequestTable
from blis_py.setup.step_times import frontend_of

Row = dict[str, str]
_DATASET_ENTRIES = 100
"""Distinct prompts of a run by AIPerf's default (`--num-dataset-entries`)."""
_WARM_UP = 2
"""Requests for each in flight that the client of AIConfigurator's generator sends before the clock starts."""
_MEASURED_FROM_NS = 10**15
"""Arrival of the measured requests where others came first: long after these have ended."""


class NotExpressed(Exception):
    """Reason why a point cannot be simulated; a few words."""


@dataclass(frozen=True)
class Point:
    """An operating point."""

    id: str
    source: str
    engine: str
    version: str
    model: str
    precision: str
    gpu: str
    gpus: int
    attention_dp: int
    ep: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    measured: dict[str, float]
    """By metric and statistic, as `ttft.mean`, in ms."""
    gemm_form: str = ""
    flags: Row = field(default_factory=dict)
    requests_each: int = 10
    """Requests of the run for each in flight."""
    cold: bool = False
    """Whether its server began without compiled kernels, and its client sent no requests to warm it up."""
    refused: str = ""
    contradicted: bool = False
    """Whether another run of the same configuration and load had its first tokens in less than half the
    time."""

    @property
    def family(self) -> str:
        """Kind of model, for tables."""
        try:
            checkpoint = published_checkpoint(self.checkpoint)
            name = checkpoint.stem if checkpoint else stem_of("models", self.checkpoint) or self.model
        except NotExpressed:
            name = self.model
        return re.sub(r"-(nvfp4|fp8)$|^deepseek.*", lambda m: "" if m[1] else "deepseek", name)

    @property
    def alike(self) -> tuple[object, ...]:
        """Same for points of one engine, model, format, division and load, of whatever version and date."""
        width, load = (self.gpus, self.attention_dp, self.ep), (self.prompt_tokens, self.output_tokens)
        return self.engine, self.family, self._format, self.gpu, *width, *load, self.concurrency

    @property
    def checkpoint(self) -> str:
        """The checkpoint of its server, by its published name.

        Raises:
            NotExpressed: no configuration of it is known.
        """
        try:
            return checkpoint_of(self.model, self.flags.get("model_served", ""), self._format, self.gemm_form)
        except InputError:
            name = self.model.lower().rpartition("/")[2]
            raise NotExpressed(f"no configuration of {name} in {self.precision or '16 bits'}") from None

    @property
    def _format(self) -> str:
        return "" if self.precision in ("bf16", "fp16") else self.precision

    def shape(self) -> ModelShape:
        return load_model(self.checkpoint)

    def impossible(self) -> bool:
        """Whether the point contradicts itself: with so many requests in flight, computing their prompts at
        the datasheet's peak would take longer than the requests did. No prediction enters."""
        shape, gpu = self.shape(), load_gpu(self.gpu)
        w = shape.weights
        narrow = min(w.experts if shape.moe_layers else w.dense, w.attention)
        form = "bfloat16" if narrow >= 2 else "nvfp4" if narrow < 1 else "fp8"
        mean = 0.9 if self.drawn else 1.0
        flops = 2.0 * (shape.active_parameters - shape.vocab * shape.hidden) * mean * self.prompt_tokens
        prefill_ms = flops / (self.gpus * peak_flops(gpu, form)) * 1e3
        e2e_ms = self.measured["ttft.mean"] + self.measured["tpot.mean"] * (mean * self.output_tokens - 1)
        return self.concurrency * prefill_ms > e2e_ms

    def settings(self) -> dict[str, Any]:
        """Keywords of `blis.build`."""
        return {
            "gpu": self.gpu,
            "concurrency": self.concurrency,
            "num_requests": self.requests_each * self.concurrency,
            "timeout": None,
            **({"cold_kernels": True} if self.cold else {}),
            **self.of_launch(),
        }

    def of_launch(self) -> dict[str, Any]:
        """Keywords for what its launch file says, read like a user's."""
        row = self.launched(self.flags, self.gpus, self.attention_dp, self.ep)
        return keywords(row.published() if self.drawn else row.generated())

    def launched(self, flags: Row, gpus: int, attention_dp: int, ep: int, role: str = "") -> LaunchedRow:
        """The launch of a server of its engine."""
        width = {"tp": gpus, "attention_dp": attention_dp, "ep": ep}
        load = {"concurrency": self.concurrency, "prompt_tokens": self.prompt_tokens}
        return LaunchedRow(self.engine, self.version, self.checkpoint, flags, **width, **load, role=role)

    @property
    def waits_for_kernels(self) -> bool:
        """Whether its server was cold, and its engine compiles kernels at their first use."""
        if not self.cold:
            return False
        overrides = {"engine": self.settings()["engine"], "gpu": self.gpu, "model": self.checkpoint}
        config = load_config(overrides={**overrides, "latency.cold_kernels": True})
        return config.latency.kernel_compile_ms > 0

    @property
    def drawn(self) -> bool:
        """Whether lengths are uniform in [0.8 L, L], as InferenceMAX draws them. In AIConfigurator's own
        runs all requests are alike (its clients: deviation 0, range ratio 1;
        `src/aiconfigurator/eval/benchmarks`); its table of Qwen3.5 repeats figures of InferenceMAX."""
        return self.flags.get("status") != "not published" or "Qwen3.5" in self.model

    @property
    def repeats_prompts(self) -> bool:
        """Whether its client sends prompts again; its launch says whether the server keeps them. Runs at the
        concurrency that AIConfigurator recommends (lengths in thousands; its sweeps have powers of two) are
        those of the generated benchmark: AIPerf without a number of prompts, hence `_DATASET_ENTRIES`
        (`src/aiconfigurator/generator/config/backend_templates/benchmark`)."""
        return not self.drawn and self.prompt_tokens % 1000 == 0

    def simulation(self) -> Simulation:
        """Its server and its requests.

        Raises:
            NotExpressed, InputError: it cannot be simulated.
        """
        if self.refused:
            raise NotExpressed(self.refused)
        return replace(build(**self.settings()), table=self.requests())

    def requests(self) -> RequestTable:
        """All requests of the run, there from the beginning: a closed loop admits them."""
        if self.repeats_prompts:
            return self._repeated_prompts()
        random, count = np.random.default_rng(0), self.requests_each * self.concurrency
        lengths = [
            random.integers(-(-4 * most // 5) if self.drawn else most, most, count, endpoint=True)
            for most in (self.prompt_tokens, self.output_tokens)
        ]
        return RequestTable.build(np.zeros(count, dtype=np.int64), *lengths)

    def _repeated_prompts(self) -> RequestTable:
        """Requests of AIPerf: shuffled prompts, all used once before any is used again; `_WARM_UP` first."""
        random, warm_up = np.random.default_rng(0), _WARM_UP * self.concurrency
        count = warm_up + self.requests_each * self.concurrency
        rounds = [random.permutation(_DATASET_ENTRIES) for _ in range(0, count, _DATASET_ENTRIES)]
        arrival_ns = np.full(count, _MEASURED_FROM_NS)
        arrival_ns[:warm_up] = 0
        return RequestTable.build(
            arrival_ns,
            np.full(count, self.prompt_tokens),
            np.full(count, self.output_tokens),
            content=np.concatenate(rounds)[:count],
            contents=[((number, self.prompt_tokens),) for number in range(_DATASET_ENTRIES)],
        )

    def predict(self, terms: EngineTerms | None = None) -> dict[str, float]:
        """Every measured figure, predicted, in ms.

        Args:
            terms: instead of those of the engine, for prices operator by operator.

        Raises:
            NotExpressed: with the reason.
        """
        try:
            run = self.simulation()
            return figures_ms(run if terms is None else under_terms(run, terms), self.measured)
        except InputError as error:
            raise NotExpressed(_reason(error)) from None


def keywords(launch: Launch) -> dict[str, Any]:
    """What a launch says, as keywords of `blis.build`."""
    names = {key: name for name, key in NAMES.items()}
    return {names.get(key, key): value for key, value in launch.values.items()}


def under_terms(run: Simulation, terms: EngineTerms) -> Simulation:
    """A run with other terms of its engine."""
    own = unbounded(run.latency)
    assert isinstance(own, Operators)
    latency = own.with_terms(terms)
    latency.frontend = frontend_of(run.config.frontend_ms or ()).plus(latency.frontend)
    return run.with_pool(latency=latency)


def figures_ms(run: Simulation, wanted: Iterable[str]) -> dict[str, float]:
    """Figures of a run, as `ttft.mean`; requests that arrive before the last ones are its warm-up."""
    record, _ = run.simulate(False, None)
    arrival_ns = run.table.arrival_ns
    measured = slice(int(np.count_nonzero(arrival_ns < arrival_ns[-1])), None)
    found = {
        "ttft": record.first_token_ns - record.table.arrival_ns,
        "e2el": record.last_token_ns - record.table.arrival_ns,
        "tpot": (record.last_token_ns - record.first_token_ns) / np.maximum(record.emitted_tokens - 1, 1),
    }
    statistics = {"mean": np.mean, "median": np.median, "p99": lambda ns: np.percentile(ns, 99)}
    parts = [(name, *name.split(".")) for name in wanted]
    return {
        name: float(statistics[statistic](found[metric][measured])) / 1e6
        for name, metric, statistic in parts
        if metric in found
    }


def _reason(error: InputError) -> str:
    return "does not fit into the GPUs' memory" if "does not fit" in error.problem else error.problem


# --- reading -----------------------------------------------------------------------------------------


def _rows(path: Path) -> list[Row]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def _flags(folder: Path) -> dict[str, list[Row]]:
    """Launch flags by group; several candidates fit some groups equally well."""
    found: dict[str, list[Row]] = {}
    if (folder / "server_flags.csv").exists():
        with open(folder / "server_flags.csv") as file:
            for row in csv.DictReader(file):
                found.setdefault(row["group"], []).append(row)
    return found


def _latencies_ms(row: Row) -> dict[str, float]:
    """Latencies of a row of InferenceMAX, in seconds there, by metric and statistic."""
    return {
        f"{metric}.{name}": float(row[f"{name}_{metric}"]) * 1e3
        for metric in ("ttft", "tpot", "e2el")
        for name in ("mean", "median", "p99")
        if row.get(f"{name}_{metric}")
    }


def _float(text: str) -> float | None:
    """A figure of a flag; of `default (512)`, the one in brackets."""
    try:
        return float(text)
    except ValueError:
        found = re.fullmatch(r"default \(([\d.]+)\)", text)
        return float(found[1]) if found else None
