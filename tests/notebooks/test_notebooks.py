from __future__ import annotations

import base64
import runpy
from pathlib import Path
from typing import Any

import pytest

jupytext = pytest.importorskip("jupytext", reason="the notebooks need the extra `notebooks`")

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
PAIRS = sorted(path for path in FOLDER.glob("*.py") if path.with_suffix(".ipynb").exists())
CLASSES = FOLDER / "slo_classes_and_who_pays.py"
CALIBRATE = FOLDER / "calibrate_against_an_engine.py"


def sources(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def outputs(path: Path) -> list[Any]:
    cells = jupytext.read(path.with_suffix(".ipynb")).cells
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def test_source_and_notebook_are_in_step() -> None:
    assert PAIRS
    for source in PAIRS:
        assert sources(source) == sources(source.with_suffix(".ipynb")), f"run notebooks/build.py: {source}"


def test_committed_notebooks_were_executed_from_top_to_bottom_without_an_error() -> None:
    for source in PAIRS:
        code = [c for c in jupytext.read(source.with_suffix(".ipynb")).cells if c.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
        assert not [output for output in outputs(source) if output.output_type == "error"]


def test_committed_notebooks_are_small_and_bear_no_trace_of_a_machine() -> None:
    for source in PAIRS:
        text = source.with_suffix(".ipynb").read_text(encoding="utf-8")
        assert len(text) < 300_000
        assert "execution" not in text.replace("execution_count", "")
        for output in outputs(source):
            picture = base64.b64decode(output.get("data", {}).get("image/png", ""))
            assert b"Software" not in picture
            assert output.get("name") != "stderr"


def test_the_answer_at_the_top_is_what_the_committed_run_printed() -> None:
    printed = "".join(output.text for output in outputs(CLASSES) if output.output_type == "stream")
    (sentence,) = [line for line in printed.splitlines() if line.startswith("This hour takes")]
    assert sources(CLASSES)[0][1].count(f"**Answer:** {sentence}") == 1


@pytest.mark.slow
def test_on_the_beginning_of_the_hour_the_notebook_draws_its_figures_and_comes_to_the_same_conclusions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    monkeypatch.setenv("BLIS_NOTEBOOK_NUM_REQUESTS", "1500")
    monkeypatch.setattr("IPython.display.display", lambda *shown: None)
    with matplotlib.rc_context():
        names = runpy.run_path(str(CLASSES))

    figures = [plt.figure(number) for number in plt.get_fignums()]
    assert len(figures) == 3
    for ax in (ax for figure in figures for ax in figure.axes):
        assert ax.get_title(loc="left")
        assert ax.lines or ax.patches

    attainment = names["sweep"].pivot(index="instances", columns="scheduler", values="attainment")
    assert (attainment.iloc[-1] > attainment.iloc[0]).all(), "more instances serve people better"
    assert (attainment["priority-fcfs"] >= attainment["fcfs"]).all(), "and so do priorities"
    assert attainment["priority-fcfs"].iloc[0] > attainment["fcfs"].iloc[0]

    with_classes, without = names["smallest"]("priority-fcfs"), names["smallest"]("fcfs")
    assert with_classes is not None
    assert without is None or with_classes < without, "with priorities a smaller cluster is enough"

    p99_ms = names["compared"].set_index("scheduler")["critical TTFT p99, ms"]
    assert p99_ms["priority-fcfs"] < p99_ms["fcfs"] <= p99_ms["reverse-priority"]


@pytest.mark.slow
@pytest.mark.long
def test_on_a_small_run_the_calibration_notebook_names_the_planted_mistakes_and_their_fixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch", reason="the engine needs the extra `engine`")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    monkeypatch.setenv("BLIS_NOTEBOOK_SMALL", "1")
    monkeypatch.setattr("IPython.display.display", lambda *shown: None)
    with matplotlib.rc_context():
        names = runpy.run_path(str(CALIBRATE))

    figures = [plt.figure(number) for number in plt.get_fignums()]
    assert len(figures) == 5
    for ax in (ax for figure in figures for ax in figure.axes):
        assert ax.get_title(loc="left")
        assert ax.lines

    for result in (names["honest"], names["blamed"], names["narrow"]):
        sums = [sum(shares) for shares in zip(*(cause.shares_ns for cause in result.causes), strict=True)]
        assert tuple(sums) == result.errors_ns, "shares sum to the whole error, to the nanosecond"
    set_explicitly = {"kv_capacity", "token_counts", "scheduler"}
    assert not any(
        names["honest"].contributes(cause) for cause in names["honest"].causes if cause.name in set_explicitly
    )
    assert names["blamed"].first.name == "kv_capacity"
    assert names["blamed"].first.fix == "--num-kv-blocks 128"
    assert names["narrow"].first.name == "scheduler"
    assert names["narrow"].first.fix == "--max-num-seqs 16"
    assert names["parity"].share == 1.0
    assert all(0 <= chance <= 1 for chance in names["intervals"].slo.values())


def executed(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a notebook's variables hold after a small run of it."""
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.setenv("BLIS_NOTEBOOK_SMALL", "1")
    monkeypatch.setattr("IPython.display.display", lambda *shown: None)
    with matplotlib.rc_context():
        return runpy.run_path(str(FOLDER / f"{name}.py"))


ANSWERED = (
    "how_many_gpus_for_this_hour",
    "does_cache_aware_scheduling_pay",
    "fdfo_for_diffusion_llms",
    "overlap_and_what_it_buys",
    "disaggregate_or_not",
)


@pytest.mark.parametrize("name", ANSWERED)
def test_every_answer_at_the_top_is_what_the_committed_run_printed(name: str) -> None:
    source = FOLDER / f"{name}.py"
    printed = " ".join("".join(o.text for o in outputs(source) if o.output_type == "stream").split())
    top = " ".join(sources(source)[0][1].split())
    answer = top.partition("**Answer:** ")[2].partition(" *")[0]
    assert len(answer) > 40
    assert answer in printed


def test_a_first_run_keeps_up_draws_itself_and_comes_back_from_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = executed("first_run", monkeypatch)
    assert names["result"].summary["cluster"]["requests"]["completed"] == 300
    assert names["again"].summary == names["result"].summary
    assert names["folder"].joinpath("requests.csv").exists()
    assert len(names["runs"]) == 6


@pytest.mark.slow
@pytest.mark.long
def test_the_plan_for_an_hour_is_what_runs_and_one_more_instance_holds_a_higher_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = executed("how_many_gpus_for_this_hour", monkeypatch)
    plan, more = names["plan"], names["more"]
    assert plan.holds
    assert plan.best.point["scheduler"] == "priority-fcfs"
    assert all(each["met"] for each in names["result"].summary["slo"]), (
        "the run again keeps what the plan kept"
    )
    assert more.max_rate_factor > plan.max_rate_factor > 1
    assert {"config.yaml", "plan.png", "vllm.sh"} <= {path.name for path in names["folder"].iterdir()}


def test_cache_aware_scheduling_pays_where_there_is_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("does_cache_aware_scheduling_pay", monkeypatch)
    hits, (first, last) = names["hits"], names["RATES"]
    assert hits["lpm", last] > hits["fcfs", last] + 0.1
    assert abs(hits["lpm", first] - hits["fcfs", first]) < abs(hits["lpm", last] - hits["fcfs", last])
    assert hits["lpm", last] <= names["ceiling"]
    assert names["in_order"] < names["ceiling"]
    found = [run.summary["cluster"]["prefix_hit_rate"] for run in names["roomy"].values()]
    assert found[0] == pytest.approx(found[1], abs=0.02), "with room for all, the order does not matter"


def test_first_done_first_out_gains_with_the_spread_and_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("fdfo_for_diffusion_llms", monkeypatch)
    assert names["ends"]["synchronous"].tolist() == [8, 8, 8]
    assert names["ends"]["first done, first out"].tolist() == [3, 8, 2]
    assert names["waited"] == {"synchronous": 11, "first done, first out": 0}
    gains = names["gains"]
    assert (gains.loc[0.0] - 1).abs().max() < 0.12, "without spread there is nothing to gain"
    assert 1 < gains.loc[0.25, 2] < gains.loc[0.25, 4] < gains.loc[0.25, 16]


def test_overlap_hides_the_smaller_of_host_and_device_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("overlap_and_what_it_buys", monkeypatch)
    for host_ms, gain in names["gains"].items():
        assert gain == pytest.approx((10 + host_ms) / max(10, host_ms), rel=0.03)
    (ttft_in_turns, ttft), (tpot_in_turns, tpot) = names["ttft"], names["tpot"]
    assert ttft > ttft_in_turns, "an arrival waits for the step that is launched already"
    assert tpot == pytest.approx(tpot_in_turns, rel=0.01), "and nothing is left to hide"
    assert names["rate_gain"] > 1


def test_apart_tokens_come_evenly_and_a_slow_link_costs_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("disaggregate_or_not", monkeypatch)
    p99, at_30, links = names["p99"], names["at_30"], names["links"]
    assert p99(at_30["4p2d"], "itl") < names["ITL_MS"] < p99(at_30["6"], "itl")
    assert p99(at_30["6"], "ttft") < p99(at_30["4p2d"], "ttft") < p99(links["eth25"], "ttft")
    assert p99(links["eth25"], "ttft") > names["TTFT_MS"], "the case in which it loses"


REPRODUCED = {
    "continuous batching": {0, 1, 2, 6},
    "priority": {0, 1, 2, 3, 4, 5},
    "cache-aware": set(),
    "fdfo": {0, 1, 2},
    "reuse in place and re-loop": set(),
    "zero overhead": {3, 4, 5},
}
"""Rows whose number here is that of the text to the letter; the others are explained in the notebook."""


@pytest.mark.slow
def test_the_worked_examples_come_out_as_in_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("worked_examples", monkeypatch)
    assert names["found"].keys() == REPRODUCED.keys()
    for example, rows in REPRODUCED.items():
        table = names["found"][example]
        same = {row for row in table.index if str(table["text"][row]) == str(table["here"][row])}
        assert same == rows, table
    assert names["one_class"]
    assert names["spread"](names["calm"], "ttft_ms") < 0.05
    assert names["waits"]["sjf"][0] < names["waits"]["fcfs"][0], "shortest first serves the short ones sooner"
    assert names["waits"]["sjf"][1] > names["waits"]["fcfs"][1], "and starves the long ones"
    assert names["hits"]("lpm") > 0.95
    assert names["hits"]("fcfs") < 0.5 < names["hits"]("fcfs", "hash")
    hits_by_bound = [hits for hits, _ in names["bounds"].values()]
    assert hits_by_bound == sorted(hits_by_bound)
    assert names["gains"][4] == pytest.approx(1.30, rel=0.05)
    assert names["gains"][16] == pytest.approx(1.45, rel=0.05)
    assert names["gain"](10) == pytest.approx(2, rel=0.02)
    assert names["late"] == 32
