"""Lengths that are given are those of all requests; BLIS's standard deviation is only BLIS's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.config.loader import dump, load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.setup.from_config import demand

MODEL: dict[str, Any] = {"model": "qwen3-14b", "gpu": "h100", "num_requests": 20}


def config(**settings: Any) -> RunConfig:
    return blis.build(**MODEL, **settings).config


def lengths(**settings: Any) -> tuple[set[int], set[int]]:
    table = demand(config(**settings)).table
    return set(table.prompt_tokens.tolist()), set(table.output_tokens.tolist())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "vllm-0.15"])
def test_lengths_that_are_given_are_those_of_all_requests(engine: str) -> None:
    assert lengths(engine=engine, prompt_tokens=1000, output_tokens=100) == ({1000}, {100})
    assert lengths(engine=engine, prompt_tokens=1000) == ({1000}, {512})
    assert lengths(engine=engine, output_tokens=1, prefix_tokens=40) == ({552}, {1})


def test_bounds_of_a_distribution_do_not_bound_a_length() -> None:
    assert lengths(prompt_tokens=20_000, output_tokens=9000) == ({20_000}, {9000})
    assert lengths(prompt_tokens=1, output_tokens=1) == ({1}, {1})
    with pytest.raises(InputError, match=r"lies outside \[2000, 7000\]"):
        demand(config(prompt_tokens=1000, prompt_tokens_min=2000))


def test_a_deviation_that_is_given_is_that_of_its_side() -> None:
    prompts, outputs = lengths(prompt_tokens=1000, prompt_tokens_stdev=100)
    assert len(prompts) > 10
    assert outputs == {512}


def test_under_blis_lengths_vary_as_in_blis_and_a_note_states_it() -> None:
    own = config(engine="blis", prompt_tokens=1000, output_tokens=100)
    assert (own.workload.prompt_tokens_stdev, own.workload.output_tokens_stdev) == (256, 256)
    assert any("lengths vary, as by default in BLIS" in note for note in demand(own).notes)
    alike = {"prompt_tokens_stdev": 0, "output_tokens_stdev": 0}
    assert not demand(config(engine="blis", prompt_tokens=1000, **alike)).notes
    assert not demand(config(engine="blis")).notes


def test_coefficients_alone_are_not_blis() -> None:
    own = config(prompt_tokens=1000, beta_coeffs=[1.0] * 7, alpha_coeffs=[0, 0, 0])
    assert own.engine == "blis"
    assert own.workload.prompt_tokens_stdev == 0


def test_bounds_without_a_deviation_are_noted() -> None:
    (note,) = (
        n
        for n in blis.run(**MODEL, prompt_tokens=60, output_tokens=4, prompt_tokens_max=90).notes
        if "max" in n
    )
    assert note.startswith("workload.prompt_tokens_max has no effect on lengths that are all alike")


def test_a_saved_configuration_keeps_its_lengths_until_others_are_given(tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(config()))
    assert load_config(saved).workload.prompt_tokens_stdev == 256
    typed = load_config(saved, [("--prompt-tokens", "workload.prompt_tokens", 1000)])
    assert typed.workload.prompt_tokens_stdev == 0
    saved.write_text(dump(typed).replace("prompt_tokens_stdev: 0", "prompt_tokens_stdev: 256"))
    assert load_config(saved).workload.prompt_tokens_stdev == 256
