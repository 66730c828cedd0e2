"""`--format blis-text` beside the recorded standard output of the peer, line by line."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import statistics
from pathlib import Path

import pytest

from blis_py.cli import main

HEADING = "=== Simulation Metrics ==="
OTHERWISE = ("Priority Inversions", "HOL Blocking Events")
"""Counted by another definition here."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def ours(folder: Path, variant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a script of the peer's users reads if they put blis-py in its place."""
    for path in folder.iterdir():
        if path.suffix == ".gz" and path.name.startswith(("trace", "bundle", "spec")):
            (tmp_path / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        elif path.suffix == ".yaml":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = (folder / "cmd.txt").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith("blis ") and f"metrics{variant}.json" in one]
    words = shlex.split(line)[1:]
    place = {word: str(tmp_path / word) for word in words if word.endswith((".yaml", ".csv", ".json"))}
    assert (
        main([*(place.get(word, word) for word in words), "--engine", "blis", "--format", "blis-text"]) == 0
    )
    return capsys.readouterr().out


def text_of(stdout: str) -> list[str]:
    """The sections behind the last block of JSON."""
    _, _, behind = stdout.rpartition("\n}\n")
    return [line for line in behind.splitlines() if not line.startswith(OTHERWISE)]


def blocks_of(stdout: str) -> list[dict[str, object]]:
    """As a script finds them: behind every heading, up to the brace in the first column."""
    return [json.loads(part.partition("\n}\n")[0] + "}") for part in stdout.split(HEADING)[1:]]


@pytest.mark.parametrize(
    ("case", "variant", "within"),
    [
        ("06_token_bucket", "", 1e-3),
        ("07_tier_shed", "", 1e-3),
        ("09_tenant_budgets", "", 0.03),  # load decides there, and one request is another's
        (
            "11_flow_priority_shed",
            "_shed",
            0.6,
        ),  # in a queue, all behind the first that differs wait otherwise
        ("11_flow_priority_shed", "_reject", 0.6),
        ("13_flow_eviction", "", 0.6),
        ("26_goodput_multi_model", "", 1e-3),
    ],
)
def test_the_text_is_the_peers_line_by_line(
    case: str,
    variant: str,
    within: float,
    shared_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same words in the same order, and numbers but for the last decimals of microseconds."""
    folder = shared_data / "peer_runs" / case
    out = ours(folder, variant, tmp_path, capsys)
    theirs = gzip.decompress((folder / f"stdout{variant}.txt.gz").read_bytes()).decode()
    mine, wanted = text_of(out), text_of(theirs)
    assert [NUMBER.sub("#", line) for line in mine] == [NUMBER.sub("#", line) for line in wanted]
    for line, want in zip(mine, wanted, strict=True):
        numbers = [float(number) for number in NUMBER.findall(line)]
        assert numbers == pytest.approx([float(n) for n in NUMBER.findall(want)], rel=within, abs=2), want


PD = re.compile(r"=== PD Metrics ===\n((?:[A-Z].*: .*\n?)*)")
"""The section and its lines."""


@pytest.mark.parametrize(
    ("case", "variant", "within"),
    [
        ("14_pd_always", "_plain", 1e-4),
        ("14_pd_always", "_pools", 1e-4),
        ("14_pd_always", "_contention", 1e-4),
        ("15_pd_prefix_threshold", "_plain", 0.07),  # ties between instances are broken by its own draws
        ("15_pd_prefix_threshold", "_contention", 0.07),
    ],
)
def test_the_section_on_disaggregation_has_its_lines(
    case: str,
    variant: str,
    within: float,
    shared_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The words of its text; numbers of its requests with the transfer begun at the end of the prefill."""
    folder = shared_data / "peer_runs" / case
    mine = PD.findall(ours(folder, variant, tmp_path, capsys))
    theirs = PD.findall(gzip.decompress((folder / f"stdout{variant}.txt.gz").read_bytes()).decode())
    assert [NUMBER.sub("#", lines) for lines in mine] == [NUMBER.sub("#", lines) for lines in theirs]
    own = dict(line.split(": ") for line in mine[0].splitlines())
    for title, number in expected_of(folder, variant).items():
        assert float(NUMBER.findall(own[title])[0]) == pytest.approx(number, rel=within), title


def expected_of(folder: Path, variant: str) -> dict[str, float]:
    """First numbers of the section's lines, from the requests of the run with all mistakes corrected."""
    run = json.loads(gzip.decompress((folder / f"metrics{variant}_allfixed.json.gz").read_bytes()))
    lines = gzip.decompress((folder / f"decisions{variant}_allfixed.jsonl.gz").read_bytes()).splitlines()
    parents = [entry for entry in map(json.loads, lines) if entry["kind"] == "pd_parent"]
    ttft_ms = {one["requestID"]: one["ttft_ms"] for one in run["requests"]}
    begins, ends = ([one[f"transfer_{which}"] for one in parents] for which in ("start", "complete"))
    active = [sum(b <= at for b in begins) - sum(e <= at for e in ends) for at in begins]
    at_once = {
        "Peak Concurrent Transfers": max(active),
        "Mean Transfer Queue Depth": statistics.fmean(active),
    }
    return {
        "Disaggregated Requests": len(parents),
        "Parent TTFT (us)": statistics.fmean(ttft_ms[one["req"]] for one in parents) * 1e3,
        "KV Transfer Duration (us)": (sum(ends) - sum(begins)) / len(parents),
        **(at_once if variant == "_contention" else {}),
    }


@pytest.mark.parametrize("case", ["07_tier_shed", "26_goodput_multi_model"])
def test_every_instance_has_its_block_before_the_clusters(
    case: str, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_data / "peer_runs" / case
    mine = blocks_of(ours(folder, "", tmp_path, capsys))
    wanted = blocks_of(gzip.decompress((folder / "stdout.txt.gz").read_bytes()).decode())
    assert [list(block) for block in mine] == [list(block) for block in wanted]
    for block, want in zip(mine, wanted, strict=True):
        for key in ("instance_id", "completed_requests", "injected_requests", "total_output_tokens"):
            assert block[key] == want[key]
        for key in ("e2e_mean_ms", "ttft_p99_ms", "vllm_estimated_duration_s"):
            assert block[key] == pytest.approx(want[key], rel=1e-3)


@pytest.mark.parametrize(
    "case", ["07_tier_shed", "08_gaie_legacy", "09_tenant_budgets", "16_autoscaler_node_pools"]
)
def test_policy_bundles_run_as_they_are_or_are_refused_by_name(
    case: str, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = shared_data / "peer_runs" / case / "bundle.yaml"
    words = ["run", "--model", "qwen3-14b", "--num-requests", "3", "--policy-config", str(bundle)]
    code = main([*words, "--engine", "blis", "--format", "blis-text"])
    err = capsys.readouterr().err
    later = [key for key in ("node_pools", "autoscaler") if f"\n{key}:" in f"\n{bundle.read_text()}"]
    assert code == (2 if later else 0)
    if later:
        assert f"{bundle}: {later[0]}" in err or f"{bundle}: {later[1]}" in err
