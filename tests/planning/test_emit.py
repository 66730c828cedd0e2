"""Manifests of a plan pass the schemas of those who read them, and are read back as its configuration.

Kubernetes' schemas are those of `kubernetes-validate`, that of compose files the published one. The values of
llm-d's charts and Dynamo's graph have none that fits here: their containers are validated as those of a pod,
and their own keys compared with the ones that the charts and the CRD read.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from test_scripts_read_back import APART, planned, presets, read_back

import blis_py as blis
from blis_py.cli import main
from blis_py.config.loader import load_config, pool_configs
from blis_py.errors import InputError
from blis_py.launch.own_settings import server_settings
from blis_py.launch.reader import read_launch
from blis_py.planning import serving
from blis_py.planning.emit import EMITTED

KUBERNETES = "1.34"
COMPOSE = json.loads((Path(__file__).parent / "schemas" / "compose-spec.json").read_text())
ROOT = Path(__file__).resolve().parents[2]
ONE = {"tp": 2, "num_instances": 3, "routing_policy": "least-loaded"}
PLANS = {
    "one": ONE,
    "alone": {"tp": 1},
    "kernels": {"model": "gpt-oss-20b", "routing_policy": "weighted"},
    **APART,
}


def forms_of(best: Any, name: str) -> list[str]:
    """The forms that can hold a plan."""
    if serving.engine_of(best.config) != "vllm" or name in ("other pools", "beside shared ones"):
        return [form for form in EMITTED if form != "llm-d"]
    return list(EMITTED)


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def check_pod(spec: dict[str, Any]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def check_kubernetes(texts: dict[str, str]) -> None:
    for data in (data for text in texts.values() for data in documents(text)):
        kubernetes_validate.validate(data, KUBERNETES, strict=True)
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", data["metadata"]["name"])
        assert len(data["metadata"]["name"]) <= 63


def check_compose(texts: dict[str, str]) -> None:
    (text,) = texts.values()
    data = yaml.safe_load(text)
    jsonschema.validate(data, COMPOSE)
    for service in data["services"].values():
        assert {each["source"] for each in service.get("configs", ())} <= {*data.get("configs", ())}
        assert {*service.get("depends_on", ())} <= {*data["services"]}


OF_A_WORKER = {"componentType", "subComponentType", "replicas", "resources", "envFromSecret", "extraPodSpec"}
OF_A_WORKER |= {"scalingAdapter", "multinode", "envs"}


def check_dynamo(texts: dict[str, str]) -> None:
    (data,) = documents(texts["graph.yaml"])
    assert (data["apiVersion"], data["kind"]) == ("nvidia.com/v1alpha1", "DynamoGraphDeployment")
    assert set(data["spec"]) == {"backendFramework", "services"}
    for service in data["spec"]["services"].values():
        assert service.keys() <= OF_A_WORKER
        assert service["componentType"] in ("frontend", "worker")
        assert service.get("subComponentType", "decode") in ("prefill", "decode")
        assert isinstance(service.get("resources", {"limits": {"gpu": "1"}})["limits"]["gpu"], str)
        pod = dict(service["extraPodSpec"])
        check_pod({"containers": [{"name": "main", **pod.pop("mainContainer")}], **pod})


OF_A_SIDE = {"create", "replicas", "parallelism", "containers", "extraConfig"}


def check_llmd(texts: dict[str, str]) -> None:
    (data,) = documents(texts["modelservice-values.yaml"])
    assert set(data) == {"modelArtifacts", "routing", "decode", "prefill"}
    for side in (data["decode"], data["prefill"]):
        assert side.keys() <= OF_A_SIDE
        for each in side.get("containers", ()):
            own = {
                key: value for key, value in each.items() if key not in ("modelCommand", "mountModelVolume")
            }
            check_pod({"containers": [own], **side.get("extraConfig", {})})
    check_kubernetes({"autoscaler.yaml": texts["autoscaler.yaml"]})
    picker = yaml.safe_load(texts["inferencepool-values.yaml"])["inferenceExtension"]
    config = yaml.safe_load(picker["pluginsCustomConfig"][picker["pluginsConfigFile"]])
    plugins = {each["type"] for each in config["plugins"]}
    named = {each["pluginRef"] for profile in config["schedulingProfiles"] for each in profile["plugins"]}
    assert named <= plugins


CHECKS = {"k8s": check_kubernetes, "compose": check_compose, "dynamo": check_dynamo, "llm-d": check_llmd}


@pytest.mark.parametrize("engine", ["vllm", "vllm-0.12", "sglang", "trtllm"])
@pytest.mark.parametrize("name", PLANS)
def test_manifests_are_valid_and_read_back(engine: str, name: str, tmp_path: Path) -> None:
    best = planned(engine=engine, **{"gpu": "h200", **PLANS[name]})
    for form in forms_of(best, name):
        texts = EMITTED[form](best)
        CHECKS[form](texts)
        first, text = next(iter(texts.items()))
        back = read_back(text, first, tmp_path)
        assert server_settings(back) == server_settings(best.config), form
        wanted, pools = (
            [(each.name, each.count, server_settings(own)) for each, own in pool_configs(config)]
            for config in (best.config, back)
        )
        assert pools == wanted, form


@pytest.mark.parametrize("engine", presets())
def test_manifests_are_read_back_for_every_preset_and_release(engine: str, tmp_path: Path) -> None:
    best = planned(engine=engine, tp=2, gpu="h200", num_instances=3, routing_policy="least-loaded")
    for form in forms_of(best, "one"):
        first, text = next(iter(EMITTED[form](best).items()))
        assert server_settings(read_back(text, first, tmp_path)) == server_settings(best.config), form


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("form", EMITTED)
def test_manifests_say_the_pools_by_themselves(engine: str, form: str, tmp_path: Path) -> None:
    """Without the lines of the simulator: sizes, division, limits and roles are those of the servers."""
    if form == "llm-d" and engine != "vllm":
        return
    best = planned(engine=engine, gpu="h200", **APART["unlike experts"])
    first, text = next(iter(EMITTED[form](best).items()))
    path = tmp_path / first
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("# blis:")))
    launch = read_launch([str(path)])
    assert not launch.unknown
    back = load_config(overrides={"gpu": "h200", **launch.values})
    for (pool, own), (wanted, theirs) in zip(pool_configs(back), pool_configs(best.config), strict=True):
        assert (pool.role, pool.count) == (wanted.role, wanted.count)
        assert [own.tp, own.attention_dp, own.ep] == [theirs.tp, theirs.attention_dp, theirs.ep]
        assert own.scheduler.max_num_seqs == theirs.scheduler.max_num_seqs
        assert own.scheduler.max_num_batched_tokens == theirs.scheduler.max_num_batched_tokens


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200", "a100-80", "l40s", "gb200"])
def test_servers_go_to_nodes_with_their_gpu(gpu: str, tmp_path: Path) -> None:
    best = planned(engine="vllm", gpu=gpu)
    for form in ("k8s", "dynamo", "llm-d"):
        first, text = next(iter(EMITTED[form](best).items()))
        (tmp_path / first).write_text(re.sub("(?m)^# blis:.*\n", "", text))
        assert read_launch([str(tmp_path / first)]).values["gpu"] == gpu


def test_the_router_and_the_autoscaler_are_of_the_plan() -> None:
    texts = EMITTED["k8s"](planned(engine="sglang", gpu="h200", **ONE))
    assert "--policy\n        - power_of_two" in texts["router.yaml"]
    assert "the router simulated is least-loaded" in texts["router.yaml"]
    (scaled,) = documents(texts["autoscaler.yaml"])
    assert (scaled["spec"]["minReplicas"], scaled["spec"]["maxReplicas"]) == (3, 6)
    scorers = {"routing_policy": "weighted", "routing_scorers": {"queue-depth": 2.0, "prefix-affinity": 1.0}}
    picker = EMITTED["llm-d"](planned(engine="vllm", gpu="h200", **scorers))["inferencepool-values.yaml"]
    assert "pluginRef: queue-scorer\n          weight: 2.0" in picker
    assert "router.yaml" not in EMITTED["k8s"](planned(engine="vllm", gpu="h200"))


@pytest.mark.parametrize(
    ("form", "settings", "message"),
    [
        ("llm-d", {"engine": "sglang"}, "is for vllm, not sglang"),
        ("k8s", {"engine": "vllm", "model": "deepseek-r1", "tp": 8, "gpu": "gb200"}, "span nodes.*dynamo"),
        ("llm-d", {"engine": "vllm", **APART["other pools"]}, "prefill and decode, not for 2 pools"),
        (
            "k8s",
            {"pools": [{"name": "a", "engine": "vllm"}, {"name": "b", "engine": "sglang"}]},
            "one engine",
        ),
    ],
)
def test_what_a_form_cannot_hold_is_refused(form: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EMITTED[form](planned(**{"gpu": "h200", **settings}))


def test_a_server_over_nodes_is_one_worker_of_dynamo(tmp_path: Path) -> None:
    best = planned(engine="vllm", gpu="gb200", model="deepseek-r1", tp=8, ep=8, attention_dp=8)
    (text,) = EMITTED["dynamo"](best).values()
    check_dynamo({"graph.yaml": text})
    worker = yaml.safe_load(text)["spec"]["services"]["ServerWorker"]
    assert (worker["multinode"], worker["resources"]) == ({"nodeCount": 2}, {"limits": {"gpu": "4"}})
    assert server_settings(read_back(text, "graph.yaml", tmp_path)) == server_settings(best.config)


QUESTION = ["plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--engine", "vllm", "--ttft", "1s", "--quick"]
QUESTION += ["--fix", "tp=1", "--no-tuning", "--no-cache", "--workers", "1"]


def rerun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "BLIS": f"{sys.executable} -m blis_py", "PYTHONPATH": str(ROOT)}
    script = ["sh", str(folder / "proof" / "rerun.sh"), *words]
    return subprocess.run(script, env=env, capture_output=True, text=True, check=False)


def test_the_proof_is_run_again_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i / 4},{100 + i},20\n" for i in range(40))
    Path("day.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    assert main([*QUESTION, "--trace", "day.csv", "--emit", "k8s", "there", "--emit", "compose", "here"]) == 0
    folder = tmp_path / "there"
    Path("day.csv").unlink()
    (folder / "proof").rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "moved").rename(tmp_path / "elsewhere" / "proof")
    again = rerun(tmp_path / "elsewhere", "plan")
    assert (again.returncode, again.stdout) == (0, "run: the same bytes\nplan: the same bytes\n"), (
        again.stderr
    )
    proof = tmp_path / "elsewhere" / "proof"
    assert json.loads((proof / "versions.json").read_text())["seed"] == 42
    assert "--trace inputs/0-day.csv" in (proof / "command.txt").read_text()
    result = proof / "run" / "requests.csv"
    result.write_text(result.read_text().replace("1", "2", 1))
    assert rerun(tmp_path / "elsewhere").returncode != 0
    assert {path.name for path in folder.iterdir()} == {"servers.yaml", "autoscaler.yaml", "complete.json"}
    assert (tmp_path / "here" / "compose.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--emit", "helm", "x"], "unknown form.*k8s, llm-d, dynamo, compose"),
        (["--emit", "k8s"], "needs a folder.*--emit k8s DIR"),
        (["--emit", "k8s", "x", "--emit", "compose", "x"], "is given twice"),
        (["--pareto", "--emit", "k8s", "x"], "does not apply to --pareto"),
    ],
)
def test_a_wrong_form_is_refused_before_the_search(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*QUESTION, "--rate", "1", *words]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_summary_of_the_proof_is_that_of_the_configuration(tmp_path: Path) -> None:
    assert (
        main(
            [*QUESTION, "--rate", "2", "--isl", "100", "--osl", "20", "--emit", "dynamo", str(tmp_path / "x")]
        )
        == 0
    )
    proof = tmp_path / "x" / "proof"
    own = blis.run(str(proof / "config.yaml")).summary
    assert json.loads((proof / "run" / "summary.json").read_text()) == json.loads(json.dumps(own))
