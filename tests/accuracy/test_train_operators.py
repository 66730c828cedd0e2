"""Operator surfaces: which rows of kernel tables they are learned on, and that none was learned on none."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))

import train_operators as learner  # noqa: E402

from blis_py.hardware.gpu import load_gpu  # noqa: E402
from blis_py.latency.operator_work import Priced  # noqa: E402
from blis_py.latency.surfaces import read_surfaces, sizes_of  # noqa: E402

B200 = load_gpu("b200")
FILES = sorted((ROOT / "profiles" / "operators").glob("*-*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_surface_was_learned_on_rows_and_is_near_them(path: Path) -> None:
    surfaces = json.loads(path.read_text())["surfaces"]
    assert min(entry["rows"] for entry in surfaces.values()) >= 20
    assert max(entry["error_percent"] for entry in surfaces.values()) < 45, "experts of all sizes together"
    attention = [e["error_percent"] for name, e in surfaces.items() if name.startswith(("context", "decode"))]
    assert max(attention, default=0) < 25


def test_tables_of_one_kernel_and_of_several_are_learned_on_together() -> None:
    """Tables of a single kernel do not name it."""
    one, several = (
        pd.DataFrame({"m": [1, 2], "latency": [5.0, 7.0]}),
        pd.DataFrame({"m": [2, 2, 3], "kernel_source": ["a", "b", "a"], "latency": [9.0, 6.0, 8.0]}),
    )
    found = learner.reduced(pd.concat([one, several]), ["m"])
    assert dict(zip(found.m, found.latency, strict=True)) == {1: 5.0, 2: 6.0, 3: 8.0}


def experts(kernel: str = "own", **times: float) -> pd.DataFrame:
    """Rows of one size: `ep2=3.0` is the time of two groups, at the largest and at a small batch."""
    size = {"kernel_source": kernel, "moe_dtype": "fp8", "hidden_size": 8, "inter_size": 4, "topk": 2}
    size |= {"num_experts": 8, "moe_tp_size": 1}
    rows = [
        {**size, "moe_ep_size": int(name[2:]), "distribution": load, "num_tokens": tokens, "latency": ms}
        for (name, ms), load, tokens in product(
            times.items(), ("balanced", "power_law_1.2"), (1, learner.LARGEST_BATCH)
        )
    ]
    return pd.DataFrame(rows)


def test_groups_of_experts_that_took_all_tokens_are_left_out() -> None:
    """Half of the experts have half of an even load; a kernel that needs as long for it had all of it."""
    fine, wrong = experts(ep1=8.0, ep2=4.1, ep4=2.1), experts("another", ep1=8.0, ep2=7.9, ep4=4.0)
    left = learner._divided(pd.concat([fine, wrong]))
    assert set(left[left.kernel_source == "own"].moe_ep_size) == {1, 2, 4}
    assert set(left[left.kernel_source == "another"].moe_ep_size) == {1}
    assert len(learner._divided(fine[fine.moe_ep_size == 1])) == 4, "nothing to compare with"


def test_experts_of_a_models_sizes_have_a_curve_that_its_rows_lie_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learner, "experts_of_models", lambda: {(64.0, 32.0, 2.0, 8.0, "balanced")})
    tokens = 2 ** np.arange(13)
    rows = pd.DataFrame(
        {"kernel_source": "own", "moe_dtype": "fp8", "distribution": "balanced", "hidden_size": 64}
        | {"inter_size": 32, "topk": 2, "num_experts": 8, "moe_tp_size": 2, "moe_ep_size": 1}
        | {"num_tokens": tokens, "latency": 0.01 + 1e-6 * tokens}
    )
    found = {name: (priced, ns) for name, priced, ns in learner._of_experts(rows, B200, "")}
    sizes = sizes_of(64, 16, 8, 8, 2)
    assert found.keys() == {"experts/fp8/balanced", f"experts/fp8/balanced/{sizes}"}
    priced, ns = found[f"experts/fp8/balanced/{sizes}"]
    entry: dict[str, Any] = learner.fit(priced, ns, (learner.CURVE_KNOTS,))
    assert entry["rows"] == 13
    assert entry["error_percent"] < 3


@pytest.mark.parametrize(
    ("engine", "form", "kernel", "name"),
    [
        ("vllm", "fp8_block", "moe_torch_flow_cutlass", "cutlass"),
        ("trtllm", "w4a16_mxfp4", "vllm_oaitriton", "triton"),
        ("sglang", "fp8_block", "moe_torch_flow_cutlass", ""),
    ],
)
def test_kernels_on_hopper_that_another_engine_measured_have_names(
    engine: str, form: str, kernel: str, name: str
) -> None:
    wanted, other = experts(kernel, ep1=2.0).assign(moe_dtype=form), experts(ep1=9.0).assign(moe_dtype=form)
    own = experts(ep1=4.0)
    found = list(learner._on_hopper(engine, own, pd.concat([wanted, other]), load_gpu("h200")))
    names = {entry[0] for entry in found}
    assert names == ({f"experts/{form}@{name}/{load}" for load in ("balanced", "steep")} if name else set())
    assert all((ns == 2e6).all() for _, _, ns in found)


def test_nothing_is_learned_on_nothing() -> None:
    none = np.zeros(0)
    with pytest.raises(ValueError, match="no rows"):
        learner.fit(Priced(none, (none,)), none, ((0, 1),))


def test_a_curve_of_the_own_sizes_goes_before_the_surface_of_all(tmp_path: Path) -> None:
    sizes = sizes_of(4096, 384.0, 128, 128, 8)
    assert sizes == "4096x384,128of128,8"
    flat = {"knots": [[0], [0], [0], [0]], "percent": [0]}
    top = {"gpu": "b200", "engine": "vllm", "source": "a test", "surfaces": {"experts/fp8/skewed": flat}}
    curves = {"curve_knots": [0, 10], "curves": {f"experts/fp8/skewed/{sizes}": [0, 100]}}
    path = tmp_path / "b200-vllm.json"
    path.write_text(json.dumps({**top, **curves}))
    surfaces = read_surfaces(path)
    curve = surfaces.named(f"experts/fp8/skewed/{sizes}")
    at = tuple(np.array([value]) for value in (5.0, 7.0, 12.0, 8.0))
    assert curve.ns(Priced(np.array([10.0]), at)) == pytest.approx(10 * np.exp(0.5))
    assert surfaces.has(f"experts/fp8/skewed/{sizes}")
    assert not surfaces.has(f"experts/fp8/skewed/{sizes}0")


class Decodes:
    """Tables of latent attention's decodes of several engines, in ms, by cached tokens of one sequence."""

    def __init__(self, engine: str, ms: dict[str, dict[int, float]]) -> None:
        self.engine, self._ms = engine, ms

    def all_engines(self) -> list[Decodes]:
        return [Decodes(engine, self._ms) for engine in self._ms]

    def read(self, name: str) -> pd.DataFrame:
        rows = [
            {"kv_cache_dtype": "fp8", "batch_size": 1, "num_heads": 16, "step": step, "latency": ms}
            for step, ms in self._ms[self.engine].items()
        ]
        return pd.DataFrame(rows)


def replayed(engine: str, **ms: dict[int, float]) -> dict[int, float]:
    keys = ["batch_size", "step", "num_heads"]
    rows = learner._replayed(Decodes(engine, ms), "fp8", keys)  # type: ignore[arg-type]
    return dict(zip(rows.step, rows.latency, strict=True))


def test_decodes_that_a_table_has_with_their_launches_are_those_of_other_engines() -> None:
    """CUDA graphs hold no launch from Python; a row far above both is noise where the kernel is short."""
    launched = {1: 0.16, 255: 0.15, 1023: 0.9, 8191: 0.17, 131071: 1.2}
    fast = {1: 0.01, 255: 0.012, 1023: 0.02, 8191: 0.06, 131071: 0.8}
    found = replayed("vllm", vllm=launched, sglang=fast, trtllm={**fast, 1: 0.02, 255: 0.03})
    assert found == {1: 0.01, 255: 0.012, 1023: 0.02, 8191: 0.06, 131071: 1.2}
    assert replayed("sglang", vllm=launched, sglang=fast) == fast, "a table of graphs is as it is"
    assert replayed("vllm", vllm=launched) == launched, "nothing to put in place"


def test_sglang_has_the_kernels_of_vllm_for_mxfp4_on_hopper_where_groups_are_undivided() -> None:
    """Its table has weights that were expanded to 16 bits, four times as large."""

    def rows(engine: str, form: str = "w4a16_mxfp4") -> pd.DataFrame:
        return pd.DataFrame({"moe_dtype": form, "moe_ep_size": [1, 2], "latency": 1.0, "of": engine})

    own = pd.concat([rows("sglang"), rows("sglang", "fp8_block")])
    left = learner._as_served_on_hopper(own, pd.concat([rows("vllm"), rows("vllm", "bfloat16")]))
    found = sorted(zip(left.of, left.moe_dtype, left.moe_ep_size, strict=True))
    assert found == [
        ("sglang", "fp8_block", 1),
        ("sglang", "fp8_block", 2),
        ("sglang", "w4a16_mxfp4", 2),
        ("vllm", "w4a16_mxfp4", 1),
    ]
