from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import blis_py as blis
from blis_py.config.loader import as_dict, dump, load_config
from blis_py.files import bundled


def test_build_run_records_in_three_lines() -> None:
    simulation = blis.build(
        model="qwen3-14b", num_instances=2, num_requests=10, rate=5, scheduler="priority-fcfs"
    )
    result = simulation.run()
    assert result.summary["cluster"]["requests"]["completed"] == len(result.requests) == 10
    assert set(result.steps["instance"]) == {0, 1}
    assert result.config.scheduler.policy == "priority-fcfs"


def test_run_and_the_command_line_give_the_same_summary(capsys: pytest.CaptureFixture[str]) -> None:
    from blis_py.cli import main

    main(["run", "--model", "qwen3-14b", "--num-requests", "9", "--workload", "chatbot", "--rate", "3"])
    printed = json.loads(capsys.readouterr().out)
    assert blis.run(model="qwen3-14b", num_requests=9, workload="chatbot", rate=3).summary == printed


def test_replay_takes_a_trace_and_its_options(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,200,20\n")
    options = {"model": "qwen3-14b", "limit": 1, "latency": {"model": "roofline"}}
    result = blis.replay(trace, **options)
    assert len(result.requests) == 1
    assert result.config.latency.model == "roofline"
    assert blis.replay(trace=trace, **options).summary == result.summary


def test_settings_go_over_a_config_object_or_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: qwen3-14b\nworkload: {num_requests: 5}\n")
    assert blis.build(path, tp=2).config.tp == 2
    config = load_config(path)
    assert blis.build(config, tp=2).config == blis.build(path, tp=2).config
    assert blis.build(config).scheduler.num_kv_blocks < blis.build(config, tp=2).scheduler.num_kv_blocks


def test_an_unknown_setting_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(blis.InputError, match="num_instance: unknown setting; did you mean 'num_instances'"):
        blis.build(model="qwen3-14b", num_instance=3)
    with pytest.raises(blis.InputError, match=r"latency.modle: unknown key"):
        blis.build(model="qwen3-14b", latency={"modle": "roofline"})
    with pytest.raises(blis.InputError, match="does not fit"):
        blis.build(model="llama-3.1-70b", gpu="h100")


def test_what_is_assumed_of_a_model_is_among_the_notes(tmp_path: Path) -> None:
    (hopper,) = blis.build(model="gpt-oss-120b", gpu="h100", max_num_seqs=256, num_requests=1).notes
    assert hopper.startswith("step times of what was not learned on together: ")
    assert blis.build(model="gpt-oss-120b", gpu="b200", num_requests=1).notes == ()
    plain = blis.build(model="llama-3.1-8b", gpu="h200", num_requests=1)
    assert plain.notes == ()
    config = json.loads((bundled.root("profiles") / "models" / "qwen3-14b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen9"}))
    unknown = blis.run(model_config=str(tmp_path), num_requests=1)
    assert any("the model_type 'qwen9'" in note for note in unknown.notes)


def test_dump_and_load_are_inverse(tmp_path: Path) -> None:
    config = load_config(
        overrides={
            "model": "m",
            "slo": ["ttft.p99=1s"],
            "latency": {"model": "linear", "linear": {"gpu": {"step": 1000}}},
            "admission": {"slo_priorities": {"critical": 9}},
            "workload": {"trace": "x.csv", "slo_shares": {"critical": 0.5}},
        }
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump(config))
    assert load_config(path) == config
    assert as_dict(config)["workload"]["trace"] == str(Path("x.csv").resolve())


def test_paths_in_a_config_file_start_at_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("workload: {trace: t.csv}\nmodel_config: shapes/config.json\ngpu: mine.yaml\n")
    config = load_config(path)
    assert config.workload.trace == str(tmp_path / "t.csv")
    assert config.model_config == str(tmp_path / "shapes" / "config.json")
    assert config.gpu == str(tmp_path / "mine.yaml")


def test_an_empty_section_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: m\nscheduler:\nrouting:\n")
    assert load_config(path) == load_config(overrides={"model": "m"})


def test_importing_the_package_imports_none_of_it() -> None:
    program = "import sys, blis_py; print([m for m in sys.modules if m.startswith(('blis_py.', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_only_what_exists_is_exported() -> None:
    for name in blis.__all__:
        assert getattr(blis, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = blis.nothing
