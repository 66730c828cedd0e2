"""The classes of step features are what their schemas generate."""

from __future__ import annotations

import pytest
from feature_source import CORE, FILES, current

from blis_py.core.diffusion_features import ROUND_FEATURES
from blis_py.core.features import FEATURES


@pytest.mark.parametrize("name", FILES)
def test_generated_source_is_current(name: str) -> None:
    written = (CORE / name).read_text(encoding="utf-8")
    assert "# end of generated" in written
    assert current(name) == written, "run tests/core/feature_source.py"


def test_every_feature_of_every_step_says_what_it_means() -> None:
    assert all(each.meaning for each in (*FEATURES.values(), *ROUND_FEATURES.values()))
