"""The result object, the common source of terminal output, files, plots and notebooks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.config.loader import as_dict, dump
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.csv_columns import csv_text
from blis_py.metrics.itl import TokenGaps
from blis_py.metrics.record import RunRecord
from blis_py.metrics.slo import parse_slos
from blis_py.report.shown import ShownResult
from blis_py.setup.setup import Setup

if TYPE_CHECKING:
    import pandas as pd

    from blis_py.calibrate.token_times import TokenTimes
    from blis_py.figures import RunView
    from blis_py.metrics.detectors import Saturation
    from blis_py.metrics.intervals import Intervals


class Result(ShownResult):
    """A completed run.

    `summary` has its figures, `requests` and `steps` are data frames, `plot` draws them, `record` holds the
    raw columns and `config` the complete configuration.
    """

    def __init__(self, record: RunRecord, simulation: Setup, notes: Sequence[str] = ()) -> None:
        self.record = record
        self.simulation = simulation
        self.notes = tuple(notes)
        """Notes the reader should know before trusting the figures."""
        self.intervals: Intervals | None = None
        """Error bars, if requested; see `blis_py.sensitivity.reruns`."""
        self.cross_check: list[dict[str, Any]] | None = None
        """The same run under other latency models, if requested; see `blis_py.sensitivity.cross_check`."""
        self.fitness_weights: dict[str, float] | None = None
        """Fitness weights by component, if a single score is requested."""
        self.saturation: Saturation | None = None
        """Results of saturation detectors, if requested; see `blis_py.metrics.detectors`."""

    @property
    def fitness(self) -> dict[str, float]:
        """Score and components under `fitness_weights`; see `blis_py.metrics.fitness`."""
        from blis_py.metrics.fitness import fitness

        return fitness(self.record, self.fitness_weights or {})

    @property
    def config(self) -> RunConfig:
        return self.simulation.config

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration as plain data: the content of `config.yaml`."""
        return as_dict(self.config)

    @cached_property
    def _numbers(self) -> dict[str, Any]:
        from blis_py.metrics import summarise

        return summarise(self.record, goodput=self.simulation.targets, slo=parse_slos(self.config.slo))

    @cached_property
    def totals(self) -> dict[str, Any]:
        """The part of `summary` that is on the run as a whole; see `blis_py.metrics.totals`."""
        if "_numbers" in self.__dict__:
            return self._numbers
        from blis_py.metrics import totals

        return totals(self.record, goodput=self.simulation.targets, slo=parse_slos(self.config.slo))

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`; see `blis_py.metrics.summarise`."""
        heading: dict[str, Any] = {"capacity": self.simulation.capacity, "models": self.simulation.models}
        heading["notes"] = list(self.notes)
        bars = {} if self.intervals is None else {"intervals": self.intervals.as_dict()}
        checked = {} if self.cross_check is None else {"cross_check": self.cross_check}
        fitness = {} if self.fitness_weights is None else {"fitness": self.fitness}
        saturation = {} if self.saturation is None else {"saturation": self.saturation.final}
        return {
            **heading,
            **self.simulation.schedulers(),
            **self._numbers,
            **saturation,
            **bars,
            **checked,
            **fitness,
        }

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request, in order of arrival."""
        from blis_py.metrics import requests_frame

        return requests_frame(self.record)

    @cached_property
    def visits(self) -> pd.DataFrame:
        """One row per visit of a request to an instance."""
        from blis_py.metrics import visits_frame

        return visits_frame(self.record)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per run of identical steps of an instance."""
        from blis_py.metrics import steps_frame

        return steps_frame(self.record)

    @property
    def decisions(self) -> pd.DataFrame:
        """One row per routing decision and candidate, in order of time, the best candidate first.

        Raises:
            InputError: decisions were not recorded.
        """
        kept = self.record.decisions
        if kept is None:
            raise InputError("this run kept no decisions", key="trace_level", fix="run it with decisions")
        return kept.frame(list(self.record.table.ids()))

    @cached_property
    def view(self) -> RunView:
        """Data behind the figures."""
        from blis_py.figures import RunView

        return RunView.of(self.record, self.simulation.targets, lambda: self.summary)

    def token_times(self) -> TokenTimes:
        """First and last token of every completed request, and all gaps between."""
        from blis_py.calibrate.token_times import token_times
        from blis_py.traces.tracev2_write import request_numbers

        times = token_times(self.record, "this run")
        return replace(times, request_id=request_numbers(self.record.table)[times.request_id])

    def vllm(self) -> dict[str, Any]:
        """The result in the format of `vllm bench serve`."""
        from blis_py.report.vllm import vllm_result

        load = self.config.workload
        return vllm_result(
            self.record,
            goodput=self.simulation.targets,
            request_rate=load.rate,
            max_concurrency=load.concurrency,
        )

    def blis(self, *, requests: bool = False) -> dict[str, Any]:
        """The result in the format of BLIS; with `requests`, every request as well."""
        from blis_py.report.blis import blis_metrics

        metrics = blis_metrics(
            self.record,
            requests=requests,
            goodput=self.simulation.targets,
            every_class=bool(self.config.goodput),
            block_size=self.simulation.block_size,
        )
        return metrics if self.saturation is None else {**metrics, "saturation": self.saturation.final}

    def blis_text(self) -> str:
        """The standard output of BLIS: JSON blocks under their headings, and text."""
        from blis_py.report.blis_text import blis_blocks, blis_sections

        targets: dict[str, Any] = {
            "goodput": self.simulation.targets,
            "every_class": bool(self.config.goodput),
        }
        fitness = None if self.fitness_weights is None else self.fitness
        summaries = blis_blocks(self.record, **targets)
        if self.saturation is not None:
            summaries[-1]["saturation"] = self.saturation.final
        blocks = (f"=== Simulation Metrics ===\n{to_json(one)}" for one in summaries)
        return "".join(
            (
                *blocks,
                *(
                    f"{line}\n"
                    for line in blis_sections(
                        self.record,
                        fitness=fitness,
                        block_size=self.simulation.block_size,
                        contended=any(link.contended for link in self.simulation.cluster().links),
                        **targets,
                    )
                ),
            )
        )

    def save(self, folder: str | Path, *, force: bool = False, plots: bool = True, itl: bool = False) -> Path:
        """Write `config.yaml`, `summary.json`, `requests.csv`, `steps.csv`, the trace and the plots.

        Where requests have several visits to instances, `visits.csv` has a row for each.

        The folder is written atomically; its `complete.json` lists its files.

        Args:
            folder: made if it does not exist.
            force: replace the result that is there.
            plots: draw as well, which takes a second or two.
            itl: write `itl.csv` too, the time of every token.

        Raises:
            InputError: the folder is not empty and `force` is off, or it holds something other than a result.
        """
        from blis_py.outputs.staging import Outputs

        with Outputs() as outputs:
            self.fill(outputs.folder(folder, force=force), plots=plots, itl=itl)
        return Path(folder)

    def fill(self, folder: Path, *, plots: bool = True, itl: bool = False) -> None:
        """Write the files of `save` into an existing folder."""
        from blis_py.metrics import write_requests_csv, write_steps_csv, write_visits_csv
        from blis_py.outputs.staging import write_text

        write_text(folder / "config.yaml", dump(self.config))
        write_text(folder / "summary.json", to_json(self.summary))
        write_requests_csv(self.record, folder / "requests.csv")
        if not self.record.visits.single:
            write_visits_csv(self.record, folder / "visits.csv")
        if any(instance.runs is not None for instance in self.record.instances):
            write_steps_csv(self.record, folder / "steps.csv")
        if (kept := self.record.decisions) is not None:
            columns = kept.columns(list(self.record.table.ids()))
            text = csv_text({name: values.tolist() for name, values in columns.items()})
            write_text(folder / "decisions.csv", text)
        self.save_trace(folder / "trace.yaml", folder / "trace.csv")
        if itl:
            self._save_itl(folder)
        if plots:
            from blis_py.figures import save_plots

            save_plots(self.view, folder / "plots")

    def save_trace(self, header: Path, data: Path) -> None:
        """The requests and what became of them as TraceV2, for `blis replay --trace DATA`."""
        from blis_py.traces.tracev2_header import server_type
        from blis_py.traces.tracev2_write import write

        config, kind = self.config, self.simulation.kind
        write(
            self.record.table,
            header,
            data,
            record=self.record,
            mode="generated" if config.workload.trace is None else "replayed",
            seed=config.seed,
            workload=config.workload.spec or config.workload.preset,
            server={
                "type": server_type("blis-py", None if kind is None else kind.name),
                "model": config.model,
                **self._instance_facts(),
            },
        )

    def _instance_facts(self) -> dict[str, Any]:
        """Properties of identical instances for a trace header."""
        if len(self.simulation.pools) > 1:
            return {}
        config, scheduler = self.config, self.simulation.scheduler
        return {
            "tensor_parallel": config.tp,
            "max_num_seqs": scheduler.max_num_seqs,
            "block_size": scheduler.block_size,
            "gpu_memory_utilization": config.scheduler.gpu_memory_utilization,
            "max_model_len": scheduler.max_model_len,
        }

    def _save_itl(self, folder: Path) -> None:
        from blis_py.traces.itl import NAME, write_itl
        from blis_py.traces.tracev2_write import request_numbers

        rows = (self.record.emitted_tokens > 0).nonzero()[0]
        times_ns, counts = TokenGaps(self.record).times(rows)
        write_itl(folder / NAME, request_numbers(self.record.table)[rows], counts, times_ns)


def to_json(data: Any, *, indent: int | None = 2) -> str:
    """JSON text with a final newline; missing values are null, never NaN.

    Without indentation it is twenty times as fast, which matters for lists of all requests.
    """
    return json.dumps(data, indent=indent, allow_nan=False, ensure_ascii=False) + "\n"
