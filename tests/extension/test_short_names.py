"""Public modules of the cluster by their names without the room, and modules by former names."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import blis_py.cluster

PLACES = [
    (path.stem, f"blis_py.cluster.{path.parent.name}.{path.stem}")
    for path in sorted(Path(blis_py.cluster.__file__).parent.glob("*/*.py"))
    if find_spec(f"blis_py.cluster.{path.stem}") and path.stem != "__init__"
]


def test_documented_modules_have_short_names() -> None:
    of_ingress = {"admission", "dispatch_order", "fairness", "saturation", "source"}
    documented = of_ingress | {"fleet", "outlet", "policies", "router", "scorers"}
    assert documented <= {name for name, _ in PLACES}


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_short_name_is_the_same_module(name: str, place: str) -> None:
    module = import_module(f"blis_py.cluster.{name}")
    assert module is import_module(place)
    assert module.__name__ == place
    assert module.__spec__ is not None
    assert module.__spec__.name == place


def test_a_module_that_is_not_there_is_no_short_name() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"blis_py\.cluster\.routers"):
        import_module("blis_py.cluster.routers")


@pytest.mark.parametrize(
    ("former", "present", "names"),
    [
        ("blis_py.saved", "blis_py.report.saved", ["SavedResult", "load"]),
        ("blis_py.intervals", "blis_py.sensitivity.reruns", ["Reruns"]),
    ],
)
def test_former_names_of_modules_give_the_same_objects(former: str, present: str, names: list[str]) -> None:
    module = import_module(former)
    assert module.__all__ == names
    assert all(getattr(module, name) is getattr(import_module(present), name) for name in names)
