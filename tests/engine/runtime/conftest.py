from __future__ import annotations

import json
from functools import partial

import pytest


@pytest.fixture(params=["host", "device"])
def prepared_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Engines built in the test make the inputs of decodes as on the CPU, or as on a GPU."""
    from engine.batch import BatchBuilder

    on_device = partial(BatchBuilder, on_device=request.param == "device")
    monkeypatch.setattr("engine.build.BatchBuilder", on_device)
    return str(request.param)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of a tiny model with random weights on the CPU."""
    from test_engine_real_model import CONFIG

    folder = tmp_path_factory.mktemp("tiny-qwen3")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return ["--model", str(folder), "--load-format", "dummy", "--device", "cpu", "--num-kv-blocks", "200"]
