"""Defaults that presets derive are those of the engines' own functions, where a wheel is unpacked."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engines import defaults
from benchmarks.engines.wheels import Wheel, cache_folder

PINNED = [(package, version) for package, versions in defaults.RELEASES.items() for version in versions]


@pytest.mark.parametrize(("package", "version"), PINNED, ids="-".join)
def test_derived_defaults_are_the_engines(package: str, version: str) -> None:
    root = cache_folder() / f"{package}-{version}"
    if not root.exists():
        pytest.skip(f"{package} {version} is not unpacked here; make engines downloads it")
    count, different = defaults.compared(package, Wheel(version, root))
    assert count > 500
    assert not different, str(different[0])


WRONG = """
class EngineArgs:
    @classmethod
    def get_batch_defaults(cls, world_size: int) -> "Limits":
        from vllm.usage.usage_lib import UsageContext

        tokens = 4096 if current_platform.get_device_total_memory() >= 160 * GiB_bytes else 2048
        return {UsageContext.OPENAI_API_SERVER: tokens}, {UsageContext.OPENAI_API_SERVER: 256}
"""


def test_a_function_of_an_engine_is_run_without_its_module(tmp_path: Path) -> None:
    module = tmp_path / "vllm" / "engine" / "arg_utils.py"
    module.parent.mkdir(parents=True)
    module.write_text(f"import a_requirement_that_is_absent\n{WRONG}", encoding="utf-8")
    questions = [{"name": "GPU", "memory_bytes": gib << 30, "capability": [9, 0]} for gib in (80, 180)]
    answers = defaults.answers_of(tmp_path, "vllm-limits", questions)
    assert answers == [{"tokens": 2048, "seqs": 256}, {"tokens": 4096, "seqs": 256}]


def test_a_function_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)vllm-limits: .*No such file"):
        defaults.answers_of(tmp_path, "vllm-limits", [{}])


def test_gpus_at_the_edges_of_rules_are_among_those_compared() -> None:
    names = [gpu.name for gpu in defaults.gpus()]
    assert {"H100", "B200", "A100-80", "70 GiB", "GB10"} <= set(names)
