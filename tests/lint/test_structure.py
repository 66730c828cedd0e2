"""Structure that is counted, so that it does not get worse unnoticed; `make lint` runs this, too."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from sources import ROOT, modules, product

MAX_IMPORTS_IN_FUNCTIONS = {"blis_py": 308, "engine": 70}
"""An import stands in a function only where importing the file does not load the module anyway, and where it
spares the time of a command that does not need it: of another verb, of a library that takes long (pandas,
matplotlib, rich, scipy, torch), or of a part that few runs have."""
MAX_FILES_ABOUT_A_KIND = 14
"""Files that name block diffusion without being its own."""


ROOT_MODULES = {"__init__", "__main__", "api", "errors", "result", "version"}
FORMER_NAMES = {"saved", "intervals"}
"""Documented once, and still importable."""


def test_the_root_of_the_package_keeps_what_users_call_and_rooms_the_rest() -> None:
    assert {path.stem for path in (ROOT / "blis_py").glob("*.py")} == ROOT_MODULES | FORMER_NAMES


def inside_functions(tree: ast.AST, inside: bool = False) -> Iterator[ast.stmt]:
    """Import statements inside functions."""
    for node in ast.iter_child_nodes(tree):
        if inside and isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from inside_functions(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_imports_inside_functions_do_not_become_more() -> None:
    counts = Counter(path.split("/")[0] for path, tree in product().items() for _ in inside_functions(tree))
    assert all(0 < counts[part] <= most for part, most in MAX_IMPORTS_IN_FUNCTIONS.items()), counts


def test_an_import_in_a_method_or_a_branch_is_counted_and_one_at_the_top_is_not() -> None:
    source = "import a\nclass C:\n  def f(self):\n    if self:\n      import b\n      from c import d\n"
    assert [node.lineno for node in inside_functions(ast.parse(source))] == [5, 6]


def test_every_class_has_a_name_of_its_own() -> None:
    found = defaultdict(list)
    for path, tree in product().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    several = {name: places for name, places in found.items() if len(places) > 1}
    assert not several, "one name, one meaning"


OF_THE_ENGINE_TOO = {"--model", "--kv-cache-dtype", "--seed", "--block-size"}
"""Flags that mean something else to the engine: a checkpoint, its own formats, samples, a size by device."""


def declared_flags(tree: ast.Module) -> Iterator[str]:
    """Flags of the settings that a module declares."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setting":
            flags = [each.value for each in node.keywords if each.arg == "flag"]
            yield from (flag.value for flag in flags if isinstance(flag, ast.Constant))


def test_every_setting_is_declared_once() -> None:
    counts = Counter(flag for tree in product().values() for flag in declared_flags(tree))
    assert len(counts) > 100
    assert {flag for flag, count in counts.items() if count > 1} == OF_THE_ENGINE_TOO


def imports_of_private_modules(path: str, tree: ast.Module) -> Iterator[str]:
    """Modules with an underscore that a file imports from another package than its own."""
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            package, private, _ = name.partition("._")
            own = path.rpartition("/")[0].replace("/", ".")
            if private and package.startswith(("blis_py", "engine")) and package != own:
                yield f"{path}:{node.lineno}: {name}"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["blis_py", "engine", "tests", "benchmarks"])
def test_a_module_with_an_underscore_is_its_packages_own(part: str) -> None:
    assert not [
        line for path, tree in modules(part).items() for line in imports_of_private_modules(path, tree)
    ]


def test_an_import_of_a_private_module_from_elsewhere_is_seen() -> None:
    tree = ast.parse("from blis_py.serve._sse import A\nimport blis_py.serve._sse\nimport _thread\n")
    assert len([*imports_of_private_modules("blis_py/cli/verbs/run.py", tree)]) == 2
    assert not [*imports_of_private_modules("blis_py/serve/app.py", tree)]


@pytest.mark.parametrize("kind", ["diffusion"])
def test_generic_code_does_not_name_a_kind_of_requests(kind: str) -> None:
    named = [
        path
        for path in product()
        if kind not in path and kind in (ROOT / path).read_text(encoding="utf-8").lower()
    ]
    assert 0 < len(named) <= MAX_FILES_ABOUT_A_KIND, named
