"""Measured operating points with prefill and decode on GPUs of their own, as fleets that can be simulated.

Rows of `silicon` and `inferencemax` (see `points`): each side with its instances, width, division of
attention and experts and launch flags, as the recipe says that was run, or else as the row is labelled.
Nothing is chosen per row; what cannot be expressed has a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from disaggregated_page import AMD, MTP
from dynamo_jobs import rounds, with_script
from points import NotExpressed, Point, Row, _flags, _float, _latencies_ms, _reason, _rows, keywords

from blis_py.api import Simulation, build
from blis_py.errors import InputError
from blis_py.hardware.layout import Layout
from blis_py.launch.reader import read_launch

GPUS_OF_A_NODE = {"gb200": 4}
"""8 for all others."""
RACK_SCALE = ("gb200",)
"""GPUs whose NVLink joins nodes: KV goes over it, unless the transceiver's environment forbids it."""
ADAPTER_GBPS = 50
"""Of a GPU's network adapter, which joins the nodes of an instance wider than its NVLink: 400 Gb/s."""
NO_FLAGS = "launch settings are not published"
NO_WIDTH = "several layouts fit its label"
REDUNDANT_EXPERTS = 32
"""What the recipes set where the groups do not divide a model's experts."""


@dataclass(frozen=True)
class Side:
    """The alike instances of one phase."""

    workers: int
    layout: Layout
    flags: Row

    @property
    def gpus(self) -> int:
        return self.workers * self.layout.gpus

    def __str__(self) -> str:
        return f"{self.workers} × {self.layout}"


@dataclass(frozen=True)
class Apart:
    """An operating point."""

    of: Point
    """What both sides have in common."""
    prefill: Side
    decode: Side
    env: str = ""
    throughput: float = 0.0
    """Tokens in and out per second and GPU; 0 = not published."""
    measured: dict[str, float] = field(default_factory=dict)
    """In ms, and `throughput` in tokens/s per GPU where it was published, else by Little's law."""
    refused: str = ""
    labelled: bool = False
    """Whether its label has the number of instances."""

    @property
    def gpus(self) -> int:
        return self.prefill.gpus + self.decode.gpus

    @property
    def layout(self) -> str:
        return f"{self.prefill} + {self.decode}"

    @property
    def link(self) -> str:
        across = self.of.gpu in RACK_SCALE and "MNNVL=n" not in self.env
        return "nvlink" if across else "ndr400"

    def settings(self) -> dict[str, Any]:
        """Keywords of `blis.build`."""
        sides = {"prefill": self.prefill, "decode": self.decode}
        scripts = [self._script(name, side) for name, side in sides.items() for _ in range(side.workers)]
        common = replace(self.of, flags={}).settings()
        launch = keywords(read_launch(scripts))
        launch.pop("attention_dp_timeout_iters", None)
        for name in ("tp", "attention_dp", "ep"):
            del common[name]
        for pool in launch["pools"]:
            pool |= self._hardware(sides[pool["name"]].layout)
        return {
            **common,
            **launch,
            "handoff": self.of.engine,
            "pd_link": self.link,
            "pd_gpus_per_node": GPUS_OF_A_NODE.get(self.of.gpu, 8),
        }

    def _script(self, name: str, side: Side) -> str:
        """The script of an instance. Numbers of KV tokens hold for the lengths of the recipe alone."""
        flags, lengths = dict(side.flags), (side.flags.get("isl"), side.flags.get("osl"))
        if lengths != (str(self.of.prompt_tokens), str(self.of.output_tokens)):
            other = flags.get("other_flags", "")
            flags["other_flags"] = re.sub(r"\b(max-total|num-reserved-decode)-tokens=\d+", "", other)
        layout = side.layout
        return self.of.launched(flags, layout.gpus, layout.attention_dp, layout.ep, name).script()

    def _hardware(self, layout: Layout) -> dict[str, Any]:
        """Settings of a pool that no flag of its servers says."""
        found: dict[str, Any] = {"link_gbps": ADAPTER_GBPS} if layout.gpus > _linked(self.of.gpu) else {}
        if self.of.shape().experts % layout.ep:
            found["redundant_experts"] = REDUNDANT_EXPERTS
        return found

    def simulation(self) -> Simulation:
        """Its fleet and its requests: lengths uniform in [0.8 L, L].

        Raises:
            NotExpressed, InputError: it cannot be simulated.
        """
        if self.refused:
            raise NotExpressed(self.refused)
        return replace(build(**self.settings()), table=self.of.requests())

    def predict(self) -> dict[str, float]:
        """Every measured figure, predicted.

        Raises:
            NotExpressed: with the reason.
        """
        try:
            record, _ = self.simulation().simulate(False, None)
        except InputError as error:
            raise NotExpressed(_reason(error)) from None
        begin, first, last = record.table.arrival_ns, record.first_token_ns, record.last_token_ns
        if (last < 0).any():
            raise NotExpressed("requests that its instances cannot serve")
        found = {
            "ttft": first - begin,
            "e2el": last - begin,
            "tpot": (last - first) / np.maximum(record.emitted_tokens - 1, 1),
        }
        statistics = {"mean": np.mean, "median": np.median, "p99": lambda ns: np.percentile(ns, 99)}
        figures = {
            f"{metric}.{name}": float(statistic(ns)) / 1e6
            for metric, ns in found.items()
            for name, statistic in statistics.items()
            if f"{metric}.{name}" in self.measured
        }
        tokens = int(record.emitted_tokens.sum() + record.table.prompt_tokens.sum())
        seconds = float(last.max() - begin.min()) / 1e9
        if not self.throughput:
            return {**figures, "throughput": self.little(figures)}
        return {**figures, "throughput": tokens / seconds / self.gpus}

    def little(self, figures: dict[str, float]) -> float:
        """Tokens per second and GPU that follow from the means of a closed loop."""
        p = self.of
        prompt, output = 0.9 * p.prompt_tokens, 0.9 * p.output_tokens
        e2e_ms = figures["ttft.mean"] + figures["tpot.mean"] * (output - 1)
        return p.concurrency * (prompt + output) / e2e_ms * 1e3 / self.gpus


def _linked(gpu: str) -> int:
    return 72 if gpu in RACK_SCALE else 8


# --- reading -----------------------------------------------------------------------------------------


def silicon(data: Path) -> Iterator[Apart]:
    """Points of `silicon` with prefill and decode apart."""
    folder = data / "silicon"
    flags = _flags(folder)
    groups = {row["row"]: row for row in _rows(folder / "row_groups.csv.gz")}
    recipes = Recipes(data)
    for number, row in enumerate(_rows(folder / "rows.csv.gz")):
        if row["mode"] == "agg":
            continue
        group = groups[str(number)]
        candidates = [with_script(read) for read in flags.get(group["group"], [])]
        point = Point(
            id=f"{row['id']}-{number}",
            source="silicon",
            engine=row["backend"],
            version=row["backend_version"],
            model=row["model_path"],
            precision=row["precision"],
            gpu=row["system"].partition("_")[0],
            gpus=1,
            attention_dp=1,
            ep=1,
            prompt_tokens=int(row["isl"]),
            output_tokens=int(row["osl"]),
            concurrency=int(_float(group["concurrency"]) or 0),
            measured={
                "ttft.mean": float(row["silicon_ttft_ms"]),
                "tpot.mean": float(row["silicon_tpot_ms"]),
            },
            gemm_form=row["gemm_quant_mode"],
        )
        yield recipes.completed(_fitted(point, candidates, _labelled(row)))


def inferencemax(data: Path) -> Iterator[Apart]:
    """Points of `inferencemax` with prefill and decode apart."""
    folder = data / "inferencemax"
    flags = _flags(folder)
    groups = {row["row"]: row for row in _rows(folder / "row_groups.csv.gz")}
    engines = {"dynamo-trt": "trtllm", "dynamo-sglang": "sglang", "sglang-disagg": "sglang"}
    recipes = Recipes(data)
    for number, row in enumerate(_rows(folder / "rows.csv.gz")):
        if row["disagg"] != "True":
            continue
        read = with_script(flags[groups[str(number)]["group"]][0])
        point = Point(
            id=f"{row['run']}-{number}",
            source="inferencemax",
            engine=engines[row["framework"]],
            version="",
            model=_MODEL_NAMES.get(row["model"].rpartition("/")[2], row["model"]),
            precision=row["precision"],
            gpu=row["hw"].partition("-")[0],
            gpus=1,
            attention_dp=1,
            ep=1,
            prompt_tokens=int(row["isl"]),
            output_tokens=int(row["osl"]),
            concurrency=int(row["conc"]),
            measured=_latencies_ms(row),
        )
        said = {side: _said(row, side, read) for side in ("prefill", "decode")}
        refused = MTP if row["spec_decoding"] != "none" else ""
        refused = AMD if point.gpu.startswith("mi") else refused
        yield recipes.completed(_apart(point, said, read, refused, float(row["tput_per_gpu"])))


class Recipes:
    """Published launch settings of instances by engine, GPU, precision, lengths and layout: for rows whose
    own were not found, those of the same instance in another recipe, of as many requests in flight if there
    is one, of other lengths if need be."""

    def __init__(self, data: Path) -> None:
        self._known: dict[tuple[object, ...], Row] = {}
        for candidates in _flags(data / "silicon").values():
            for read in candidates:
                published = read["status"].startswith("read") and read["prefill_workers"]
                if read["mode"] != "agg" and published and read["mtp"] == "no":
                    self._note(read)

    def _note(self, read: Row) -> None:
        for name in ("prefill", "decode"):
            side = _side(name, _recipe(read, name), read)
            about = read["backend"], read["system"].partition("_")[0], read["precision"]
            one = (*about, read["isl"], read["osl"], name, side.layout)
            many = [(*one, concurrency) for concurrency in read["concurrency"].split(";")]
            for key in (*many, one, (*about, name, side.layout)):
                self._known.setdefault(key, side.flags)

    def completed(self, point: Apart) -> Apart:
        """The point with settings for sides that have none."""
        if point.refused:
            return point
        return replace(point, prefill=self._side(point, "prefill"), decode=self._side(point, "decode"))

    def _side(self, point: Apart, name: str) -> Side:
        side: Side = getattr(point, name)
        if side.flags.get("mem_util") or side.flags.get("token_budget"):
            return side
        p = point.of
        about, lengths = (p.engine, p.gpu, p.precision), (str(p.prompt_tokens), str(p.output_tokens))
        one = (*about, *lengths, name, side.layout)
        alike = (*one, str(p.concurrency)), one, (*about, name, side.layout)
        found = (self._known[key] for key in alike if key in self._known)
        return replace(side, flags=next(found, side.flags))


_MODEL_NAMES = {"deepseek-r1-0528-fp4-v2": "deepseek-ai/DeepSeek-R1"}
Recipe = dict[str, str]
"""Instances of a side, as written: workers, tp, ep, dp_attention, gpus."""


def _said(row: Row, side: str, read: Row) -> Recipe:
    return {
        "workers": row[f"{side}_num_workers"],
        "tp": row[f"{side}_tp"],
        "ep": row[f"{side}_ep"],
        "dp_attention": row[f"{side}_dp_attention"].capitalize(),
        "gpus": row[f"num_{side}_gpu"],
    }


def _fitted(point: Point, candidates: list[Row], labelled: int) -> Apart:
    """A point of `silicon` with the recipe that was run."""
    recipes = [{side: _recipe(read, side) for side in ("prefill", "decode")} for read in candidates]
    mtp = {read["mtp"] for read in candidates}
    empty = {side: {"workers": "1", "tp": "1", "ep": "1"} for side in ("prefill", "decode")}
    if not any(read["prefill_workers"] for read in candidates):
        return _apart(point, empty, {}, NO_FLAGS)
    if mtp != {"no"}:
        return _apart(point, recipes[0], candidates[0], MTP)
    fits = [n for n, each in enumerate(recipes) if _total(each) == labelled] or list(range(len(recipes)))
    same = all(recipes[n] == recipes[fits[0]] for n in fits)
    found = _apart(point, recipes[fits[0]], candidates[fits[0]], "" if same else NO_WIDTH)
    return replace(found, labelled=bool(labelled))


def _recipe(read: Row, side: str) -> Recipe:
    nodes = re.search(rf"{side.upper()}_NODES=(\d+)", read["other_flags"])
    is_script = read["status"] == "script only" and nodes
    return {
        "workers": read[f"{side}_workers"],
        "tp": read[f"{side}_tp"],
        "ep": read[f"{side}_ep"],
        "dp_attention": read[f"{side}_dp_attention"],
        "gpus": str(4 * int(nodes[1])) if nodes and is_script else "",
    }


def _labelled(row: Row) -> int:
    """GPUs of the deployment by its label; 0 = it has none."""
    width = {side: _side_width(row, side) for side in ("prefill", "decode")}
    workers = {side: _float(row[f"{side}_num_workers"]) for side in ("prefill", "decode")}
    if not all(workers.values()):
        return 0
    return int(sum((workers[side] or 0) * width[side] for side in width))


def _side_width(row: Row, side: str) -> float:
    return (_float(row[f"{side}_tp_size"]) or 1) * (_float(row[f"{side}_attention_dp_size"]) or 1)


def _total(recipes: dict[str, Recipe]) -> int:
    return sum(int(side["workers"]) * _width(side) for side in recipes.values())


def _width(side: Recipe) -> int:
    """GPUs of an instance."""
    if side.get("gpus") and side["tp"] == "1":
        return int(side["gpus"]) // int(side["workers"])
    return int(side["tp"])


def _apart(
    point: Point, recipes: dict[str, Recipe], read: Row, refused: str, throughput: float = 0.0
) -> Apart:
    wide = max(map(_width, recipes.values())) > GPUS_OF_A_NODE.get(point.gpu, 8)
    sides = {name: _side(name, side, read, wide) for name, side in recipes.items()}
    found = Apart(point, **sides, env=read.get("env", ""), throughput=throughput, refused=refused)
    found = replace(found, of=replace(point, requests_each=rounds(read)))
    known = throughput or (0.0 if refused == NO_FLAGS else found.little(point.measured))
    return replace(found, measured={**point.measured, "throughput": known})


def _side(name: str, recipe: Recipe, read: Row, wide: bool = True) -> Side:
    """
    Args:
        wide: whether an instance of the fleet spans nodes. Scripts say nothing of the division; those for low
            latency, on instances of a node each, replicate no attention in the recipes that were read.
    """
    width, ep = _width(recipe), int(recipe["ep"])
    shared = recipe.get("dp_attention") == "True"
    if width > int(recipe["tp"]):
        shared = shared and wide
        ep = width if shared else 1
    flags = {key: _one_side(value or "", name) for key, value in read.items() if isinstance(value, str)}
    return Side(int(recipe["workers"]), Layout(width, width if shared else 1, ep), flags)


def _one_side(text: str, side: str) -> str:
    """What `prefill x | decode y` says of a side; other text applies to both."""
    found = re.fullmatch(r"prefill (.*?)\s*\| decode (.*)", text)
    said = text if found is None else found[1 if side == "prefill" else 2]
    return "" if said == "-" else said
