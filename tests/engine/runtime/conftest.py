from __future__ import annotations

from functools import partial

import pytest


@pytest.fixture(params=["host", "device"])
def prepared_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Engines built in the test make the inputs of decodes as on the CPU, or as on a GPU."""
    from engine.batch import BatchBuilder

    on_device = partial(BatchBuilder, on_device=request.param == "device")
    monkeypatch.setattr("engine.build.BatchBuilder", on_device)
    return str(request.param)
