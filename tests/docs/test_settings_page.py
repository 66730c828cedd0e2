"""The page of settings is what their registrations say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from blis_py.config.described import docstrings, helps
from blis_py.config.models import SECTIONS, RunConfig
from engine.config import EngineConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made() -> ModuleType:
    found = importlib.util.spec_from_file_location("make_settings", ROOT / "docs/make_settings.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(made: ModuleType) -> None:
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run: python docs/make_settings.py"


def test_it_states_the_default_of_the_preset(made: ModuleType) -> None:
    assert "- `scheduler.max_num_seqs` (`1024`): Most running requests" in made.page()
    assert "- `scheduler.policy` `--scheduler` (`fcfs`): " in made.page()
    assert "- `pools` (key only): Pools" in made.page()


def test_no_docstring_repeats_the_help() -> None:
    repeated = []
    for model in (RunConfig, *SECTIONS.values(), EngineConfig):
        shown, documented = helps(model), docstrings(model)
        repeated += [name for name in documented if plain(documented[name]) == plain(shown.get(name, ""))]
    assert not repeated, "drop the docstring: the documentation has the help"


def plain(text: str) -> str:
    return text.replace("`", "").rstrip(".").lower()
