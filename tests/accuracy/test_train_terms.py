"""Terms of engines: groups that are learned together, and what a family left out leaves."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))

import train_terms as learner  # noqa: E402

NAMES, LAUNCH = learner.NAMES, learner.ALIKE
TTFT_NS = 100e6


def found(shown_ns: list[float], certain: list[float]) -> np.ndarray:
    """Times to launch a layer after steps from none, of groups whose only figure depends on that time.

    Args:
        shown_ns: where the figure of each group is met.
        certain: weights of the figures; 0 = it shows nothing.
    """
    values = np.zeros(len(shown_ns) * len(NAMES))
    at = [learner.places(number)[LAUNCH] for number in range(len(shown_ns))]
    slopes = np.zeros((len(shown_ns), len(values)))
    slopes[range(len(shown_ns)), at] = 60 / TTFT_NS
    for _ in range(20):
        logs = slopes @ values - np.array(shown_ns) * 60 / TTFT_NS
        values = learner.improved(values, logs, slopes, np.array(certain), 1.0)
    return values[at]


def test_a_group_that_shows_no_launches_is_drawn_to_the_other_and_not_to_none() -> None:
    shown, unseen = found([2e6, 2e6], [20.0, 0.0])
    assert shown == pytest.approx(2e6, rel=0.1)
    assert 0.5 * shown < unseen < shown
    assert found([2e6], [0.0])[0] == 0.0


def test_groups_that_show_their_launches_keep_them() -> None:
    one, other = found([1e6, 3e6], [50.0, 50.0])
    assert one == pytest.approx(1e6, rel=0.15)
    assert other == pytest.approx(3e6, rel=0.15)


def test_no_other_term_is_drawn_to_that_of_the_other_group() -> None:
    together = learner.drawn_together(2)
    coupled = {place % len(NAMES) for place in np.flatnonzero(together.any(axis=0))}
    assert coupled == {LAUNCH}
    np.testing.assert_array_equal(learner.drawn_together(1), 0.0)


def test_families_count_by_the_root_of_their_points_and_one_left_out_not_at_all() -> None:
    of = [
        SimpleNamespace(number=number, point=SimpleNamespace(family=family))
        for number, family in ((0, "a"), (0, "a"), (0, "a"), (0, "a"), (0, "b"), (1, "a"))
    ]
    each = learner.shares(of)[::2]
    assert each[4] == pytest.approx(2 * each[0])
    assert each[:5].mean() == pytest.approx(1.0) == each[5]
    assert learner.shares(of, "a")[::2].tolist() == [0, 0, 0, 0, 1, 0]


def test_the_host_takes_more_to_launch_a_layer_of_more_kernels() -> None:
    """A mixture of experts more than a dense layer, and latent attention more than plain one."""
    groups = yaml.safe_load((ROOT / "profiles" / "operators" / "terms.yaml").read_text())["groups"]
    ns = {name: terms["launch_layer_ns"] for name, terms in groups.items()}
    for engine, plain, further in (
        ("vllm", "dense", "sparse"),
        ("trtllm", "sparse", "mla"),
        ("trtllm", "dense", "mla"),
    ):
        for generation in ("hopper", "blackwell"):
            assert 0 < ns[f"{engine}-{plain}-{generation}"] < ns[f"{engine}-{further}-{generation}"]
