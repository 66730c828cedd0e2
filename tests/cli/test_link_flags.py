"""`--link-gbps`, and instances of more GPUs than a link joins."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

Blis = Callable[..., tuple[int, str, str]]
LLAMA = ("run", "--model", "llama-3.1-70b", "--num-requests", "4", "--output-tokens-stdev", "0")


def test_a_slower_link_makes_a_slower_instance(blis: Blis) -> None:
    found = []
    for link in ((), ("--link-gbps", 20)):
        code, out, _ = blis(*LLAMA, "--tp", 4, "--latency-model", "trained", *link)
        assert code == 0
        found.append(json.loads(out)["cluster"]["e2e_ms"]["mean"])
    assert found[1] > 1.05 * found[0]


def test_the_link_a_profile_has_changes_nothing_when_it_is_given(blis: Blis) -> None:
    flags = (*LLAMA, "--tp", 4, "--latency-model", "trained")
    report, own = (json.loads(blis(*flags, *link)[1]) for link in (("--link-gbps", 450), ()))
    assert report["cluster"] == own["cluster"]


@pytest.mark.parametrize("model", ["trained-physics", "fitted"])
def test_a_link_without_a_price_is_refused(blis: Blis, model: str) -> None:
    profile = ("--profile", "cpu/tiny-ar") if model == "fitted" else ()
    code, _, err = blis(*LLAMA, "--latency-model", model, *profile, "--link-gbps", 50)
    assert code == 2
    assert f"--link-gbps: has no effect on {model}; drop it or use --latency-model trained or roofline" in err


def test_sixteen_gpus_of_two_servers_are_refused_or_reported(blis: Blis) -> None:
    code, _, err = blis(*LLAMA, "--tp", 16, "--latency-model", "trained")
    assert code == 2
    assert "--tp: the link joins 8 H100; 16 would need another link" in err
    code, _, err = blis(*LLAMA, "--tp", 16, "--engine", "blis")
    assert code == 0
    assert "note: TP16 is more GPUs than the 8 H100 that a link joins" in err
    code, _, err = blis(*LLAMA, "--tp", 16, "--latency-model", "trained", "--link-gbps", 50)
    assert code == 2
    assert "--tp: PCIe joins 8 H100; 16 would need another link" in err
    code, _, err = blis(*LLAMA, "--tp", 16, "--latency-model", "trained", "--link-gbps", 400)
    assert code == 0
    stated = "a small all-reduce takes 5 µs as on the H100's own link"
    assert f"note: all 16 GPUs are linked by 400 GB/s, as given; {stated}" in err


def test_a_network_is_no_link_of_an_instance(blis: Blis) -> None:
    code, _, err = blis(*LLAMA, "--tp", 4, "--latency-model", "trained", "--link-gbps", 1.25)
    assert code == 2
    assert "--link-gbps: is slower than any PCIe slot of a GPU server" in err
    assert "describe what was measured in a GPU file" in err


def test_a_gpu_known_by_its_datasheet_alone_reports_it(blis: Blis) -> None:
    code, _, err = blis(*LLAMA, "--gpu", "mi300x", "--tp", 2, "--latency-model", "trained")
    assert code == 0
    assert "note: the MI300X is known by its datasheet alone" in err
